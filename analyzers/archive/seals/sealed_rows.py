"""Hashes of rows and the text of seals, as the chain and its verifier agree on. Pure."""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from msgspec import Struct

from analyzers.results.fleet_rows import RunRow
from analyzers.results.limit_rows import DecisionRow
from analyzers.results.window_rows import GapRow, WindowRow


class SealedTable(Struct, frozen=True):
    """A table whose rows are chained: its columns that were stored, not computed; and its key."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def select(self) -> str:
        """Return the beginning of a query for its rows."""
        names = ", ".join(f'"{name}"' for name in self.columns)
        return f"SELECT {names} FROM {self.name}"  # noqa: S608  (our own names)


def _of(kind: Any) -> SealedTable:
    return SealedTable(kind.TABLE.name, tuple(kind.__struct_fields__), kind.TABLE.key)


TABLES: Mapping[str, SealedTable] = {
    each.name: each
    for each in (
        SealedTable("settings", ("start", "name", "value"), ("start", "name")),
        *map(_of, (RunRow, WindowRow, DecisionRow, GapRow)),
    )
}


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)


def _text(values: Any) -> str:
    return json.dumps(values, ensure_ascii=True, separators=(",", ":"), sort_keys=True, default=_plain)


def key_of(table: SealedTable, row: tuple[Any, ...]) -> str:
    return _text([row[table.columns.index(part)] for part in table.key])


def hash_row(row: tuple[Any, ...]) -> str:
    """Return the SHA-256 of the values of a row, as DuckDB gives them to Python."""
    return sha256(_text(list(row)).encode()).hexdigest()


def row_hashes(row: tuple[Any, ...]) -> Iterator[str]:
    """Yield the hashes that a row may be chained with: an earlier version had fewer columns.

    A migration adds columns behind the others, and they are NULL in the rows that were there.
    """
    yield hash_row(row)
    while row and row[-1] is None:
        row = row[:-1]
        yield hash_row(row)


def entry_hash(before: str, table: str, key: str, row: str) -> str:
    """Return the hash of an entry of the chain: over the entry before, and its own content."""
    return sha256(_text([before, table, key, row]).encode()).hexdigest()


def seal_text(archive_id: str, number: int, last: str, sealed_ns: int) -> bytes:
    """Return what a seal signs."""
    return f"zeus-stream seal\n{archive_id}\n{number}\n{last}\n{sealed_ns}\n".encode()
