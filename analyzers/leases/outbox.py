"""Rows on their way from the analyzers of shards into the lake, as batches of bytes. Pure.

    analyzer: rows -> batches, in the transaction that checks its epoch -> zs.outbox
    archiver: batches -> rows, and one commit of the lake that takes these batches out of zs.outbox

Each batch is in the outbox or in the lake, whatever is killed. A row that comes again after a take-over
replaces the one of its key.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from analyzers.archive.rows.tables import KINDS
from analyzers.results.rows import CheckpointRow, Row
from analyzers.results.windows.step_columns import Derived, each_row
from zeus_stream.errors import MalformedError
from zeus_stream.protocol import codec

BATCH_ROWS = 1_000
"""Rows of a batch, at most: it is below what a message may hold."""


class Packed(NamedTuple):
    """Rows as bytes."""

    rows: int
    body: bytes


def pack(rows: Iterable[Derived]) -> Iterator[Packed]:
    """Yield rows as batches. Checkpoints stay out: they are large, and only the next holder needs them."""
    chosen = [row for row in each_row(rows) if not isinstance(row, CheckpointRow)]
    for begin in range(0, len(chosen), BATCH_ROWS):
        part = chosen[begin : begin + BATCH_ROWS]
        yield Packed(len(part), zlib.compress(codec.encode_records(part), 1))


def unpack(body: bytes) -> list[Row]:
    """Return the rows of a batch of the kinds that this version knows. Raises MalformedError."""
    try:
        records = codec.decode_records(zlib.decompress(body), KINDS)
    except zlib.error as wrong:
        raise MalformedError(f"batch of rows: could not be read: {wrong}.") from wrong
    return [record for record in records if isinstance(record, KINDS)]
