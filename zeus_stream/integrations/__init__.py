"""Doors to frameworks. Each is imported only where it is used, and imports no framework by itself."""
