"""Runs SQL from outside where it can do no harm: what may be asked, and what its process may do."""
