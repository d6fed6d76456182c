"""Rows as columns, on their way into the archive and back."""
