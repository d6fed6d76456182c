"""The process that has the archive open, and the analyzer's side of it."""
