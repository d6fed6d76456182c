"""Questions to the archive: SQL and the rows it gives, for all screens."""
