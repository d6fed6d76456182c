"""Move the damaged part of an archive aside, and name what is lost with it.

    the file can be read whole        -> nothing is moved
    it can be read without its WAL    -> the WAL is moved: what was stored since the last checkpoint is lost
    it cannot                         -> both are moved: everything is lost

Nothing is deleted. What the collectors' logs still hold is fetched again by the next analyzer.
`compact` gives back the blocks that retention has freed.
"""

import os
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
from msgspec import Struct

from analyzers.archive.open_file import OpenFile
from analyzers.archive.opening import THREADS, first_line
from zeus_stream.errors import RefusedError, StorageError, explaining
from zeus_stream.quoting import quoted
from zeus_stream.settings import Settings


class DamagedParts(Struct, frozen=True):
    """The files that were moved, and what is lost."""

    moved: tuple[Path, ...]
    lost: str


def set_aside(path: Path, settings: Settings, suffix: str) -> DamagedParts:
    """Move what cannot be read beside the archive, under names that end with ``suffix``.

    Raises RefusedError: the archive can be read whole. StorageError: it cannot be opened or moved.
    """
    wal = Path(f"{path}.wal")
    try:
        read_whole(path, settings)
    except StorageError as wrong:
        if not path.exists() or "holds it" in str(wrong):
            raise
    else:
        raise RefusedError(f"{path}: could not be set aside: all of it can be read. Nothing was moved.")
    moved = []
    if wal.exists():
        size = wal.stat().st_size
        moved.append(_move(wal, suffix))
        try:
            ends = read_whole(path, settings)
        except StorageError:
            pass  # the file is damaged as well
        else:
            until = "; ".join(f"{host} to {when:%F %H:%M} UTC" for host, when in ends) or "no host yet"
            lost = (
                f"What was stored since the last checkpoint is lost, {size} bytes. What is left: {until}."
                " Frames that a collector's log still holds are fetched again."
            )
            return DamagedParts(tuple(moved), lost)
    size = path.stat().st_size
    moved.append(_move(path, suffix))
    lost = (
        f"All of the archive is lost, {size} bytes; the next analyzer begins another. Frames that a"
        " collector's log still holds are fetched again."
    )
    return DamagedParts(tuple(moved), lost)


def read_whole(path: Path, settings: Settings) -> Sequence[tuple[str, datetime]]:
    """Read every table; return each host with the time of its last clock reading. Raises StorageError."""
    with closing(OpenFile.open_read_only(path, settings)) as file, file.cursor() as cursor:
        tables = cursor.execute("SELECT table_name FROM duckdb_tables() WHERE NOT internal").fetchall()
        for (name,) in tables:
            cursor.execute(f"SELECT bit_xor(hash(t)) FROM {name} AS t").fetchall()  # noqa: S608  (our own)
        return cursor.execute(
            "SELECT host, make_timestamp(max(wall_ns) // 1000) FROM hosts GROUP BY host ORDER BY host"
        ).fetchall()


def _move(path: Path, suffix: str) -> Path:
    target = path.with_name(f"{path.name}.{suffix}")
    with explaining(StorageError, f"{path}: could not be moved", "Ask for the rights in its directory."):
        if target.exists():
            raise StorageError(f"{target}: could not be written: it is there already. Move it away.")
        path.rename(target)
    return target


FREE_SHARE = 0.5
"""A file is rewritten if at least this share of its blocks is free."""


def compact(path: Path, settings: Settings) -> tuple[int, int] | None:
    """Rewrite an archive if half of it is free; return its bytes before and after, or None.

        file, read-only --copy--> FILE.compact --compare--> rename over the file

    DuckDB uses freed blocks again and never gives them back. Whatever is killed, the file is the old one or
    the new one, both whole.

    Raises StorageError: another process has it open, or there is no room for the copy. The file is as it was.
    """
    fresh, before = path.with_name(f"{path.name}.compact"), path.stat().st_size
    config: dict[str, Any] = {"memory_limit": f"{settings.memory_mb}MiB", "threads": THREADS}
    fresh.unlink(missing_ok=True)
    try:
        with duckdb.connect(config=config) as connection:
            connection.execute(f"ATTACH {quoted(path)} AS old (READ_ONLY)")  # it holds the lock to the end
            if Path(f"{path}.wal").exists() or _free_share(connection) < FREE_SHARE:
                return None
            connection.execute(f"ATTACH {quoted(fresh)} AS fresh (STORAGE_VERSION 'v1.5.0')")
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
