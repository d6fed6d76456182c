"""The profiles that a setup has forgotten, one file: by job, all that were measured until then."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from analyzers.state_files.json_file import load_json, store_json

WHAT = "what was forgotten"
WallNs = Annotated[int, Meta(ge=0, le=4_102_444_800 * 10**9)]
"""UTC, ns since 1970, until 2100."""


def load(path: Path) -> dict[str, WallNs]:
    """Return the instants by job; nothing without a file. Raises StorageError: it is damaged."""
    return load_json(path, dict[str, WallNs], WHAT, "Move it away, then forget again.") or {}


def store(path: Path, forgotten_wall_ns: Mapping[str, int]) -> None:
    """Put all of it in the place of what is there. Raises StorageError."""
    store_json(path, dict(forgotten_wall_ns), WHAT)
