"""Leases of a site: rows of PostgreSQL that say which process holds what. One clock: that of the database.

take: a lease that nobody holds -> a higher epoch
renew: leases that are held -> those that still are
remember: rows of a shard, in one transaction with the check that its epoch is the latest

Archivers hold parts of the stream and the outbox, analyzers hold shards, and one process at a time is the
keeper of a lake. With `analyzers.lake.roles`, this is the only module that speaks to PostgreSQL.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, LiteralString, NamedTuple

import psycopg
from msgspec import Struct
from psycopg.rows import class_row

from analyzers.archive.rows.tables import KINDS
from analyzers.results.rows import CheckpointRow, Derived, Row, each_row
from zeus_stream.errors import MalformedError, RefusedError, StorageError
from zeus_stream.protocol import codec

VERSION = 2
"""Of these tables."""
CONNECT_S = 5
STATEMENT_MS = 10_000
"""A statement that takes longer fails: a holder does not wait for a server that hangs."""
OUTBOX_BYTES = 64 << 20
"""Rows of a shard that wait for the lake; the oldest leave for more."""
SHED_EVERY = 100
"""Times that rows are stored between two looks at how many wait."""
GIVEN_UP_S = 3600.0
"""A lease that is given up counts as over for so long: nobody waits for its holder."""
COMMIT_LOCK = "hashtext('zs.commit')"
"""Held while a lake's snapshot is committed: commits that race for it are done again and again."""
ROWS = "rows"
"""The lease of the outbox: its holder takes rows into the lake."""
KEEPER = "keeper"
"""The lease of `zeus-stream lake keep`."""
SHARD = "shard-"
"""Begins the name of a shard's lease; its number follows."""


EXTENDED: LiteralString = """
    WITH kept AS (
        SELECT name, mine.behind_ms FROM zs.leases
        JOIN unnest(%(names)s::text[], %(epochs)s::bigint[], %(behind)s::bigint[])
            AS mine(name, epoch, behind_ms) USING (name, epoch)
        WHERE site = %(site)s AND holder = %(holder)s ORDER BY name FOR UPDATE OF leases
    ), extended AS (
        UPDATE zs.leases
        SET until = now() + %(ttl)s * interval '1 s', ttl_s = %(ttl)s, behind_ms = kept.behind_ms
        FROM kept WHERE site = %(site)s AND leases.name = kept.name
        RETURNING leases.name
    )
"""
"""Extends the leases of `_to_extend`."""


class SiteLease(Struct, frozen=True):
    """A lease that this process holds."""

    name: str
    epoch: int
    next: int = 1
    """Of a part: the sequence number of its stream that comes next."""


class LeaseState(Struct, frozen=True, kw_only=True):
    """A lease as the status of a site shows it."""

    name: str
    holder: str
    epoch: int
    next: int
    left_s: float
    """Until it ends; negative: it has ended."""
    silent_s: float
    """Since its holder renewed it."""
    behind_s: float
    """Of a shard: the age of the oldest frame that was not interpreted, at the last renewal."""


class SiteShards(Struct, frozen=True):
    """The shards of a site at one renewal."""

    kept: frozenset[str]
    """Of the leases that were held: those that still are."""
    free: tuple[int, ...]
    analyzers: int
    """That are alive, this one included."""


class OutboxBatch(Struct, frozen=True):
    """Rows of a shard that wait for the lake."""

    number: int
    shard: int
    body: bytes


class RememberedRow(NamedTuple):
    """A row that later runs need, under its key."""

    kind: str
    key: str
    body: bytes


class Packed(NamedTuple):
    """Rows as bytes."""

    rows: int
    body: bytes


class SiteLeases:
    """The leases of one site, for one process. Every method may raise StorageError. For one thread."""

    def __init__(self, dsn: str, site: str, holder: str) -> None:
        """Connect at the first use. ``dsn``: of libpq, such as ``host=/run/postgresql dbname=lake``."""
        self.dsn = dsn
        self.site = site
        self.holder = holder
        self._connection: psycopg.Connection | None = None
        self._lake = False
        self._stored = 0

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def create(self) -> None:
        text = files("analyzers.leases").joinpath("leases.sql").read_bytes()
        with self.working() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('zs.leases'))")
            there = connection.execute("SELECT to_regclass('zs.leases') IS NOT NULL").fetchone()
            if there != (True,):
                connection.execute(text)

    def run(self, script: bytes) -> None:
        """Run statements of ours, all or none."""
        with self.working() as connection, connection.transaction():
            connection.execute(script)

    # ---- leases

    def take(self, names: Collection[str], ttl_s: float) -> list[SiteLease]:
        """Take leases that nobody holds or that have ended. One that was held has another epoch then."""
        rows = self._all(
            """
            INSERT INTO zs.leases AS held (site, name, holder, epoch, until, ttl_s)
            SELECT %(site)s, name, %(holder)s, 1, now() + %(ttl)s * interval '1 s', %(ttl)s
            FROM unnest(%(names)s::text[]) AS names(name) ORDER BY name
            ON CONFLICT (site, name) DO UPDATE
            SET holder = excluded.holder, epoch = held.epoch + 1, until = excluded.until,
                ttl_s = excluded.ttl_s
            WHERE held.until < now() OR held.holder = excluded.holder
            RETURNING name, epoch, next
            """,
            names=list(names),
            ttl=ttl_s,
        )
        return [SiteLease(*row) for row in rows]

    def renew(self, held: Mapping[str, int], ttl_s: float) -> frozenset[str]:
        """Extend leases, given by name with their epochs. Return the names of those that are still held.

        One that was given up is not.
        """
        if not held:
            return frozenset()
        statement = EXTENDED + "SELECT name FROM extended"  # noqa: S608  (our own words)
        return frozenset(name for (name,) in self._all(statement, **_to_extend(held, {}, ttl_s)))

    def release(self, name: str, epoch: int) -> None:
        """Give a lease up: another process may take it at once."""
        self._run(
            "UPDATE zs.leases SET until = now() - %(over)s * interval '1 s', holder = ''"
            " WHERE site = %(site)s AND name = %(name)s AND epoch = %(epoch)s",
            over=GIVEN_UP_S,
            name=name,
            epoch=epoch,
        )

    def states(self) -> list[LeaseState]:
        with self.working() as connection:
            cursor = connection.cursor(row_factory=class_row(LeaseState))
            return cursor.execute(
                """
                SELECT name, CASE WHEN until < now() THEN 'none' ELSE holder END AS holder, epoch, next,
                    extract(epoch FROM until - now())::float8 AS left_s,
                    CASE holder WHEN '' THEN extract(epoch FROM now() - until) - %s
                        ELSE greatest(ttl_s - extract(epoch FROM until - now()), 0) END::float8 AS silent_s,
                    behind_ms / 1000.0::float8 AS behind_s
                FROM zs.leases WHERE site = %s
                ORDER BY rtrim(name, '0123456789'), length(name), name
                """,
                (GIVEN_UP_S, self.site),
            ).fetchall()

    # ---- parts of the stream, and the outbox

    def archivers(self) -> int:
        """Return the number of processes that hold parts of the stream."""
        [(count,)] = self._all(
            "SELECT count(DISTINCT holder) FROM zs.leases"
            " WHERE site = %(site)s AND name LIKE 'frames-%%' AND until >= now()"
        )
        return int(count)

    def positions_of(self, held: Mapping[str, int]) -> dict[str, int]:
        """Return where the stream of each part goes on, of those that are still held under these epochs."""
        return dict(
            self._all(
                "SELECT name, next FROM zs.leases"
                " JOIN unnest(%(names)s::text[], %(epochs)s::bigint[]) AS mine(name, epoch)"
                " USING (name, epoch) WHERE site = %(site)s",
                names=list(held),
                epochs=list(held.values()),
            )
        )

    def move(self, name: str, epoch: int, following: int) -> None:
        """Let the stream of a part go on at another message. The positions of logs stay."""
        self._run(
            "UPDATE zs.leases SET next = %(following)s"
            " WHERE site = %(site)s AND name = %(name)s AND epoch = %(epoch)s",
            name=name,
            epoch=epoch,
            following=following,
        )

    def log_positions(self) -> dict[str, tuple[str | None, int, int | None]]:
        """Return by log: its host, the offset that comes next, and when its last frame was logged."""
        rows = self._all("SELECT log_id, host, next_offset, logged_ns FROM zs.logs")
        return {log_id: (host, offset, logged_ns) for log_id, host, offset, logged_ns in rows}

    def outbox(self, max_bytes: int) -> list[OutboxBatch]:
        """Return the first batches of rows that wait for the lake: at least one, if there is any."""
        rows = self._all(
            """
            SELECT id, shard, body FROM zs.outbox JOIN (
                SELECT id, sum(octet_length(body)) OVER (ORDER BY id) - octet_length(body) AS before
                FROM (SELECT id, body FROM zs.outbox WHERE site = %(site)s ORDER BY id LIMIT 10000) AS first
            ) AS counted USING (id) WHERE before < %(most)s ORDER BY id
            """,
            most=max_bytes,
        )
        return [OutboxBatch(*row) for row in rows]

    def outbox_batches(self) -> int:
        """Return the number of batches that wait for the lake; without a lake none does."""
        if not self._has_lake():
            return 0
        [(count,)] = self._all("SELECT count(*) FROM zs.outbox WHERE site = %(site)s")
        return int(count)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Let no other archiver commit for as long as a block runs, or for STATEMENT_MS without it."""
        locked = False
        with self.working() as connection:
            try:
                connection.execute(f"SELECT pg_advisory_lock({COMMIT_LOCK})".encode())
                locked = True
            except psycopg.errors.QueryCanceled:
                pass  # its holder hangs: DuckLake itself keeps commits apart, only slower
        try:
            yield
        finally:
            if locked:
                with self.working() as connection:
                    connection.execute(f"SELECT pg_advisory_unlock({COMMIT_LOCK})".encode())

    # ---- shards

    def open_shards(self, shards: int) -> None:
        """Make the tables, unless they are there. Raises RefusedError: of another version or shard count."""
        self.create()
        self._run(
            "INSERT INTO zs.sites VALUES (%(site)s, %(shards)s, %(version)s) ON CONFLICT DO NOTHING",
            shards=shards,
            version=VERSION,
        )
        [(known, version)] = self._all("SELECT shards, version FROM zs.sites WHERE site = %(site)s")
        if version != VERSION:
            raise RefusedError(
                f"analyze: could not start: the shards of site {self.site} are of version {version}, not"
                f" {VERSION}. Install the zeus-stream that made them, or name another --database."
            )
        if known != shards:
            raise RefusedError(
                f"analyze: could not start: site {self.site} has {known} shards, not {shards}. Start with"
                f" --shards {known}, or stop all analyzers and remove its row from zs.sites."
            )

    def renew_shards(
        self, held: Mapping[str, int], behind_ms: Mapping[str, int], shards: int, ttl_s: float, *, ready: bool
    ) -> SiteShards:
        """Renew the leases of shards, given by name with their epochs. Return how the site stands.

        ``behind_ms``: the age of the oldest frame not interpreted. ``ready``: this analyzer may take shards,
        so the others leave it a share. One statement: on a crowded machine each takes its time.
        """
        [(kept, free, others)] = self._all(
            EXTENDED  # noqa: S608  (our own words)
            + """
            , alive AS (
                INSERT INTO zs.analyzers
                SELECT %(site)s, %(holder)s, now() + %(ttl)s * interval '1 s' WHERE %(ready)s
                ON CONFLICT (site, holder) DO UPDATE SET until = excluded.until
            )
            SELECT
                array(SELECT name FROM extended),
                array(
                    SELECT number FROM generate_series(0, %(shards)s - 1) AS all_of_them(number)
                    WHERE NOT EXISTS (
                        SELECT FROM zs.leases
                        WHERE site = %(site)s AND name = %(shard)s || number AND until >= now()
                    ) AND %(shard)s || number NOT IN (SELECT name FROM extended)
                    ORDER BY number
                ),
                (SELECT count(*) FROM zs.analyzers
                 WHERE site = %(site)s AND until >= now() AND holder <> %(holder)s)
            """,
            shards=shards,
            shard=SHARD,
            ready=ready,
            **_to_extend(held, behind_ms, ttl_s),
        )
        return SiteShards(frozenset(kept), tuple(free), others + 1)

    def take_shard(self, shard: int, ttl_s: float) -> int | None:
        """Take a shard that nobody holds. Return its epoch; None: another analyzer was quicker."""
        taken = self.take([f"{SHARD}{shard}"], ttl_s)
        return taken[0].epoch if taken else None

    def leave(self) -> None:
        self._run("DELETE FROM zs.analyzers WHERE site = %(site)s AND holder = %(holder)s")

    def remember(
        self, shard: int, epoch: int, memories: Sequence[RememberedRow], batches: Sequence[Packed] = ()
    ) -> int:
        """Keep what later runs of a shard need, and rows for the lake, while this epoch is the latest.

        Memories replace those of the same key. Return how many waiting rows were removed, as more than
        OUTBOX_BYTES waited. Raises RefusedError: another analyzer has the shard; nothing was kept.
        """
        with self.working() as connection, connection.transaction():
            row = connection.execute(
                "SELECT holder FROM zs.leases WHERE site = %s AND name = %s AND epoch = %s FOR SHARE",
                (self.site, f"{SHARD}{shard}", epoch),
            ).fetchone()
            if row is None:
                raise RefusedError(
                    f"shard {shard} of site {self.site}: could not be written under epoch {epoch}: another"
                    " analyzer has taken it over. It decides from now on; this one has stopped."
                )
            if memories:
                connection.cursor().executemany(
                    "INSERT INTO zs.remembered VALUES (%s, %s, %s, %s, %s)"
                    " ON CONFLICT (site, shard, kind, key) DO UPDATE SET body = excluded.body",
                    [(self.site, shard, *memory) for memory in memories],
                )
            if not batches or not self._has_lake():
                return 0
            connection.cursor().executemany(
                "INSERT INTO zs.outbox (site, shard, rows, body) VALUES (%s, %s, %s, %s)",
                [(self.site, shard, *batch) for batch in batches],
            )
            self._stored += 1
            return self._shed(shard) if self._stored % SHED_EVERY == 0 else 0

    def _has_lake(self) -> bool:
        """Tell whether this database is that of a lake. A lake that is made later is seen."""
        if not self._lake:
            [(self._lake,)] = self._all("SELECT to_regclass('zs.outbox') IS NOT NULL")
        return self._lake

    def _shed(self, shard: int) -> int:
        """Remove the oldest rows that wait for the lake, if too many do. Return the number of rows."""
        gone = self._all(
            """
            DELETE FROM zs.outbox USING (
                SELECT id, sum(octet_length(body)) OVER (ORDER BY id DESC) AS bytes FROM zs.outbox
                WHERE site = %(site)s AND shard = %(shard)s
            ) AS counted
            WHERE outbox.id = counted.id AND counted.bytes > %(most)s RETURNING outbox.rows
            """,
            shard=shard,
            most=OUTBOX_BYTES,
        )
        return sum(rows for (rows,) in gone)

    def remembered(self, shard: int) -> list[RememberedRow]:
        rows = self._all(
            "SELECT kind, key, body FROM zs.remembered"
            " WHERE site = %(site)s AND shard = %(shard)s ORDER BY kind, key",
            shard=shard,
        )
        return [RememberedRow(*row) for row in rows]

    # ---- connection

    def _all(self, query: LiteralString, **values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query, in which ``site`` and ``holder`` are this one's."""
        with self.working() as connection:
            return connection.execute(query, {"site": self.site, "holder": self.holder, **values}).fetchall()

    def _run(self, statement: LiteralString, **values: object) -> None:
        """Run a statement that gives no rows, with values as `_all` has them."""
        with self.working() as connection:
            connection.execute(statement, {"site": self.site, "holder": self.holder, **values})

    @contextmanager
    def working(self) -> Iterator[psycopg.Connection]:
        """Give a connection in autocommit. After an error the next use connects again."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(
                    self.dsn,
                    autocommit=True,
                    connect_timeout=CONNECT_S,
                    options=f"-c statement_timeout={STATEMENT_MS}",
                )
            yield self._connection
        except psycopg.Error as wrong:
            self.close()
            says = str(wrong).strip().splitlines()[0] if str(wrong).strip() else type(wrong).__name__
            raise StorageError(
                f"PostgreSQL of the site: could not be asked: {says}. Start the server, give this role the"
                " right to use the schema zs, or correct --database."
            ) from wrong


def _to_extend(
    held: Mapping[str, int], behind_ms: Mapping[str, int], ttl_s: float
) -> dict[str, list[str] | list[int] | float]:
    return {
        "names": list(held),
        "epochs": list(held.values()),
        "behind": [behind_ms.get(name, 0) for name in held],
        "ttl": ttl_s,
    }


BATCH_ROWS = 1_000
"""Rows of a batch, at most: it is below what a message may hold."""


# ---- rows on their way into the lake --------------------------------------------------------------------
#
#     analyzer: rows -> batches, in the transaction that checks its epoch -> zs.outbox
#     archiver: batches -> rows, and one commit of the lake that takes these batches out of zs.outbox
#
# Each batch is in the outbox or in the lake, whatever is killed. A row that comes again after a take-over
# replaces the one of its key.


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
