"""Rows of PostgreSQL that say which analyzer decides on which shard. One clock: that of the database.

beat: renew what is held -> which shards are free, how many analyzers there are
take: a shard that nobody holds -> a higher epoch
remember: rows of a shard, in one transaction with the check that its epoch is the latest
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import NamedTuple

import psycopg
from msgspec import Struct

from analyzers.lake.outbox import Packed
from zeus_stream.errors import RefusedError, StorageError

VERSION = 1
"""Of these tables."""
CONNECT_S = 3
STATEMENT_MS = 2_500
"""A statement that takes longer fails: a holder has to know in time."""
OUTBOX_BYTES = 64 << 20
"""Rows of a shard that wait for the lake; the oldest leave for more."""
SHED_EVERY = 100
"""Times that rows are stored between two looks at how many wait."""


class Memory(NamedTuple):
    """A row that later runs need, under its key."""

    kind: str
    key: str
    body: bytes


class Shard(Struct, frozen=True, kw_only=True):
    """A shard, as the status shows it."""

    shard: int
    holder: str
    epoch: int
    left_s: float
    """Until its lease ends; negative: it has ended."""
    behind_s: float
    """The age of the oldest frame that was not interpreted, at the last renewal."""


class Held(Struct, frozen=True):
    """A shard that is held."""

    epoch: int
    behind_ms: int = 0


class Beat(Struct, frozen=True):
    """The state of a site's shards, as of one renewal."""

    kept: frozenset[int]
    """Of those that were held: those that still are."""
    free: tuple[int, ...]
    analyzers: int
    """That are alive, this one included."""


class ShardLeases:
    """The shards of one site, for one analyzer. Every method may raise StorageError. For one thread."""

    def __init__(self, dsn: str, site: str, holder: str, ttl_s: float) -> None:
        """Connect at the first use. ``dsn``: of libpq, such as ``host=/run/postgresql dbname=zeus``."""
        self._dsn = dsn
        self._site = site
        self._holder = holder
        self._ttl_s = ttl_s
        self._connection: psycopg.Connection | None = None
        self._lake = False
        self._stored = 0

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def open(self, shards: int) -> None:
        """Make the tables, unless they are there, and check that the site has so many shards.

        Raises:
            RefusedError: it has another number, or the tables are of another version.
        """
        text = files("analyzers.shards").joinpath("shards.sql").read_bytes()
        with self._working() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('zs.shards'))")
            there = connection.execute("SELECT to_regclass('zs.sites') IS NOT NULL").fetchone()
            if there != (True,):
                connection.execute(text)
            connection.execute(
                "INSERT INTO zs.sites VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
                (self._site, shards, VERSION),
            )
            row = connection.execute(
                "SELECT shards, version FROM zs.sites WHERE site = %s", (self._site,)
            ).fetchone()
        known, version = row or (shards, VERSION)
        if version != VERSION:
            raise RefusedError(
                f"analyze: could not start: the shards of site {self._site} are of version {version}, not"
                f" {VERSION}. Install the zeus-stream that made them, or name another --lease-database."
            )
        if known != shards:
            raise RefusedError(
                f"analyze: could not start: site {self._site} has {known} shards, not {shards}. Start with"
                f" --shards {known}, or stop all analyzers and remove its row from zs.sites."
            )

    def beat(self, held: Mapping[int, Held], shards: int) -> Beat:
        """Renew the leases of shards. Return how the site stands."""
        with self._working() as connection, connection.transaction():
            connection.execute(
                """
                INSERT INTO zs.analyzers VALUES (%(site)s, %(holder)s, now() + %(ttl)s * interval '1 s')
                ON CONFLICT (site, holder) DO UPDATE SET until = excluded.until
                """,
                self._named(),
            )
            kept = connection.execute(
                """
                UPDATE zs.shards SET until = now() + %(ttl)s * interval '1 s', behind_ms = mine.behind_ms
                FROM unnest(%(held)s::integer[], %(epochs)s::bigint[], %(behind)s::bigint[])
                    AS mine(shard, epoch, behind_ms)
                WHERE site = %(site)s AND shards.shard = mine.shard AND shards.epoch = mine.epoch
                RETURNING shards.shard
                """,
                self._named()
                | {
                    "held": list(held),
                    "epochs": [each.epoch for each in held.values()],
                    "behind": [each.behind_ms for each in held.values()],
                },
            ).fetchall()
            taken = connection.execute(
                "SELECT shard FROM zs.shards WHERE site = %(site)s AND until >= now()", self._named()
            ).fetchall()
            alive = connection.execute(
                "SELECT count(*) FROM zs.analyzers WHERE site = %(site)s AND until >= now()", self._named()
            ).fetchone()
        busy = {shard for (shard,) in taken}
        free = tuple(shard for shard in range(shards) if shard not in busy)
        return Beat(frozenset(shard for (shard,) in kept), free, alive[0] if alive else 1)

    def take(self, shard: int) -> int | None:
        """Take a shard that nobody holds. Return its epoch; None: another analyzer was quicker."""
        with self._working() as connection:
            row = connection.execute(
                """
                INSERT INTO zs.shards AS held
                VALUES (%(site)s, %(shard)s, %(holder)s, 1, now() + %(ttl)s * interval '1 s')
                ON CONFLICT (site, shard) DO UPDATE
                SET holder = excluded.holder, epoch = held.epoch + 1, until = excluded.until
                WHERE held.until < now()
                RETURNING epoch
                """,
                self._named() | {"shard": shard},
            ).fetchone()
        return None if row is None else int(row[0])

    def release(self, shard: int, epoch: int) -> None:
        """Give a shard up: another analyzer may take it at once."""
        with self._working() as connection:
            connection.execute(
                "UPDATE zs.shards SET until = now() - interval '1 hour'"
                " WHERE site = %(site)s AND shard = %(shard)s AND epoch = %(epoch)s",
                self._named() | {"shard": shard, "epoch": epoch},
            )

    def leave(self) -> None:
        """Count no more as an analyzer of the site."""
        with self._working() as connection:
            connection.execute(
                "DELETE FROM zs.analyzers WHERE site = %(site)s AND holder = %(holder)s", self._named()
            )

    def shards(self) -> list[Shard]:
        """Return all shards that were ever held."""
        with self._working() as connection:
            rows = connection.execute(
                """
                SELECT shard, holder, epoch, extract(epoch FROM until - now())::float8,
                    behind_ms / 1000.0::float8
                FROM zs.shards WHERE site = %(site)s ORDER BY shard
                """,
                self._named(),
            ).fetchall()
        return [
            Shard(shard=shard, holder=holder, epoch=epoch, left_s=left_s, behind_s=behind_s)
            for shard, holder, epoch, left_s, behind_s in rows
        ]

    def remember(
        self, shard: int, epoch: int, memories: Sequence[Memory], batches: Sequence[Packed] = ()
    ) -> int:
        """Keep what later runs of a shard need, and rows for the lake, while this epoch is the latest.

        Args:
            shard: of the site.
            epoch: under which it is held.
            memories: replace those of the same key.
            batches: rows for the lake. Without a lake in this database they are left out.

        Returns:
            The number of rows that had waited for the lake and were removed: no archiver took them, and
            more than OUTBOX_BYTES of this shard waited.

        Raises:
            RefusedError: another analyzer has taken the shard over. Nothing was kept.
        """
        with self._working() as connection, connection.transaction():
            row = connection.execute(
                "SELECT holder FROM zs.shards WHERE site = %(site)s AND shard = %(shard)s"
                " AND epoch = %(epoch)s FOR SHARE",
                self._named() | {"shard": shard, "epoch": epoch},
            ).fetchone()
            if row is None:
                raise RefusedError(
                    f"shard {shard} of site {self._site}: could not be written under epoch {epoch}: another"
                    " analyzer has taken it over. It decides from now on; this one has stopped."
                )
            if memories:
                connection.cursor().executemany(
                    "INSERT INTO zs.remembered VALUES (%s, %s, %s, %s, %s)"
                    " ON CONFLICT (site, shard, kind, key) DO UPDATE SET body = excluded.body",
                    [(self._site, shard, *memory) for memory in memories],
                )
            if not batches or not self._has_lake(connection):
                return 0
            connection.cursor().executemany(
                "INSERT INTO zs.outbox (site, shard, rows, body) VALUES (%s, %s, %s, %s)",
                [(self._site, shard, *batch) for batch in batches],
            )
            self._stored += 1
            return self._shed(connection, shard) if self._stored % SHED_EVERY == 0 else 0

    def _has_lake(self, connection: psycopg.Connection) -> bool:
        """Tell whether this database is that of a lake. A lake that is made later is seen."""
        if not self._lake:
            row = connection.execute("SELECT to_regclass('zs.outbox') IS NOT NULL").fetchone()
            self._lake = row == (True,)
        return self._lake

    def _shed(self, connection: psycopg.Connection, shard: int) -> int:
        """Remove the oldest rows that wait for the lake, if too many do. Return the number of rows."""
        gone = connection.execute(
            """
            DELETE FROM zs.outbox USING (
                SELECT id, sum(octet_length(body)) OVER (ORDER BY id DESC) AS bytes FROM zs.outbox
                WHERE site = %(site)s AND shard = %(shard)s
            ) AS counted
            WHERE outbox.id = counted.id AND counted.bytes > %(most)s RETURNING outbox.rows
            """,
            self._named() | {"shard": shard, "most": OUTBOX_BYTES},
        ).fetchall()
        return sum(rows for (rows,) in gone)

    def remembered(self, shard: int) -> list[Memory]:
        """Return what a shard remembers."""
        with self._working() as connection:
            rows = connection.execute(
                "SELECT kind, key, body FROM zs.remembered"
                " WHERE site = %(site)s AND shard = %(shard)s ORDER BY kind, key",
                self._named() | {"shard": shard},
            ).fetchall()
        return [Memory(kind, key, bytes(body)) for kind, key, body in rows]

    def _named(self) -> dict[str, object]:
        return {"site": self._site, "holder": self._holder, "ttl": self._ttl_s}

    @contextmanager
    def _working(self) -> Iterator[psycopg.Connection]:
        """Give a connection in autocommit. After an error the next use connects again."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(
                    self._dsn,
                    autocommit=True,
                    connect_timeout=CONNECT_S,
                    options=f"-c statement_timeout={STATEMENT_MS}",
                )
            yield self._connection
        except psycopg.Error as wrong:
            self.close()
            says = str(wrong).strip().splitlines()[0] if str(wrong).strip() else type(wrong).__name__
            raise StorageError(
                f"lease database: could not be asked: {says}. Start the server, give its role the right to"
                " use the schema zs, or correct --lease-database."
            ) from wrong
