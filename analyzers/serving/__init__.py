"""SQL for many: one process of any number, each of which answers queries over a lake or a file."""
