"""Benchmarks of energy: functions measured in turns, and what their difference proves."""
