"""Send results to other systems."""
