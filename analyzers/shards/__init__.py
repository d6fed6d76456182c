"""Analyzers that share a site: each decides on the jobs of its shards, and takes over those of another."""
