"""Messages between the processes, and their bytes."""
