"""Listeners: what accepts other programs of this host, and other hosts with keys."""
