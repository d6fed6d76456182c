"""Routes of a frame through the machines: readings, events of training processes, notes of collectors."""
