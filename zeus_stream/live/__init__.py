"""The live answer of the services, and the screens that show it."""
