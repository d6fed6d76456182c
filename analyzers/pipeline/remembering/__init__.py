"""Profiles of pipelines that later runs of the same job start from."""
