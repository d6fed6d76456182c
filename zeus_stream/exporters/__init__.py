"""Send results and the live state to other systems."""
