"""What was measured of power limits, and the curve that is believed to run through it."""
