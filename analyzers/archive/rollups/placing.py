"""Place what is received in UTC: `read_at` of readings, and the roll-ups.

    frames --anchors of their log--> placed frames -> roll-ups (`rollup`)

An archive that is opened again adds the frames once more that its open bins depend on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from analyzers.archive.frame_reader import FrameReader
from analyzers.archive.opening import Connection
from analyzers.archive.rollups.rollup import JUMP_NS, LEAD_NS, Placed, Rollups
from analyzers.archive.rows.event_rows import EventRows
from analyzers.results.readings import MOST_NS, well_formed
from zeus_stream.protocol.frames import Body, Frame
from zeus_stream.protocol.notes import ClockAnchored, CollectorStarted, Notes
from zeus_stream.protocol.readings import Readings

LEAD_FROM = """
WITH moved AS (
    SELECT "offset", monotonic_ns, wall_ns - monotonic_ns
        - lag(wall_ns - monotonic_ns) OVER (ORDER BY "offset", rowid) AS by_ns
    FROM hosts WHERE log_id = $1
)
SELECT max("offset") FROM moved
WHERE abs(by_ns) >= $3 OR (monotonic_ns < $2
    AND "offset" >= coalesce((SELECT max("offset") FROM moved WHERE abs(by_ns) >= $3), 0))
"""
"""The first frame of a log that its open bins may depend on. A clock that was set ends all bins."""

MERGED_HOURS = """
SELECT gpu, host, began_at, sum(energy_j) AS energy_j, sum(covered_s) AS covered_s, max(peak_w) AS peak_w,
    sum(limit_w * readings) / sum(readings) FILTER (limit_w IS NOT NULL) AS limit_w,
    sum(clock_mhz * readings) / sum(readings) FILTER (clock_mhz IS NOT NULL) AS clock_mhz,
    max(temperature_c) AS temperature_c,
    sum(utilization_pct * readings) / sum(readings) FILTER (utilization_pct IS NOT NULL) AS utilization_pct,
    sum(readings)::BIGINT AS readings
FROM (
    SELECT * REPLACE (date_trunc('hour', began_at) AS began_at) FROM incoming_minutes
    UNION ALL BY NAME
    SELECT hours.* FROM hours SEMI JOIN incoming_minutes
        ON hours.gpu = incoming_minutes.gpu AND hours.host = incoming_minutes.host
        AND hours.began_at = date_trunc('hour', incoming_minutes.began_at)
) GROUP BY gpu, host, began_at
"""


@dataclass(slots=True)
class Placing:
    """UTC minus the clock of each log, and the open bins."""

    utc_ns: dict[str, int] = field(default_factory=dict)
    rollups: Rollups = field(default_factory=Rollups)

    def place(self, frames: Sequence[tuple[Frame, Body | EventRows | None]]) -> list[Placed]:
        """Return frames with their readings, if they are well-formed, and UTC minus their clock."""
        placed = []
        for frame, body in frames:
            if isinstance(body, Notes):
                for note in body.notes:
                    if isinstance(note, CollectorStarted | ClockAnchored):
                        self._anchor(frame.log_id, note.wall_ns - note.t_ns)
            readings = body if isinstance(body, Readings) and well_formed(body) else None
            placed.append(Placed(frame, readings, self.utc_ns.get(frame.log_id)))
        return placed

    def include(self, other: "Placing") -> None:
        """Take in those of other logs."""
        self.utc_ns |= other.utc_ns
        self.rollups.include(other.rollups)

    def _anchor(self, log_id: str, utc_ns: int) -> None:
        if abs(utc_ns) <= MOST_NS:
            self.utc_ns[log_id] = utc_ns


def restore(reader: FrameReader) -> Placing:
    """Return where the open bins of an archive stand. Raises StorageError."""
    placing = Placing()
    last_of_hosts = {log.host: log_id for log_id, log in reader.logs.items()}
    for log_id in last_of_hosts.values():
        log = reader.logs[log_id]
        if log.logged_ns is None or log.host is None:
            continue
        with reader.cursor() as cursor:
            [(first,)] = cursor.execute(LEAD_FROM, [log_id, log.logged_ns - LEAD_NS, JUMP_NS]).fetchall()
            _anchor_before(cursor, placing, log_id, first or 0)
        frames = placing.place(list(reader.frames_since(log_id, first or 0)))
        end = Frame(
            log_id=log_id, offset=log.next_offset, host=log.host, t_ns=log.logged_ns, topic="", body=b""
        )
        placing.rollups.add([*frames, Placed(end, None, None)])
    return placing


def _anchor_before(cursor: Connection, placing: Placing, log_id: str, offset: int) -> None:
    rows = cursor.execute(
        'SELECT wall_ns - monotonic_ns FROM hosts WHERE log_id = $1 AND "offset" < $2'
        ' ORDER BY "offset" DESC, rowid DESC LIMIT 1',
        [log_id, offset],
    ).fetchall()
    for (utc_ns,) in rows:
        placing.utc_ns[log_id] = utc_ns


def add_hours(connection: Connection) -> None:
    """Add the incoming minutes to their hours, within the caller's transaction."""
    connection.register("incoming_hours", connection.sql(MERGED_HOURS).to_arrow_table())
    try:
        connection.execute(
            "DELETE FROM hours USING incoming_hours AS incoming"
            " WHERE hours.gpu = incoming.gpu AND hours.host = incoming.host"
            " AND hours.began_at = incoming.began_at"
        )
        connection.execute("INSERT INTO hours BY NAME FROM incoming_hours")
    finally:
        connection.unregister("incoming_hours")
