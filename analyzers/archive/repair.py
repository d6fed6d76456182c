"""Move the damaged part of an archive aside, and name what is lost with it.

    the file can be read whole        -> nothing is moved
    it can be read without its WAL    -> the WAL is moved: what was stored since the last checkpoint is lost
    it cannot                         -> both are moved: everything is lost

Nothing is deleted. What the collectors' logs still hold is fetched again by the next analyzer.
"""

from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from analyzers.archive.open_file import OpenFile
from zeus_stream.errors import RefusedError, StorageError
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
    try:
        if target.exists():
            raise StorageError(f"{target}: could not be written: it is there already. Move it away.")
        path.rename(target)
    except OSError as wrong:
        raise StorageError(
            f"{path}: could not be moved: {wrong.strerror}. Ask for the rights in its directory."
        ) from wrong
    return target
