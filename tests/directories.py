"""Directories and settings for setups under test, and for benchmarks."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

QUICK_FILE = ("--config", str(Path(__file__).with_name("data") / "quick.toml"))
"""The flag of a search of few steps."""
EAGER = (
    *("--search", "exhaustive", "--profile-steps", "5", "--warmup-steps", "1"),
    *("--stride-w", "75", *QUICK_FILE),
)
"""Flags with which an analyzer chooses a limit after few steps."""
LONGEST = 60
"""Characters of where temporary files are kept: the path of a socket in there has at most 107."""


@contextmanager
def short_directory() -> Iterator[Path]:
    """Give a new directory in which sockets can be, wherever TMPDIR is; it is gone at the end.

    A guard whose collector was killed may be busy in it still: then what it makes anew is left.
    """
    usual = tempfile.gettempdir()
    parent = usual if len(usual) <= LONGEST else "/tmp"
    with tempfile.TemporaryDirectory(prefix="zs-", dir=parent, ignore_cleanup_errors=True) as made:
        yield Path(made)
