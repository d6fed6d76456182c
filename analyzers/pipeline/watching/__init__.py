"""What is watched while a plan is followed: promises, replicas that are slower, power budgets."""
