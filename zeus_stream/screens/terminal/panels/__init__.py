"""The panels of the live screen, and its pages."""
