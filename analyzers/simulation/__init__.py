"""Recorded jobs, replayed by batch-size policies."""
