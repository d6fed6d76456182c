"""Ask devices, keep the log, obey commands. Nothing here is for import by users."""
