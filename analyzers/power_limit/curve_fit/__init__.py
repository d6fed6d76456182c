"""Visits of power limits, and the fit of a curve to them."""
