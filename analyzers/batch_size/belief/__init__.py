"""Beliefs about batch sizes: a summary of tries, curves through it, and what a try may show. Pure."""
