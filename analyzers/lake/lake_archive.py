"""Frames of one part of a site, archived in a lake exactly once.

    frames -> rows, as in a file -> one commit: rows in Parquet, positions of logs, sequence number, epoch

PostgreSQL commits all of it or nothing (`fencing.sql`). Another process that takes the part over makes
every later commit of this one fail. After any error the archive is opened again: it goes on where the last
commit was.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import duckdb
import pyarrow as pa

from analyzers.archive.duckdb_file import Archive
from analyzers.archive.opening import THREADS, Connection
from analyzers.archive.replay_source import Log
from analyzers.archive.rollups.placing import Placing
from analyzers.archive.rows import columns
from analyzers.archive.rows.event_rows import EventRows
from analyzers.archive.store import Received
from analyzers.lake.catalog import LAKE, attach, check, why
from analyzers.lake.holders import Held, Holders
from analyzers.lake.renewal import Renewal
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.protocol.frames import Body, Frame
from zeus_stream.settings import Settings


class LakeArchive(Archive):
    """A lake, as the holder of one part of it writes it."""

    def __init__(self, connection: Connection, holders: Holders, held: Held) -> None:
        """For `take`."""
        super().__init__(Path(LAKE), connection)
        self._holders = holders
        self.held = held
        self._logs = {
            each.log_id: Log(each.host, each.next_offset, each.logged_ns) for each in holders.positions()
        }
        self._until = held.next
        self._renewal: Renewal | None = None
        self._declared: dict[str, object] = {}
        """What the commit under way changes beside rows: positions of logs, or batches of the outbox."""

    @classmethod
    def take(
        cls, dsn: str, settings: Settings, *, part: str, holder: str, renewing: bool = False
    ) -> Self | None:
        """Take a part and open the lake for it. None: another process holds the part.

        Args:
            dsn, settings: of the lake.
            part: its name.
            holder: this process.
            renewing: extend the time of the holder from now on, until it is closed.

        Raises:
            StorageError: the lake cannot be opened, or is one of another version.
        """
        holders = Holders(dsn)
        try:
            held = holders.take(part, holder)
            if held is None:
                holders.close()
                return None
        except BaseException:
            holders.close()
            raise
        with ExitStack() as on_failure:
            on_failure.callback(holders.close)
            renewal = Renewal(dsn, held) if renewing else None
            if renewal is not None:
                on_failure.callback(renewal.end)
            connection = attach(dsn, settings, threads=THREADS)
            on_failure.callback(connection.close)
            check(connection)
            try:
                taken = cls(connection, holders, held)
            except duckdb.Error as wrong:
                raise StorageError(f"{LAKE}: could not be opened: {why(str(wrong))}") from wrong
            taken._renewal = renewal
            on_failure.pop_all()
        return taken

    def close(self) -> None:
        """Close the connections. The part stays held until its time is over."""
        if self._renewal is not None:
            self._renewal.end()
        super().close()
        self._holders.close()

    def next_offsets(self) -> dict[str, int]:
        """Return the offset that comes next, by log."""
        return {log_id: log.next_offset for log_id, log in self._logs.items()}

    def renew(self) -> bool:
        """Extend the time of the holder. False: another process has taken the part."""
        if self._renewal is not None:
            self._renewal.step()
        return self._holders.renew(self.held)

    def rewind(self) -> None:
        """Begin the stream of the part again: the broker has lost it. Open the archive again then."""
        self._holders.rewind(self.held)

    def put_stream(self, received: Sequence[Received], until: int) -> None:
        """Store what was received, and that the stream goes on with the sequence number ``until``.

        Raises:
            StorageError: it could not be stored, or the part was taken by another process. Open it again.
            RefusedError: a frame is missing before another.
        """
        self._until = until
        self.put(received)

    def _received_tables(
        self, fresh: Sequence[tuple[Frame, Body | EventRows | None]], placing: Placing
    ) -> dict[str, pa.Table]:
        """Return the rows of frames by table; readings by GPU and time, as the lake has them."""
        tables = super()._received_tables(fresh, placing)
        if "readings" in tables:
            tables["readings"] = columns.by_gpu(tables["readings"])
        return tables

    def _advance(self, logs: Mapping[str, Log], interpreted: Mapping[str, int]) -> None:
        if interpreted:
            raise RefusedError(
                "lake: could not store what was interpreted: a part holds frames only. Report it."
            )
        positions = [
            {
                "log_id": log_id,
                "host": log.host,
                "first": self._logs[log_id].next_offset if log_id in self._logs else 0,
                "next": log.next_offset,
                "logged_ns": log.logged_ns,
            }
            for log_id, log in logs.items()
        ]
        self._declared = {"logs": positions}
        # As one text: DuckDB asks of each value in a list whether it is one of pandas, and looks for pandas
        # in all of sys.path if it is not there.
        self._connection.execute(
            "INSERT INTO logs SELECT each ->> 'log_id', each ->> 'host', (each ->> 'next')::BIGINT,"
            " (each ->> 'logged_ns')::BIGINT, 0 FROM (SELECT unnest($1::JSON[]) AS each)",
            [json.dumps(positions)],
        )

    def _add_hours(self) -> None:
        """Leave the hours to the keeper: two writers of one hour would refuse each other."""

    def _add_instructions(self) -> None:
        """Add rows of their own: those of one minute add up. A lake's rows are not replaced one by one."""
        self._connection.execute("INSERT INTO instruction_minutes BY NAME FROM incoming_instruction_minutes")

    @contextmanager
    def cursor(self) -> Iterator[Connection]:
        """Give a cursor in its own transaction. Raises StorageError."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(f"USE {LAKE}")
            cursor.execute("BEGIN")
            yield cursor
        except duckdb.Error as wrong:
            raise StorageError(f"{LAKE}: could not be read: {why(str(wrong))}") from wrong
        finally:
            cursor.close()

    @contextmanager
    def _transaction(self, tables: Mapping[str, pa.Table]) -> Iterator[Connection]:
        try:
            self._connection.execute("BEGIN")
            for name, table in tables.items():  # outside of it, each would ask the catalog for its snapshot
                self._connection.register(f"incoming_{name}", table)
            yield self._connection
            self._forget(tables)
            if self._declared:
                self._connection.execute(
                    f"CALL {LAKE}.set_commit_message($1, 'frames', extra_info => $2)",
                    [self.held.holder, self._words()],
                )
            self._connection.execute("COMMIT")
            if self._declared:
                self.held = Held(self.held.name, self.held.holder, self.held.epoch, self._until)
            self._declared = {}
        except duckdb.Error as wrong:
            self._roll_back(tables)
            raise self._not_stored(str(wrong)) from wrong
        except BaseException:
            self._roll_back(tables)
            raise

    def _forget(self, tables: Mapping[str, pa.Table]) -> None:
        for name in tables:
            self._connection.unregister(f"incoming_{name}")

    def _words(self) -> str:
        """Return what the fence reads. It knows a commit of ours by the first key."""
        declared = {
            "holder": self.held.name,
            "epoch": self.held.epoch,
            "from": self.held.next,
            "until": self._until,
            **self._declared,
        }
        return json.dumps(declared, separators=(",", ":"))

    def _roll_back(self, tables: Mapping[str, pa.Table]) -> None:
        self._declared = {}
        with suppress(duckdb.Error):  # a COMMIT that failed has ended it already
            self._connection.execute("ROLLBACK")
        with suppress(duckdb.Error):  # PostgreSQL is away: the caller opens it again
            self._forget(tables)

    def _not_stored(self, says: str) -> StorageError:
        if "fenced off" in says:
            return StorageError(
                f"{self.held.name}: could not be written: another process has taken it, or has stored the"
                " same. Nothing was stored twice; open it again."
            )
        return StorageError(
            f"{self.held.name}: could not be written: {why(says)} What was received is not lost."
        )
