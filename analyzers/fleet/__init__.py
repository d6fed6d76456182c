"""Hosts, GPUs and sessions that are followed."""
