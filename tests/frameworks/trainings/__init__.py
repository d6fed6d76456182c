"""Scripts, one for each framework: trainings in all ways, each with a publisher named after it."""
