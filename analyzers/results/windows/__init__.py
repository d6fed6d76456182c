"""Measured windows, as rows and as columns."""
