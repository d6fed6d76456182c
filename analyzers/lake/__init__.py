"""The store of many archivers: DuckLake, with its catalog in PostgreSQL and its rows in Parquet files."""
