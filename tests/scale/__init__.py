"""Tests with the real engines of a large site. `make test` runs them in an environment of their own."""
