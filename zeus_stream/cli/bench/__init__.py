"""The command ``bench``."""
