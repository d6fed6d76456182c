"""The counter of a GPU: its kind, and the instants at which it is refreshed."""
