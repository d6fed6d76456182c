"""Forecasts of runs: energy and time to the end."""
