"""Sensor cards of GPUs."""
