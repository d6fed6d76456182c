"""The epochs of analyzers on disk: an analyzer that was replaced stays so over a restart of the collector."""

import os
from pathlib import Path

from collectors.epochs.analyzers_known import AnalyzersKnown, W, epochs_of
from zeus_stream.errors import StorageError


def read_epochs(path: Path) -> dict[str, int]:
    """Return the epochs in a file; none if there is no file. Raises StorageError."""
    try:
        return epochs_of(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as wrong:
        raise StorageError(
            f"{path}: could not be read: {wrong}. Without it an analyzer that was replaced could command:"
            " remove the file once all analyzers have been restarted."
        ) from wrong


def write_epochs(path: Path, known: AnalyzersKnown[W]) -> None:
    """Keep the epochs, on disk before this returns. Raises StorageError."""
    partial = path.with_suffix(".new")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(known.to_json())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as wrong:
        raise StorageError(f"{path}: could not be written: {wrong}. Make room or give access.") from wrong
