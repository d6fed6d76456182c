<<<<<<< HEAD
"""Exporters: the live state and the results for monitoring systems."""
=======
"""Send results to other systems."""
>>>>>>> main
