"""Events of the training processes of this host."""
