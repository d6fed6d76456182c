"""Exporters: the live state and the results for monitoring systems."""
