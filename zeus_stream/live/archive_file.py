"""Read an archive in Python: ``zeus_stream.open(path)``."""

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.service_packages import python_child
from zeus_stream.transport.client import windows_query

if TYPE_CHECKING:
    import pyarrow as pa


class ArchiveFile:
    """An archive file, as a source of tables. It stays closed between two queries.

    Example:
        >>> zeus_stream.open("energy.duckdb").sql("FROM epochs").to_pandas()
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"ArchiveFile({str(str(self.path))!r})"

    def sql(self, query: str, *, max_rows: int = 1_000_000, timeout_s: float = 30.0) -> "pa.Table":
        """Return the answer to one SQL statement.

        A process of its own answers, with the same limits as `zeus-stream sql`.

        Args:
            query: a statement that reads.
            max_rows: the largest number of rows.
            timeout_s: the longest time, s.

        Raises:
            RefusedError: the statement is wrong, takes too long, or returns too much.
        """
        import pyarrow as pa  # noqa: PLC0415  (heavy, and only needed here)

        limits = {"ZEUS_STREAM_QUERY_ROWS": str(max_rows), "ZEUS_STREAM_QUERY_SECONDS": str(timeout_s)}
        answer = subprocess.run(  # noqa: S603  (this interpreter, this package)
            python_child("zeus_stream", "sql", "-", "--format", "arrow", "--archive", str(self.path)),
            env={**os.environ, **limits},
            input=query.encode(),
            capture_output=True,
            check=False,
        )
        if answer.returncode:
            raise RefusedError(answer.stderr.decode(errors="replace").removeprefix("zeus-stream: ").strip())
        return pa.ipc.open_stream(answer.stdout).read_all()

    def windows(
        self, run: str | None = None, name: str | None = None, *, timeout_s: float = 30.0
    ) -> "pa.Table":
        """Return the named windows of a run, or of all runs, the latest last: rows of the view ``named``.

        Args:
            run: name of a run. None: all runs.
            name: name of the windows. None: all names.
            timeout_s: the longest time, s.

        Raises:
            RefusedError: it takes too long.
        """
        return self.sql(windows_query(run, name), timeout_s=timeout_s)


def open_archive(path: str | os.PathLike[str]) -> ArchiveFile:
    """Open an archive to read it in Python, also while an analyzer writes it.

    Args:
        path: the DuckDB file that an analyzer wrote.

    Raises:
        StorageError: there is no such file.

    Example:
        >>> zeus_stream.open("energy.duckdb").sql("FROM epochs").to_pandas()
    """
    file = Path(path)
    if not file.is_file():
        raise StorageError(f"{file}: could not be opened: there is no such file. Name an archive.")
    return ArchiveFile(file)
