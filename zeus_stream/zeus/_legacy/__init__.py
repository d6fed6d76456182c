"""Zeus's trace-driven simulation of its paper, with its names. Here a command plays the same traces."""
