"""Understand, decide, remember. Nothing here is for import by users."""
