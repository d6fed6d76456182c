"""Check the chain and the seals of an archive that nobody writes, or the seal in a statement. Offline.

It finds the first row that was changed, added or removed behind the chain, and the first seal that is not of
its key. It cannot find: what was never measured; what the owner of the key changed and sealed again; entries
after the last seal; a whole archive in the state of an earlier seal. Keep the last seal elsewhere for that.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from analyzers.archive.seals.sealed_rows import TABLES, entry_hash, key_of, row_hashes, seal_text

PAGE = 10_000
_SEAL = re.compile(r"zeus-seal:([0-9a-f-]{36}):(\d+):([0-9a-f]{64}):(\d+):([0-9a-f]{64}):([0-9a-f]{128})")
"""A seal in a statement: archive, number, hash, time, public key, signature."""


class Seal(Struct, frozen=True):
    """A signed state of a chain."""

    archive_id: str
    number: int
    last: str
    """Hash of the last entry."""
    sealed_ns: int
    """UTC."""
    public: str
    signature: str

    @property
    def holds(self) -> bool:
        """Tell whether the owner of the public key signed it."""
        text = seal_text(self.archive_id, self.number, self.last, self.sealed_ns)
        try:
            VerifyKey(bytes.fromhex(self.public)).verify(text, bytes.fromhex(self.signature))
        except (CryptoError, ValueError):
            return False
        return True

    @property
    def word(self) -> str:
        """Return it as a statement has it."""
        parts = (self.archive_id, self.number, self.last, self.sealed_ns, self.public, self.signature)
        return "zeus-seal:" + ":".join(map(str, parts))

    @property
    def described(self) -> str:
        at = datetime.fromtimestamp(self.sealed_ns // 1_000_000_000, UTC)
        return f"sealed {at:%Y-%m-%d %H:%M:%S} UTC by key {fingerprint(self.public)}, entry {self.number}"


class Checked(Struct, frozen=True):
    """The outcome of a check."""

    entries: int
    rows: int
    seal: Seal | None
    """The last one. None: nothing is sealed."""
    wrong: tuple[str, ...]
    """What does not hold, a sentence each; the first is the earliest in the chain."""
    has_sought: bool = False
    """The chain has the entry of the seal that was sought."""


def fingerprint(public: str) -> str:
    return sha256(bytes.fromhex(public)).hexdigest()[:16]


def seal_of(statement: str) -> Seal | None:
    """Return the seal in a statement. None: it has none."""
    if (found := _SEAL.search(statement)) is None:
        return None
    archive_id, number, last, sealed_ns, public, signature = found.groups()
    return Seal(archive_id, int(number), last, int(sealed_ns), public, signature)


def check(connection: Any, key: str | None = None, sought: Seal | None = None) -> Checked:
    """Check an archive. ``key``: fingerprint of all seals. ``sought``: a seal from elsewhere."""
    [(archive_id,)] = connection.execute("SELECT archive_id FROM meta").fetchall()
    columns = "number, hash, sealed_ns, public_key, signature"
    stored = connection.execute(f"SELECT {columns} FROM seals ORDER BY number").fetchall()  # noqa: S608  (ours)
    seals = {int(number): Seal(archive_id, int(number), *rest) for number, *rest in stored}
    wrong = [
        f"seal of entry {each.number}: it was not signed by {'its' if key is None else 'this'} key."
        for each in seals.values()
        if not each.holds or (key is not None and fingerprint(each.public) != key)
    ]
    entries, last_of, broken = _follow(connection, seals)
    wrong += broken
    rows, changed = 0, []
    for table in TABLES.values():
        only = " WHERE kind IN ('run', 'epoch')" if table.name == "windows" else ""
        found: set[str] = set()
        for row in _pages(connection, f"{table.select}{only}"):
            rows += 1
            key_text = key_of(table, row)
            found.add(key_text)
            number, hashed = last_of.get((table.name, key_text), (0, ""))
            if not number:
                changed.append((entries + 1, f"{table.name} {key_text}: added behind the chain."))
            elif hashed not in row_hashes(row):
                changed.append((number, f"{table.name} {key_text}: changed since entry {number}."))
        changed += [
            (number, f"{name} {key_text}: removed since entry {number}.")
            for (name, key_text), (number, _) in last_of.items()
            if name == table.name and key_text not in found
        ]
    wrong += [sentence for _, sentence in sorted(changed)]
    has_sought = (
        sought is not None
        and sought.archive_id == archive_id
        and bool(
            connection.execute(
                "SELECT 1 FROM chain WHERE number = $1 AND hash = $2", [sought.number, sought.last]
            ).fetchone()
        )
    )
    return Checked(entries, rows, seals[max(seals)] if seals else None, tuple(wrong), has_sought)


def _follow(
    connection: Any, seals: dict[int, Seal]
) -> tuple[int, dict[tuple[str, str], tuple[int, str]], list[str]]:
    """Return the number of entries; number and hash of the last entry of each row; where the chain breaks."""
    before, expected = "", 0
    last_of: dict[tuple[str, str], tuple[int, str]] = {}
    wrong: list[str] = []
    last_seal = max(seals, default=0)
    query = 'SELECT number, "table", key, row, hash FROM chain ORDER BY number'
    for number, table, key, row, hashed in _pages(connection, query):
        expected += 1
        if not wrong and (number != expected or entry_hash(before, table, key, row) != hashed):
            wrong.append(f"chain: entry {expected}, {table} {key}, does not follow from the one before.")
        if not wrong and number in seals and seals[number].last != hashed:
            wrong.append(f"chain: entry {number} is not what its seal says.")
        if not wrong and number > last_seal > 0 and (table, key) in last_of:
            wrong.append(f"{table} {key}: changed by entry {number}, which no seal covers.")
        last_of[table, key] = number, row
        before = hashed
    missing = [number for number in seals if number > expected]
    if missing and not wrong:
        wrong.append(f"chain: entry {expected + 1} is missing, and sealed with entry {missing[0]}.")
    return expected, last_of, wrong


def _pages(connection: Any, query: str) -> Iterator[tuple[Any, ...]]:
    cursor = connection.execute(query)
    while rows := cursor.fetchmany(PAGE):
        yield from rows


def is_statement(path: Path) -> bool:
    """Tell whether a file is a text, and no archive."""
    with path.open("rb") as file:
        return b"\0" not in file.read(4_096)
