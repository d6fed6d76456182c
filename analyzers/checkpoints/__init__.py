"""Checkpoints of the analyzer: the state of its machines as bytes, so that a restart replays seconds."""
