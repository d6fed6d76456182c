"""Scripts, one for each framework: trainings in all ways, each told to a publisher of its own, named after it."""
