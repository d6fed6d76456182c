"""Read frames that are stored, to be interpreted again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import takewhile
from typing import Any, TypeVar

from msgspec import Struct

from analyzers.archive.opening import Connection
from analyzers.archive.rows import columns
from zeus_stream.errors import MalformedError
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import Readings

REPLAYED_OFFSETS = 200
"""Frames of a log that are read at a time, at most."""
FIRST_OFFSETS = 10
"""At first; twice as many after each page that was small."""
PAGE_BYTES = 200_000
"""Of frames; a page of more is large. Commits wait while one is read."""
LEAD_NS = 5_000_000_000
_KEPT: tuple[type[Readings | Events | Notes], ...] = (Readings, Events, Notes)
"""Bodies that are kept as bytes."""

R = TypeVar("R", bound=Struct)
Cursors = Callable[[], AbstractContextManager[Connection]]
"""Gives a cursor in its own read-only transaction. Raises StorageError."""


class Log(Struct, frozen=True):
    """A log that is stored, and where it goes on."""

    host: str | None
    next_offset: int
    logged_ns: int | None


class FrameReader:
    """Reads the frames of an archive. For any thread."""

    def __init__(self, cursor: Cursors, logs: Mapping[str, Log], own: str) -> None:
        """``logs``: by name, changed by the writer. ``own``: the log of the analyzer's own words."""
        self.cursor = cursor
        self.logs = logs
        self.own = own

    def position(self, host: str) -> tuple[str, int] | tuple[None, None]:
        """Return the log of a host that was followed last, and the offset it goes on with."""
        logs = [(log_id, log.next_offset) for log_id, log in self.logs.items() if log.host == host]
        return logs[-1] if logs else (None, None)

    def replay(self, since: Mapping[str, int] | None = None) -> Iterator[list[tuple[Frame, Body]]]:
        """Yield all that has to be interpreted, again or not, a page at a time, in its first order.

        ``since``: see `Store.replay`. Without it: of each log what no rows were derived from yet, and
        everything since the oldest open run began, of all its sessions. Before that, the collector's notes
        since its start, for the devices it has, and LEAD_NS of readings, for a counter before the first
        window began. Of the analyzer's own words all: they are few.
        """
        if since is None:
            with self.cursor() as cursor:
                begun = self.replay_since(cursor)
            begun |= {self.own: 0} if self.own in begun else {}
            frames = self._in_turn({log_id: self._since(log_id, begun[log_id]) for log_id in self.logs})
        else:
            first = {log_id: since.get(log_id, 0) for log_id in self.logs}
            logs = {log_id: self.frames_since(log_id, offset) for log_id, offset in first.items()}
            frames = self._in_turn(logs, first)
        page, size = list[tuple[Frame, Body]](), 0
        for each in frames:
            page.append(each)
            size += len(each[0].body)
            if len(page) >= REPLAYED_OFFSETS or size >= PAGE_BYTES:
                yield page
                page, size = [], 0
        if page:
            yield page

    def replay_since(self, cursor: Connection) -> dict[str, int]:
        """Return by log the offset from which on `replay` has everything again."""
        last = {log.host: log_id for log_id, log in self.logs.items()}
        return dict(
            cursor.execute(
                """
                WITH began AS (
                    SELECT log_id, "offset", session, run,
                        world_size = 0 AND sessions.ended_ns IS NOT NULL AS watched
                    FROM events JOIN sessions USING (session) WHERE events.kind = 'run_started'
                ), unfinished AS (
                    FROM began WHERE list_contains($1, log_id)
                        AND session NOT IN (SELECT session FROM windows WHERE kind = 'run')
                        AND NOT (watched AND (session IN (SELECT session FROM windows) OR session NOT IN
                            (SELECT session FROM events WHERE kind IN ('step_boundary', 'window_began'))))
                ), wanted AS (
                    SELECT log_id, interpreted_offset AS "offset" FROM logs UNION ALL
                    SELECT log_id, "offset" FROM began WHERE run IN (SELECT run FROM unfinished)
                )
                SELECT log_id, min("offset") FROM wanted GROUP BY log_id
                """,
                [list(last.values())],
            ).fetchall()
        )

    def _since(self, log_id: str, offset: int) -> Iterator[tuple[Frame, Body]]:
        """Yield a log's frames from an offset on, and before them what they stand on."""
        over = self._begun_before(log_id, offset)
        lead = self.lead(log_id, offset)
        yield from self._notes_before(log_id, lead)
        for frame, body in self.frames_since(log_id, lead):
            if not (isinstance(body, Events) and body.session in over):
                yield frame, body

    def _in_turn(
        self, logs: Mapping[str, Iterator[tuple[Frame, Body]]], since: Mapping[str, int] | None = None
    ) -> Iterator[tuple[Frame, Body]]:
        """Yield frames of several logs in the order in which they came the first time."""
        stored = {log_id: log.next_offset for log_id, log in self.logs.items()}
        since = {log_id: offset for log_id, offset in (since or {}).items() if offset < stored[log_id]}
        with self.cursor() as cursor:
            turns = cursor.execute(
                """
                WITH first AS (
                    SELECT max(turns.rowid) AS turn
                    FROM turns JOIN (SELECT unnest($1) AS log_id, unnest($2) AS since) USING (log_id)
                    WHERE "offset" <= since GROUP BY log_id
                )
                SELECT log_id, lead("offset") OVER (PARTITION BY log_id ORDER BY rowid)
                FROM turns WHERE rowid >= coalesce((SELECT min(turn) FROM first), 0) ORDER BY rowid
                """,
                [list(since), list(since.values())],
            ).fetchall()
        heads = {log_id: next(frames, None) for log_id, frames in logs.items()}
        for log_id, end in turns:
            while (head := heads[log_id]) is not None and (end is None or head[0].offset < end):
                yield head
                heads[log_id] = next(logs[log_id], None)

    def _begun_before(self, log_id: str, offset: int) -> set[str]:
        with self.cursor() as cursor:
            rows = cursor.execute(
                "SELECT session FROM events WHERE kind = 'run_started' AND log_id = $1 AND \"offset\" < $2",
                [log_id, offset],
            ).fetchall()
        return {session for (session,) in rows}

    def lead(self, log_id: str, offset: int) -> int:
        """Return the offset from which on readings are needed, for those from another offset on."""
        with self.cursor() as cursor:
            [(lead,)] = cursor.execute(
                """
                WITH before AS (FROM readings WHERE log_id = $1 AND "offset" < $2)
                SELECT min("offset") FROM before WHERE logged_ns >= (SELECT max(logged_ns) FROM before) - $3
                """,
                [log_id, offset, LEAD_NS],
            ).fetchall()
        return offset if lead is None else int(lead)

    def _notes_before(self, log_id: str, offset: int) -> Iterator[tuple[Frame, Body]]:
        with self.cursor() as cursor:
            [(started,)] = cursor.execute(
                'SELECT max("offset") FROM hosts WHERE log_id = $1 AND "offset" < $2 AND boot_id IS NOT NULL',
                [log_id, offset],
            ).fetchall()
            kept = [] if started is None else list(_kept_frames(cursor, log_id, started, offset))
        yield from ((frame, body) for frame, body in kept if isinstance(body, Notes))

    def frames_since(self, log_id: str, offset: int) -> Iterator[tuple[Frame, Body]]:
        """Yield what is stored of a log from ``offset`` on, in order, until there is no more.

        Readings are built again from their columns: the same rows for the same GPUs, in the same order;
        the frame's own body is empty. Frames whose bodies could not be decoded are left out.
        """
        count = FIRST_OFFSETS
        while True:
            with self.cursor() as cursor:
                [(first,)] = cursor.execute(
                    """
                    SELECT min("offset") FROM (
                        SELECT log_id, "offset" FROM frames UNION ALL SELECT log_id, "offset" FROM readings
                    ) WHERE log_id = $1 AND "offset" >= $2
                    """,
                    [log_id, offset],
                ).fetchall()
                if first is None:
                    return
                offset = first + count
                page = [
                    *_kept_frames(cursor, log_id, first, offset),
                    *_readings_frames(cursor, log_id, first, offset),
                ]
            yield from sorted(page, key=lambda decoded: decoded[0].offset)
            large = sum(len(frame.body) for frame, _ in page) > PAGE_BYTES
            count = max(1, count // 2) if large else min(2 * count, REPLAYED_OFFSETS)

    def stored_frames(self) -> Iterator[tuple[Frame, Body]]:
        """Yield all that rows were derived from, of all logs, in first order; bodies as `frames_since`."""
        with self.cursor() as cursor:
            interpreted = self.interpreted(cursor)

        def until(log_id: str) -> Iterator[tuple[Frame, Body]]:
            frames = self.frames_since(log_id, 0)
            return takewhile(lambda decoded: decoded[0].offset < interpreted[log_id], frames)

        return self._in_turn({log_id: until(log_id) for log_id in self.logs})

    def interpreted(self, cursor: Connection) -> dict[str, int]:
        """Return by log the offset that is to be interpreted next."""
        return dict(cursor.execute("SELECT log_id, interpreted_offset FROM logs").fetchall())

    def sessions_to_replay(self, cursor: Connection, since: Mapping[str, int] | None = None) -> list[str]:
        """Return the sessions whose beginning is in `replay`, or may come again from a collector's log."""
        if since is None:
            since = self.replay_since(cursor)
        else:
            since = {log_id: since.get(log_id, 0) for log_id in self.logs}
        begun = cursor.execute(
            """
            SELECT DISTINCT session FROM events JOIN (
                SELECT unnest($1) AS log_id, unnest($2) AS since
            ) USING (log_id) WHERE kind = 'run_started' AND "offset" >= since
            UNION
            SELECT session FROM sessions WHERE ended_ns IS NULL AND start = (SELECT max(start) FROM sessions)
            """,
            [list(since), list(since.values())],
        ).fetchall()
        return [session for (session,) in begun]


def _kept_frames(cursor: Connection, log_id: str, first: int, until: int) -> Iterator[tuple[Frame, Body]]:
    rows = cursor.execute(
        'SELECT log_id, "offset", host, t_ns, topic, body FROM frames'
        ' WHERE log_id = $1 AND "offset" >= $2 AND "offset" < $3 ORDER BY "offset"',
        [log_id, first, until],
    ).fetchall()
    for row in rows:
        frame = as_row(Frame, row)
        try:
            body: Body = codec.decode(frame.body, *_KEPT)
        except MalformedError:
            continue  # it was counted when it was received
        if not (isinstance(body, Readings) and body.rows):  # as was one whose rows cannot be
            yield frame, body


def _readings_frames(cursor: Connection, log_id: str, first: int, until: int) -> Iterator[tuple[Frame, Body]]:
    table = cursor.sql(
        'FROM readings WHERE log_id = $1 AND "offset" >= $2 AND "offset" < $3 ORDER BY "offset", rowid',
        params=[log_id, first, until],
    ).to_arrow_table()
    [(last,)] = cursor.execute("SELECT host FROM logs WHERE log_id = $1 LIMIT 1", [log_id]).fetchall()
    for offset, then, logged_ns, body in columns.to_readings(table):
        host = then or last  # archives of the first versions have no host here
        yield (
            Frame(
                log_id=log_id, offset=offset, host=host, t_ns=logged_ns, topic=f"readings/{host}", body=b""
            ),
            body,
        )


def as_row(kind: type[R], row: Sequence[Any]) -> R:
    values = (tuple(value) if isinstance(value, list) else value for value in row)
    return kind(**dict(zip(kind.__struct_fields__, values, strict=True)))
