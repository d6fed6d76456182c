"""Drivers of the machines of one run: its ranks, its commands, its trials, its rows."""
