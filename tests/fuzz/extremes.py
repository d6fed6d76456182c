"""Recorded frames in which any field has the least or the most that it may have: interpreted, stored, asked.

Each message is one that a collector takes. So what follows from it must be interpreted, kept in a checkpoint,
shown live, stored in a real archive, replayed from there, and read by every view and every report.
"""

import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar, get_args

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.checkpoints import machine_state
from analyzers.interpreter.interpreter import Interpreter, LinkSeen, Logged, ProgressAsked
from analyzers.live.live_site import LiveSite
from analyzers.results.result import Result
from analyzers.results.rows import GapRow
from analyzers.service.replay import replay
from tests.empty_archive import archive_at
from tests.extreme_values import any_of, extreme, hints_of
from tests.fuzz.targets import SETTINGS, recorded
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import Ask, AskTry, Event, RunEnded, RunStarted
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import Note, Notes
from zeus_stream.protocol.readings import READING_FIELDS, READING_STRUCT, Readings
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.screens.text.run_cost import print_summary, summarize, write_summary
from zeus_stream.settings import Settings

M = TypeVar("M", bound=Struct)
COMMIT = 20
"""Frames of one transaction."""
EVENTS = tuple(kind for kind in get_args(Event) if kind not in (RunStarted, RunEnded))
NOTES = get_args(Note)
_MOST: Mapping[str, tuple[int, int]] = {
    "<i8": (-(2**62), 2**62),
    "<i4": (-1, 10**8),
    "<i2": (-(2**15), 2**15 - 1),
}
"""By type of a column of readings, its least and its most."""


def bent(rng: Random, message: M, like: Sequence[str]) -> M:
    """Return a message with one field at a bound."""
    hints = hints_of(type(message))
    name = rng.choice(message.__struct_fields__)
    return replace(message, **{name: extreme(rng, hints[name], like)})


def _rows(rng: Random, rows: bytes) -> bytes:
    """Return readings of which one column of some rows is at a bound."""
    packed = struct.Struct(READING_STRUCT)
    changed = [list(row) for row in packed.iter_unpack(rows)]
    for row in rng.sample(changed, min(len(changed), rng.choice((1, 3)))):
        place = rng.randrange(len(READING_FIELDS))
        least, most = _MOST.get(READING_FIELDS[place][1], (0, 5))
        value = rng.choice((least, -1, 0, 1, most, row[place] // 2, 2**53))
        row[place] = max(least, min(value, most))
    return b"".join(packed.pack(*row) for row in changed)


class Extremes:
    """Changes messages of a stream, and adds others, so that many fields are at a bound."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._share = rng.choice((0.02, 0.1, 0.4))
        self._like: list[str] = []
        self._offset = 0

    def frames(self) -> Iterator[tuple[Frame, Body]]:
        """Yield the frames of a recorded run, changed, with other sessions on the same GPUs among them."""
        rng = self._rng
        for frame, body in recorded():
            self._learn(body)
            yield self._logged(frame, self._changed(body))
            while rng.random() < self._share / 2:
                yield self._logged(frame, self._added())

    def _logged(self, frame: Frame, body: Body) -> tuple[Frame, Body]:
        data = codec.encode(body)
        taken = codec.decode(data, Readings, Events, Notes)  # only what a collector takes is in a log
        offset, self._offset = self._offset, self._offset + 1
        return replace(frame, offset=offset, body=data), taken

    def _learn(self, body: Body) -> None:
        match body:
            case Readings(gpus):
                self._like += [gpu for gpu in gpus if gpu not in self._like]
            case Events(session, _, _, _, events):
                names = [session, *(event.run for event in events if isinstance(event, RunStarted))]
                self._like += [name for name in names if name not in self._like]
            case Notes():
                pass

    def _changed(self, body: Body) -> Body:
        rng = self._rng
        if rng.random() >= self._share:
            return body
        match body:
            case Readings(gpus, rows):
                return Readings(gpus, _rows(rng, rows)) if rows else body
            case Events():
                events = [
                    bent(rng, event, self._like) if rng.random() < 0.3 else event for event in body.events
                ]
                if events and not isinstance(events[0], RunStarted):
                    events.insert(rng.randrange(len(events)), any_of(rng, rng.choice(EVENTS), self._like))
                return replace(body, events=tuple(events))
            case Notes():
                return replace(body, notes=tuple(bent(rng, note, self._like) for note in body.notes))

    def _added(self) -> Body:
        """Return a message of another session, or another note."""
        rng = self._rng
        if rng.random() < 0.3:
            return Notes((any_of(rng, rng.choice(NOTES), self._like),))
        session = f"other-{rng.randrange(4)}"
        first = () if session in self._like else (any_of(rng, RunStarted, self._like),)
        self._like += [session] if first else []
        events = [any_of(rng, rng.choice(EVENTS), self._like) for _ in range(rng.choice((1, 5, 30)))]
        ended = (any_of(rng, RunEnded, self._like),) if rng.random() < 0.1 else ()
        return Events(session, 0, rng.choice((None, 0, 1000)), 1, (*first, *events, *ended))


def play(seed: int, directory: Path, *, read: bool = True) -> list[str]:
    """Interpret, keep, show and store a stream of extremes. Return what could not be interpreted.

    ``read``: read all views, make all reports, and replay the archive, too.
    """
    rng = Random(seed)
    interpreter, live, failed = Interpreter(SETTINGS), LiveSite(), list[str]()
    archive = DuckdbFile.open(archive_at(directory / "energy.duckdb"), Settings(memory_mb=256))
    try:
        waiting: list[tuple[Frame, Body]] = []
        results: list[Result] = []
        for frame, body in Extremes(rng).frames():
            waiting.append((frame, body))
            results.append(interpreter.handle(Logged(frame, body, rng.random() < 0.2), frame.t_ns))
            if rng.random() < 0.02:
                results.append(_asked(rng, interpreter, frame.host))
            if len(waiting) >= COMMIT:
                interpreter = _stored(rng, interpreter, live, archive, waiting, results, failed)
                waiting, results = [], []
        if waiting:
            _stored(rng, interpreter, live, archive, waiting, results, failed)
        if read:
            _read_all(archive)
    finally:
        archive.close()
    if read:
        replay(archive.path, Settings(memory_mb=256), {}, None)
    return failed


def _read_all(archive: DuckdbFile) -> None:
    """Read every view, and make the report of every run."""
    with archive.file.cursor() as cursor:

        def answer(sql: str) -> pa.Table:
            return cursor.sql(sql).to_arrow_table()

        for (view,) in cursor.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall():
            answer(f"FROM {view}")
        for (run,) in cursor.execute("SELECT DISTINCT run FROM runs").fetchall():
            summary, out = summarize(answer, run), io.StringIO()
            assert summary is not None
            write_summary(summary, out)
            print_summary(summary, None, "zeus-stream sql", out)


def _asked(rng: Random, interpreter: Interpreter, host: str) -> Result:
    like = list(interpreter.site.sessions)
    ask = any_of(rng, Ask, like) if rng.random() < 0.5 else any_of(rng, AskTry, like)
    return interpreter.handle(ProgressAsked(host, ask), interpreter.frame_ns(host))


def _stored(
    rng: Random,
    interpreter: Interpreter,
    live: LiveSite,
    archive: DuckdbFile,
    frames: Sequence[tuple[Frame, Body]],
    results: Sequence[Result],
    failed: list[str],
) -> Interpreter:
    """Do with frames and what they gave what an analyzer does. Return the interpreter that goes on."""
    rows = [row for result in results for row in result.rows]
    failed += [row.reason for row in rows if isinstance(row, GapRow) and "could not be" in row.reason]
    last = frames[-1][0]
    interpreter.handle(LinkSeen(last.host, True, 0), 0)  # noqa: FBT003  (a record of the interpreter's own)
    interpreter.site.pending.leases(), interpreter.site.pending.waiting(), interpreter.cross_checks()
    live.take(frames, rows, last.t_ns, live=True)
    shown = live.snapshot(
        Snapshot(process="analyzer", version="1", wall_ns=last.t_ns), interpreter.searches(), last.t_ns, None
    )
    codec.decode(codec.encode(shown), Snapshot)
    archive.put([frames], rows, {last.log_id: last.offset + 1})
    if rng.random() < 0.1:
        machine_state.live_state_of(live)
        state, interpreter = machine_state.state_of(interpreter.site), Interpreter(SETTINGS)
        machine_state.restore(interpreter.site, state, lambda _: SETTINGS.selector)
    return interpreter
