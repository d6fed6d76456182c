"""The version of this package: `pyproject.toml` takes it from here.

A service says it when it starts: to ask the installed distribution took a tenth of the collector's start.
"""

VERSION = "0.1.0"
