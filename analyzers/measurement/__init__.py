"""Readings and events -> energy of windows, with intervals."""
