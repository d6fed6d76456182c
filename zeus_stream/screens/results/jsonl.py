"""Results as lines of JSON: for other programs, and an example of an exporter."""

import json
import sys
from collections.abc import Sequence
from typing import TextIO

from msgspec import Struct
from msgspec.structs import asdict

from zeus_stream.errors import SettingsError


class JsonlExporter:
    """A file of JSON objects, one a line: ``row`` names the class of the row."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def export(self, rows: Sequence[Struct]) -> None:
        """Append rows. Raises OSError."""
        for row in rows:
            self._write({"row": type(row).__name__, **asdict(row)})
        self._file.flush()

    def report_missed(self, count: int | None) -> None:
        """Append a line that says how many results are missing before the next one."""
        self._write({"row": "Missed", "count": count})
        self._file.flush()

    def close(self) -> None:
        if self._file is not sys.stdout:
            self._file.close()

    def _write(self, values: dict[str, object]) -> None:
        self._file.write(json.dumps(values) + "\n")


def open_jsonl(setting: str) -> JsonlExporter:
    """Return the exporter into a file, or to stdout if ``setting`` is empty. Raises SettingsError."""
    if not setting:
        return JsonlExporter(sys.stdout)
    try:
        return JsonlExporter(open(setting, "a", encoding="utf-8"))  # noqa: PTH123  (open as long as it)
    except OSError as wrong:
        raise SettingsError(
            f"exporter jsonl:{setting}: could not be opened: {wrong.strerror}. Name another file."
        ) from wrong
