"""When a device is read, and what a reading shows."""
