"""Rows of pipelines."""
