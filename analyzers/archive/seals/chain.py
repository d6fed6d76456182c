"""The chain of an archive: an entry for each row that a bill is made of, in the order of their commits.

    entry = number, table, key, hash of the row, hash of (the entry before, table, key, hash of the row)
    seal  = number and hash of the last entry, time, public key, signature of these and of the archive's id

A row that replaces another has an entry of its own; the last entry of a key counts. The chain is sealed at
the end of a run, with the first entry after a day, and with each entry that replaces another: one that no
seal covers was added by somebody else. Rows of these tables are kept for ever, so retention
takes no entry away. `verifier` checks it, and shares nothing with this module but how rows are hashed.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from msgspec import Struct
from nacl.signing import SigningKey

from analyzers.archive.opening import Connection
from analyzers.archive.seals.sealed_rows import TABLES, entry_hash, hash_row, key_of, seal_text
from zeus_stream.errors import StorageError
from zeus_stream.own_files import own_secret

UNNESTED = ", ".join(f"unnest(${place})" for place in range(1, 6))
_log = logging.getLogger(__name__)
DAY_NS = 86_400_000_000_000
SEED_BYTES = 32
"""Of an Ed25519 key."""
BILLED = ("run", "epoch")
"""Kinds of windows that are chained; those of steps are removed after a while."""


class Incoming(Struct, frozen=True):
    """Rows that a commit stores: the table, and the condition by which they are found there."""

    table: str
    condition: str
    ends_run: bool = False


def incoming(tables: Mapping[str, pa.Table]) -> Iterator[Incoming]:
    """Yield what a commit of these tables adds to the chain, but for gaps, which come in other ways too."""
    for name, sealed in TABLES.items():
        if name == "gaps" or (rows := tables.get(name)) is None:
            continue
        ends, only = False, ""
        if name == "windows":
            kinds = set(rows["kind"].unique().to_pylist())
            if not kinds.intersection(BILLED):
                continue
            ends, only = "run" in kinds, " AND incoming.kind IN ('run', 'epoch')"
        same = " AND ".join(f'{name}."{part}" IS NOT DISTINCT FROM incoming."{part}"' for part in sealed.key)
        yield Incoming(name, f"EXISTS (FROM incoming_{name} AS incoming WHERE {same}{only})", ends)


class ChainState(Struct, frozen=True):
    """Where a chain goes on."""

    number: int
    """Of the last entry; 0: there is none."""
    last: str
    sealed_ns: int
    gap: int
    """Last rowid of ``gaps`` that is chained."""


class Chain:
    """The chain of one archive, as its writer goes on with it. For one thread."""

    def __init__(self, connection: Connection, archive_id: str, key: Path) -> None:
        """``key``: file of 32 random bytes; it is made with the first seal."""
        self._archive_id = archive_id
        self._key = key
        last = connection.execute("SELECT number, hash FROM chain ORDER BY number DESC LIMIT 1").fetchall()
        [(sealed_ns,)] = connection.execute("SELECT max(sealed_ns) FROM seals").fetchall()
        number, hashed = last[0] if last else (0, "")
        self.state = ChainState(number, hashed, sealed_ns or 0, -1)
        """As of the last commit; `add` returns the next."""
        self._start = [Incoming("settings", "start = (SELECT starts FROM meta)")]
        """Rows of this start, which come with its first commit."""

    def add(self, connection: Connection, tables: Mapping[str, pa.Table], wall_ns: int) -> ChainState:
        """Add the rows of a commit, within its transaction; return the state to keep if it succeeds.

        The rows are stored already, and there as ``incoming_NAME``. The chain is sealed if it is time.
        """
        state = self.state
        added = [*incoming(tables), *(self._start if state.gap < 0 else ())]
        [(gap,)] = connection.execute("SELECT coalesce(max(rowid), 0) FROM gaps").fetchall()
        if gap != state.gap:
            added.append(Incoming("gaps", f"rowid > {state.gap}"))
        number, last = state.number, state.last
        entries, replaces = [], False
        for each in added:
            for key, row, has_entry in self._changed(connection, each):
                replaces |= has_entry
                number, last = number + 1, entry_hash(last, each.table, key, row)
                entries.append((number, each.table, key, row, last))
        sealed_ns = state.sealed_ns
        if entries:
            columns = [list(column) for column in zip(*entries, strict=True)]
            connection.execute(f"INSERT INTO chain SELECT {UNNESTED}", columns)
            due = replaces or wall_ns - sealed_ns > DAY_NS or any(each.ends_run for each in added)
            if due and self._seal(connection, number, last, wall_ns):
                sealed_ns = wall_ns
        return ChainState(number, last, sealed_ns, gap)

    def _changed(self, connection: Connection, added: Incoming) -> Iterator[tuple[str, str, bool]]:
        """Yield key and hash of each row that has no entry as it is now, and whether it had one before."""
        sealed = TABLES[added.table]
        stored = connection.execute(f"{sealed.select} WHERE {added.condition}").fetchall()
        rows = {key_of(sealed, row): hash_row(row) for row in stored}
        known = dict(
            connection.execute(
                'SELECT key, last(row ORDER BY number) FROM chain WHERE "table" = $1'
                " AND list_contains($2, key) GROUP BY key",
                [added.table, list(rows)],
            ).fetchall()
        )
        for key, row in rows.items():
            if known.get(key) != row:
                yield key, row, key in known

    def _seal(self, connection: Connection, number: int, last: str, wall_ns: int) -> bool:
        """Return whether the chain is sealed: without a key, rows are stored all the same."""
        try:
            seed = own_secret(self._key, SEED_BYTES)
        except StorageError as wrong:
            _log.warning("%s", wrong)
            return False
        key = SigningKey(seed)
        text = seal_text(self._archive_id, number, last, wall_ns)
        connection.execute(
            "INSERT INTO seals VALUES (?, ?, ?, ?, ?)",
            [number, last, wall_ns, bytes(key.verify_key).hex(), key.sign(text).signature.hex()],
        )
        return True
