"""What a training step costs in joules, and the power limit that makes it cost less."""
