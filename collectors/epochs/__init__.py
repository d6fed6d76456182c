"""Analyzers that share a site: under which epoch each may command."""
