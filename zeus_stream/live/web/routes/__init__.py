"""Handlers of the routes."""
