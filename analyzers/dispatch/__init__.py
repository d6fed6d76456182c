"""Commands on their way to the collectors."""
