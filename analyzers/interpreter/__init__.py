"""The interpreter: frames in, rows and instructions out."""
