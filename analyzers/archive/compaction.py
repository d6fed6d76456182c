"""Rewrite an archive file without the blocks that retention has freed: copy, compare, swap.

    file, read-only --copy--> FILE.compact --compare--> rename over the file

DuckDB uses freed blocks again and never gives them back. Nothing may have the file open for writing. Whatever
is killed, the file is the old one or the new one, both whole.
"""

import os
from pathlib import Path
from typing import Any

import duckdb

from analyzers.archive.opening import THREADS, first_line
from zeus_stream.errors import StorageError
from zeus_stream.settings import Settings

FREE_SHARE = 0.5
"""A file is rewritten if at least this share of its blocks is free."""


def compact(path: Path, settings: Settings) -> tuple[int, int] | None:
    """Rewrite an archive if half of it is free; return its bytes before and after, or None.

    Raises StorageError: another process has it open, or there is no room for the copy. The file is as it was.
    """
    fresh, before = path.with_name(f"{path.name}.compact"), path.stat().st_size
    config: dict[str, Any] = {"memory_limit": f"{settings.memory_mb}MiB", "threads": THREADS}
    fresh.unlink(missing_ok=True)
    try:
        with duckdb.connect(config=config) as connection:
            connection.execute(f"ATTACH '{_quoted(path)}' AS old (READ_ONLY)")  # it holds the lock to the end
            if Path(f"{path}.wal").exists() or _free_share(connection) < FREE_SHARE:
                return None
            connection.execute(f"ATTACH '{_quoted(fresh)}' AS fresh (STORAGE_VERSION 'v1.5.0')")
            connection.execute("COPY FROM DATABASE old TO fresh")
            _compare(connection, path)
            connection.execute("DETACH fresh")
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.chmod(path.stat().st_mode & 0o777)
            fresh.replace(path)
    except (duckdb.Error, OSError) as wrong:
        raise StorageError(
            f"{path}: could not be compacted: {first_line(str(wrong))}. It is as it was. Make room for a"
            " copy, or stop who has it open."
        ) from wrong
    finally:
        fresh.unlink(missing_ok=True)
    return before, path.stat().st_size


def _free_share(connection: duckdb.DuckDBPyConnection) -> float:
    [(total, free)] = connection.execute(
        "SELECT total_blocks, free_blocks FROM pragma_database_size() WHERE database_name = 'old'"
    ).fetchall()
    return free / total if total else 0.0


def _compare(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Raise StorageError unless both have the same rows, tables and views."""
    for kind in ("tables", "views"):
        names = f"SELECT {kind[:-1]}_name FROM duckdb_{kind}() WHERE NOT internal AND database_name = "  # noqa: S608
        old, new = (
            sorted(connection.execute(f"{names} '{database}'").fetchall()) for database in ("old", "fresh")
        )
        if old != new:
            raise StorageError(f"{path}: could not be compacted: the copy lacks {kind}. Report it.")
    for (table,) in connection.execute(
        "SELECT table_name FROM duckdb_tables() WHERE NOT internal AND database_name = 'old'"
    ).fetchall():
        sums = [
            connection.execute(f"SELECT count(*), bit_xor(hash(t)) FROM {database}.{table} AS t").fetchall()  # noqa: S608
            for database in ("old", "fresh")
        ]
        if sums[0] != sums[1]:
            raise StorageError(
                f"{path}: could not be compacted: the copy has other rows in {table}. Report it."
            )


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
