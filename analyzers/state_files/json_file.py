"""The small JSON files of a setup: each is read whole, and replaced whole."""

from pathlib import Path
from typing import TypeVar

from msgspec import MsgspecError, json

from zeus_stream.errors import StorageError, explaining
from zeus_stream.paths import rewrite

T = TypeVar("T")


def load_json(path: Path, kind: type[T], what: str, cure: str) -> T | None:
    """Return the content of a file, checked to be of a kind. None: there is no file. Raises StorageError."""
    try:
        return json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, MsgspecError, UnicodeDecodeError) as wrong:
        raise StorageError(f"{path}: {what} could not be read: {wrong}. {cure}") from wrong


def store_json(path: Path, values: object, what: str) -> None:
    """Put values in the place of those in a file. Raises StorageError."""
    cure = "Make room, or run this as the user of the analyzer."
    with explaining(StorageError, f"{path}: {what} could not be written", cure):
        rewrite(path, json.format(json.encode(values)).decode() + "\n")
