"""Roll-ups of readings by second, minute and hour, and the removal of what is older than it is kept."""
