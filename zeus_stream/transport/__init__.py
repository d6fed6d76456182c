"""Sockets, keys and the client side of every connection."""
