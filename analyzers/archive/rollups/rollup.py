"""Readings of GPUs, added up by second and by minute of UTC. Pure.

    frames of a log, in order -> open bins -> rows of ``seconds`` -> open minutes -> rows of ``minutes``

The energy between two readings in a row is the difference of the counter, or the power held until the next
reading where there is no counter. It is shared among the seconds by time, and rounded so that the parts add
up to the difference. Seconds for which no energy is known are not covered: nothing is invented. Where nobody
read a counter that went on, its difference is shared among the seconds of the gap: they have no readings.

A bin closes when a frame of its log was logged GRACE_NS after its end. What comes later still gives another
row of the same second: rows of one bin add up. So the open bins of a log depend on its frames of the last
LEAD_NS only. After a restart these are added again, and what they close is dropped (`Rollups.add`): it was
stored in the transaction of its frames.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from analyzers.archive.frame_reader import FrameReader
from analyzers.archive.opening import Connection
from analyzers.archive.rows.event_rows import EventRows
from analyzers.results.readings import MOST_MW, MOST_NS, READING, well_formed
from zeus_stream.protocol.frames import Body, Frame
from zeus_stream.protocol.notes import ClockAnchored, CollectorStarted, Notes
from zeus_stream.protocol.readings import ABSENT, Readings, Seen

Ints = npt.NDArray[np.int64]
Columns = Mapping[str, npt.NDArray[Any]]
"""Fields of readings, by name."""

S_NS = 1_000_000_000
MINUTE_S = 60
GRACE_NS = 2 * S_NS
"""Readings of a bin come in until then."""
CHAIN_NS = 65 * S_NS
"""Two readings of a GPU that are further apart say nothing about the seconds between them."""
GAP_NS = 600 * S_NS
"""The same of a counter that is read again for the first time: its collector was away."""
LEAD_NS = CHAIN_NS + MINUTE_S * S_NS + GRACE_NS
"""Frames of a log that its open bins depend on."""
JUMP_NS = S_NS
"""A host's UTC that moves by more against its clock ends all bins: it was set, or the host was restarted."""
MOST_OPEN = 256
"""Open bins of a GPU; of more, all are closed."""
TOGETHER = 64
"""Frames that are added at once: of more the columns do not stay in the caches of the processor."""
MOST_GPUS = 65_536
"""GPUs of a log."""

KEY = 2
GPU, BEGIN_S, ENERGY_UJ, COVERED_NS, READ, LIMIT_MW, LIMITS, CLOCK_MHZ, CLOCKS, UTILIZED, UTILIZATIONS = (
    range(11)
)
PEAK_MW, TEMPERATURE_C = 11, 12
"""Columns of bins: a key, then sums, then maxima (ABSENT: not known)."""
COLUMNS = 13
_SUMMED = (
    "seen", "t_hi_ns", "energy_mj", "power_mw", "limit_mw", "clock_mhz", "utilization_pct", "temperature_c",
)  # fmt: skip
"""Fields of readings that are added up."""


class Placed(Struct, frozen=True):
    """A frame with its place in UTC."""

    frame: Frame
    body: Readings | None
    """None: it has no readings."""
    utc_ns: int | None
    """UTC minus the clock of its host, as it was known when the frame was logged. None: it was not known."""


class _Log(Struct, kw_only=True):
    """Open bins of one log. GPUs are numbers: places in ``gpus``."""

    host: str
    utc_ns: int | None = None
    until_ns: int = 0
    """The host's clock when its last frame was logged."""
    gpus: dict[str, int] = field(default_factory=dict)
    last: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, READING))
    """The last reading of each GPU."""
    last_gpu: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    seconds: Ints = field(default_factory=lambda: np.empty((0, COLUMNS), np.int64))
    minutes: Ints = field(default_factory=lambda: np.empty((0, COLUMNS), np.int64))


class Rollups:
    """Open bins of all logs."""

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}

    def add(self, placed: Sequence[Placed]) -> dict[str, pa.Table]:
        """Add frames, in order for each log, each once; return the rows of the bins that they close."""
        by_log: dict[str, list[Placed]] = {}
        for each in placed:
            by_log.setdefault(each.frame.log_id, []).append(each)
        closed: list[tuple[_Log, Ints, Ints]] = []
        for log_id, frames in by_log.items():
            for host, named in groupby(frames, key=attrgetter("frame.host")):
                if (log := self._logs.get(log_id)) is None:
                    closed += self._end_logs_of(host)
                    self._logs[log_id] = _Log(host=host)
                elif log.host != host:  # renamed: what is open goes to the name it had
                    closed.append((log, *_close(log, None)))
                    self._logs[log_id] = replace(log, host=host)
                closed += _add(self._logs[log_id], list(named))
        tables = {
            "seconds": _table((log, rows) for log, rows, _ in closed),
            "minutes": _table((log, rows) for log, _, rows in closed),
        }
        return {name: rows for name, rows in tables.items() if rows.num_rows}

    def include(self, other: "Rollups") -> None:
        """Take in the bins of other logs."""
        self._logs |= other._logs  # noqa: SLF001  (of this class)

    def _end_logs_of(self, host: str) -> list[tuple[_Log, Ints, Ints]]:
        """Close the logs of a host that has begun another one."""
        ended = [log_id for log_id, log in self._logs.items() if log.host == host]
        logs = [self._logs.pop(log_id) for log_id in ended]
        return [(log, *_close(log, None)) for log in logs]


def _add(log: _Log, frames: Sequence[Placed]) -> list[tuple[_Log, Ints, Ints]]:
    """Add frames of one log; return what they close."""
    closed = []
    for utc_ns, group in groupby(_known_utc(frames, log.utc_ns), key=itemgetter(0)):
        part = [each for _, each in group]
        if utc_ns is not None and log.utc_ns is not None and abs(utc_ns - log.utc_ns) >= JUMP_NS:
            closed.append((log, *_close(log, None)))
            log.last, log.last_gpu, log.until_ns = log.last[:0], log.last_gpu[:0], 0
        log.utc_ns = utc_ns
        log.until_ns = max(log.until_ns, *(each.frame.t_ns for each in part))
        bodies = [each.body for each in part if each.body is not None and each.body.rows]
        if utc_ns is None:
            continue
        for at in range(0, len(bodies), TOGETHER):
            _add_readings(log, bodies[at : at + TOGETHER], utc_ns)
        closed.append((log, *_close(log, log.until_ns + utc_ns - GRACE_NS)))
        if len(log.seconds) > MOST_OPEN * max(len(log.gpus), 1):  # readings of a time to come
            closed.append((log, *_close(log, None)))
        if len(log.gpus) > MOST_GPUS:
            closed.append((log, *_close(log, None)))
            closed = [(replace(log), seconds, minutes) for _, seconds, minutes in closed]
            log.gpus, log.last, log.last_gpu = {}, log.last[:0], log.last_gpu[:0]
    return closed


def _known_utc(frames: Sequence[Placed], utc_ns: int | None) -> Iterator[tuple[int | None, Placed]]:
    """Yield frames, each with the UTC minus clock that was known last."""
    for each in frames:
        utc_ns = utc_ns if each.utc_ns is None else each.utc_ns
        yield utc_ns, each


def _add_readings(log: _Log, bodies: Sequence[Readings], utc_ns: int) -> None:
    """Add readings to the open seconds."""
    codes = [[log.gpus.setdefault(gpu, len(log.gpus)) for gpu in body.gpus] for body in bodies]
    sizes = [len(body.rows) // READING.itemsize for body in bodies]
    starts = np.cumsum([0, *(len(each) for each in codes[:-1])])
    flat = np.array([code for each in codes for code in each], np.int64)
    rows = np.frombuffer(b"".join([log.last.tobytes(), *(body.rows for body in bodies)]), READING)
    known = len(log.last)
    gpu = np.concatenate([log.last_gpu, flat[np.repeat(starts, sizes) + rows["gpu"][known:]]])
    order = _in_order(gpu, rows["t_hi_ns"])
    rows, gpu = rows.take(order), gpu.take(order)
    ends = np.flatnonzero(np.append(gpu[1:] != gpu[:-1], True))
    log.last, log.last_gpu = rows[ends], gpu[ends]
    columns = {name: np.ascontiguousarray(rows[name]) for name in _SUMMED}
    spans = _spans(columns, gpu, utc_ns)
    if known:
        fresh = order >= known
        columns = {name: values.compress(fresh) for name, values in columns.items()}
        gpu = gpu.compress(fresh)
    log.seconds = _merge([log.seconds, _points(columns, gpu, utc_ns), spans])


def _in_order(gpu: Ints, t_ns: Ints) -> Ints:
    """Return the order by GPU, then by time; rows of one GPU mostly are in the order of time."""
    few = gpu.max(initial=0) <= np.iinfo(np.uint16).max  # then it is a radix sort
    order: Ints = np.argsort(gpu.astype(np.uint16) if few else gpu, kind="stable")
    late = np.diff(t_ns.take(order)) < 0
    if (late & (np.diff(gpu.take(order)) == 0)).any():
        order = np.lexsort((t_ns, gpu))
    return order


def _points(columns: Columns, gpu: Ints, utc_ns: int) -> Ints:
    """Return what readings saw, by GPU and second. They are in the order of GPUs, then of time."""
    second = (columns["t_hi_ns"] + utc_ns) // S_NS
    starts = _starts(gpu, second)
    bins = np.zeros((len(starts), COLUMNS), np.int64)
    bins[:, GPU], bins[:, BEGIN_S] = gpu[starts], second[starts]
    bins[:, READ] = np.diff(starts, append=len(gpu))
    for name, total, count in (
        ("limit_mw", LIMIT_MW, LIMITS),
        ("clock_mhz", CLOCK_MHZ, CLOCKS),
        ("utilization_pct", UTILIZED, UTILIZATIONS),
    ):
        known = columns[name] != ABSENT
        bins[:, total] = np.add.reduceat(columns[name] * known, starts, dtype=np.int64)
        bins[:, count] = np.add.reduceat(known, starts, dtype=np.int64)
    bins[:, PEAK_MW] = np.maximum.reduceat(columns["power_mw"], starts)
    bins[:, TEMPERATURE_C] = np.maximum.reduceat(columns["temperature_c"], starts)
    return bins


def _spans(columns: Columns, gpu: Ints, utc_ns: int) -> Ints:
    """Return the energy between readings in a row of a GPU, by GPU and second; in order as for `_points`."""
    seen, t_hi_ns, energy_mj, power_mw = (columns[name] for name in _SUMMED[:4])
    t_ns = np.diff(t_hi_ns)
    absent = energy_mj == ABSENT
    power = (seen == Seen.POWER) | (seen == Seen.RESTED) & absent
    begins = ~(power | absent)
    continues = begins & (seen != Seen.RESET)
    longest_ns = np.where(seen[1:] == Seen.FIRST, GAP_NS, CHAIN_NS)
    used_mj = np.diff(energy_mj)
    counted = begins[:-1] & continues[1:] & (used_mj >= 0) & (used_mj <= MOST_MW * (t_ns / S_NS))
    sensed = power[:-1] & power[1:] & (power_mw[:-1] != ABSENT)
    known = np.flatnonzero((gpu[1:] == gpu[:-1]) & (t_ns > 0) & (t_ns <= longest_ns) & (counted | sensed))
    # Of a counter whole millijoules, of a sensor (mW for some ns) whole microjoules.
    unit_uj = np.where(counted[known], 1000, 1)
    used = np.where(counted[known], used_mj[known], power_mw[known] * (t_ns[known] / 1e6))
    t_ns, begin_ns = t_ns[known], t_hi_ns[known] + utc_ns
    first_s, last_s = begin_ns // S_NS, (begin_ns + t_ns - 1) // S_NS
    counts = last_s - first_s + 1
    at = np.repeat(np.arange(len(known)), counts)
    second = first_s[at] + np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
    from_ns = np.maximum(second * S_NS - begin_ns[at], 0)
    until_ns = np.minimum((second + 1) * S_NS - begin_ns[at], t_ns[at])
    used_until, used_from = (np.rint(used[at] * (part / t_ns[at])) for part in (until_ns, from_ns))
    gpu = gpu[1:][known][at]
    starts = _starts(gpu, second)
    bins = np.zeros((len(starts), COLUMNS), np.int64)
    bins[:, PEAK_MW] = bins[:, TEMPERATURE_C] = ABSENT
    bins[:, GPU], bins[:, BEGIN_S] = gpu[starts], second[starts]
    bins[:, COVERED_NS] = np.add.reduceat(until_ns - from_ns, starts)
    used_uj = (used_until - used_from).astype(np.int64) * unit_uj[at]
    bins[:, ENERGY_UJ] = np.add.reduceat(used_uj, starts)
    return bins


def _starts(gpu: Ints, second: Ints) -> Ints:
    """Return where rows begin that are of another GPU or second than those before."""
    new = (gpu[1:] != gpu[:-1]) | (second[1:] != second[:-1])
    return np.flatnonzero(np.concatenate([[len(gpu) > 0], new]))


def _merge(parts: Sequence[Ints]) -> Ints:
    """Return bins with those of one key added up, in order."""
    bins: Ints = np.concatenate(parts)
    if not len(bins):
        return bins
    bins = bins[np.lexsort((bins[:, BEGIN_S], bins[:, GPU]))]
    starts = _starts(bins[:, GPU], bins[:, BEGIN_S])
    merged: Ints = bins[starts]
    merged[:, KEY:PEAK_MW] = np.add.reduceat(bins[:, KEY:PEAK_MW], starts)
    merged[:, PEAK_MW:] = np.maximum.reduceat(bins[:, PEAK_MW:], starts)
    return merged


def _close(log: _Log, until_ns: int | None) -> tuple[Ints, Ints]:
    """Take the seconds and minutes out of a log that end by ``until_ns`` of UTC (None: all)."""
    until_s = None if until_ns is None else until_ns // S_NS
    seconds, log.seconds = _split(log.seconds, 1, until_s)
    part = seconds.copy()
    part[:, BEGIN_S] -= part[:, BEGIN_S] % MINUTE_S
    minutes, log.minutes = _split(_merge([log.minutes, part]), MINUTE_S, until_s)
    return seconds, minutes


def _split(bins: Ints, length_s: int, until_s: int | None) -> tuple[Ints, Ints]:
    if until_s is None:
        return bins, bins[:0]
    over = bins[:, BEGIN_S] <= until_s - length_s
    return bins[over], bins[~over]


def _table(closed: Iterable[tuple[_Log, Ints]]) -> pa.Table:
    """Return bins as rows of ``seconds`` or ``minutes``."""
    parts = [(log, bins) for log, bins in closed if len(bins)]
    bins = np.concatenate([np.empty((0, COLUMNS), np.int64), *(bins for _, bins in parts)])
    gpus = [list(log.gpus) for log, _ in parts]
    names = [names[code] for (_, rows), names in zip(parts, gpus, strict=True) for code in rows[:, GPU]]
    hosts = [log.host for log, rows in parts for _ in range(len(rows))]
    return pa.table(
        {
            "gpu": pa.array(names, pa.string()),
            "host": pa.array(hosts, pa.string()),
            "began_at": pa.array((bins[:, BEGIN_S] * 1_000_000).view("datetime64[us]")),
            "energy_j": _scaled(bins[:, ENERGY_UJ], 1e6, bins[:, COVERED_NS] > 0),
            "covered_s": _scaled(bins[:, COVERED_NS], 1e9, bins[:, COVERED_NS] >= 0),
            "peak_w": _scaled(bins[:, PEAK_MW], 1e3, bins[:, PEAK_MW] != ABSENT),
            "limit_w": _mean(bins, LIMIT_MW, LIMITS, 1e3),
            "clock_mhz": _mean(bins, CLOCK_MHZ, CLOCKS, 1),
            "temperature_c": _scaled(bins[:, TEMPERATURE_C], 1, bins[:, TEMPERATURE_C] != ABSENT),
            "utilization_pct": _mean(bins, UTILIZED, UTILIZATIONS, 1),
            "readings": pa.array(bins[:, READ]),
        }
    )


def _scaled(values: Ints, unit: float, known: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.array(values / unit, mask=~known)


def _mean(bins: Ints, total: int, count: int, unit: float) -> pa.Array:
    """Return the mean of the readings that say it, to 0.1."""
    counts = bins[:, count]
    return pa.array(np.rint(10 * bins[:, total] / np.maximum(counts, 1) / unit) / 10, mask=counts == 0)


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


class Placing(Struct):
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
    put_merged(connection, "hours", MERGED_HOURS, ("gpu", "host", "began_at"))


def put_merged(connection: Connection, table: str, sql: str, key: Sequence[str]) -> None:
    """Put the rows that a query gives in the place of those of the same key, within the transaction."""
    same = " AND ".join(f"{table}.{part} = merged.{part}" for part in key)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE merged AS {sql}")
    connection.execute(f"DELETE FROM {table} USING merged WHERE {same}")  # noqa: S608  (our own names)
    connection.execute(f"INSERT INTO {table} BY NAME FROM merged")
