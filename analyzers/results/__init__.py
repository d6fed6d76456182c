"""Rows and instructions: what interpretation gives."""
