"""Phases of a training step: their seconds by the marks of the script, their joules by least squares."""
