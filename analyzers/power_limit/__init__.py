"""Search of the power limit of a run."""
