"""Decides who is answered: tokens, host names, security headers."""
