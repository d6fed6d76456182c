"""Steps: their stamps, and where they end on the device."""
