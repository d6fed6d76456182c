"""The archive: a DuckDB file, its schema and its queries."""
