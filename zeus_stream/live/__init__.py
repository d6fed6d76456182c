"""What is going on now: the live answer of the services, and the screens that show it."""
