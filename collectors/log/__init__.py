"""The ordered log on disk, and its feed."""
