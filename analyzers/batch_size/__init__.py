"""Batch sizes of jobs that recur."""
