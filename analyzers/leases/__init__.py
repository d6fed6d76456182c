"""Leases of a site in PostgreSQL, and the rows that wait there for the lake."""
