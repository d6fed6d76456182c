"""The publisher: what a training script imports."""
