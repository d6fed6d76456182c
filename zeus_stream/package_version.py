"""The version of the installed package."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def package_version() -> str:
    """Return the version of zeus-stream, or that it is not installed."""
    try:
        return version("zeus-stream")
    except PackageNotFoundError:
        return "not installed"
