"""Small files an administrator changes while the analyzer runs."""
