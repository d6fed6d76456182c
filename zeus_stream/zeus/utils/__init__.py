"""Helpers that Zeus's examples import."""
