"""Power budgets of groups of GPUs."""
