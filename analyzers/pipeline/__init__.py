"""Clocks for the instructions of a training that is split into pipeline stages."""
