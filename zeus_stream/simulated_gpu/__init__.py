"""Simulated GPUs that a training script drives and a collector reads."""
