"""The optimizer of the power limit, with Zeus's names: see `power_limit`."""
