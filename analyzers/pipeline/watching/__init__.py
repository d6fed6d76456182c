"""The watch over a plan that is followed: its promise, slower replicas, power budgets."""
