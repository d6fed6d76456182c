"""Seals: rows that a bill is made of are chained and signed, so that a later change is found."""
