"""The live state of the site, for screens."""
