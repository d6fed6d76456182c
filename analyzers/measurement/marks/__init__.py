"""Marks of events: where they cut the time of a GPU into parts."""
