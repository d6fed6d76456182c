"""The profiles that a setup has forgotten, one file: by job, all that were measured until then."""

import json
from collections.abc import Mapping
from pathlib import Path

from zeus_stream.errors import StorageError
from zeus_stream.paths import rewrite

MOST_NS = 4_102_444_800 * 10**9
"""Until 2100."""


def load(path: Path) -> dict[str, int]:
    """Return by job UTC, ns since 1970; nothing without a file. Raises StorageError: it is damaged."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {str(job): _wall_ns(wall_ns) for job, wall_ns in stored.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as wrong:
        raise StorageError(
            f"{path}: what was forgotten could not be read: {wrong}. Move it away, then forget again."
        ) from wrong


def store(path: Path, forgotten_wall_ns: Mapping[str, int]) -> None:
    """Put all of it in the place of what is there. Raises StorageError."""
    try:
        rewrite(path, json.dumps(forgotten_wall_ns, indent=2) + "\n")
    except OSError as wrong:
        raise StorageError(
            f"{path}: what was forgotten could not be written: {wrong.strerror}. Make room, or run this as"
            " the user of the analyzer."
        ) from wrong


def _wall_ns(value: object) -> int:
    """Return an instant that there can be. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= MOST_NS:
        raise ValueError(f"{value!r} is no time in ns since 1970")
    return value
