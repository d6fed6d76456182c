"""Rows of PostgreSQL that say who holds a part of the work. No other module speaks to PostgreSQL itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

import psycopg
from msgspec import Struct

from zeus_stream.errors import StorageError

TTL_S = 10.0
"""A holder that was silent for so long may be replaced."""

KEEPER = "keeper"
"""The name under which `zeus-stream lake keep` is held."""
ROWS = "rows"
"""The part whose holder takes rows out of the outbox."""


class Held(Struct, frozen=True):
    """A part that this process holds."""

    name: str
    holder: str
    epoch: int
    next: int
    """The sequence number of its stream that comes next."""


class Position(Struct, frozen=True, kw_only=True):
    """The end of what is archived of a log."""

    log_id: str
    host: str | None
    next_offset: int
    logged_ns: int | None


class Batch(Struct, frozen=True):
    """Rows of a shard that wait for the lake."""

    number: int
    shard: int
    body: bytes


class Part(Struct, frozen=True, kw_only=True):
    """A part, as `zeus-stream lake status` shows it."""

    name: str
    holder: str
    epoch: int
    next: int
    silent_s: float
    """Since its holder renewed it last."""


class Holders:
    """Holders and positions, in one database."""

    def __init__(self, dsn: str) -> None:
        """Connect at the first use. ``dsn``: of libpq, such as ``host=/run/postgresql dbname=lake``."""
        self._dsn = dsn
        self._connection: psycopg.Connection | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def create(self) -> None:
        """Make tables and trigger, unless they are there. Raises StorageError."""
        text = files("analyzers.lake").joinpath("fencing.sql").read_bytes()
        with self._working() as connection:
            connection.execute(text)

    def take(self, name: str, holder: str, ttl_s: float = TTL_S) -> Held | None:
        """Take a part that nobody holds, or that its holder was silent about for too long.

        Returns:
            None: another process holds it. A part that this process held is held again, under another epoch.
        """
        with self._working() as connection:
            row = connection.execute(
                """
                INSERT INTO zs.holders AS held
                VALUES (%(name)s, %(holder)s, 1, now() + %(ttl)s * interval '1 s', 1)
                ON CONFLICT (name) DO UPDATE
                SET holder = excluded.holder, epoch = held.epoch + 1, until = excluded.until
                WHERE held.until < now() OR held.holder = excluded.holder
                RETURNING epoch, next
                """,
                {"name": name, "holder": holder, "ttl": ttl_s},
            ).fetchone()
        return None if row is None else Held(name, holder, row[0], row[1])

    def renew(self, held: Held, ttl_s: float = TTL_S) -> bool:
        """Extend the time of the holder. Return False if another process has taken the part."""
        with self._working() as connection:
            done = connection.execute(
                "UPDATE zs.holders SET until = now() + %s * interval '1 s' WHERE name = %s AND epoch = %s",
                (ttl_s, held.name, held.epoch),
            )
        return done.rowcount == 1

    def release(self, held: Held) -> None:
        """Give a part up: another process may take it at once."""
        with self._working() as connection:
            connection.execute(
                "UPDATE zs.holders SET until = now() - interval '1 ms' WHERE name = %s AND epoch = %s",
                (held.name, held.epoch),
            )

    def rewind(self, held: Held) -> None:
        """Begin the stream of a part again: the broker has lost it. The logs' positions stay."""
        with self._working() as connection:
            connection.execute(
                "UPDATE zs.holders SET next = 1 WHERE name = %s AND epoch = %s", (held.name, held.epoch)
            )

    def positions(self) -> list[Position]:
        """Return how far each log is archived."""
        with self._working() as connection:
            rows = connection.execute("SELECT log_id, host, next_offset, logged_ns FROM zs.logs").fetchall()
        return [
            Position(log_id=log_id, host=host, next_offset=offset, logged_ns=logged_ns)
            for log_id, host, offset, logged_ns in rows
        ]

    def outbox(self, max_bytes: int) -> list[Batch]:
        """Return the first batches of rows that wait for the lake: at least one, if there is any."""
        with self._working() as connection:
            rows = connection.execute(
                """
                SELECT id, shard, body FROM zs.outbox JOIN (
                    SELECT id, sum(octet_length(body)) OVER (ORDER BY id) - octet_length(body) AS before
                    FROM (SELECT id, body FROM zs.outbox ORDER BY id LIMIT 10000) AS first
                ) AS counted USING (id) WHERE before < %s ORDER BY id
                """,
                (max_bytes,),
            ).fetchall()
        return [Batch(number, shard, bytes(body)) for number, shard, body in rows]

    def outbox_batches(self) -> int:
        """Return the number of batches that wait for the lake."""
        with self._working() as connection:
            row = connection.execute("SELECT count(*) FROM zs.outbox").fetchone()
        return row[0] if row else 0

    def parts(self) -> list[Part]:
        """Return all parts that archivers hold or held, by name."""
        with self._working() as connection:
            rows = connection.execute(
                """
                SELECT name, holder, epoch, next, extract(epoch FROM now() - until)::float8 FROM zs.holders
                WHERE name <> %s ORDER BY name
                """,
                (KEEPER,),
            ).fetchall()
        return [
            Part(name=name, holder=holder, epoch=epoch, next=number, silent_s=over_s + TTL_S)
            for name, holder, epoch, number, over_s in rows
        ]

    @contextmanager
    def _working(self) -> Iterator[psycopg.Connection]:
        """Give a connection in autocommit. After an error the next use connects again."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(self._dsn, autocommit=True, connect_timeout=10)
            yield self._connection
        except psycopg.Error as wrong:
            self.close()
            says = str(wrong).strip().splitlines()[0] if str(wrong).strip() else type(wrong).__name__
            raise StorageError(
                f"lake: could not ask PostgreSQL: {says}. Start the server, or name another with --lake."
            ) from wrong
