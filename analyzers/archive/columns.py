"""Frames as columns, on their way into the archive, and readings as frames again. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from analyzers.results.readings import READING, SEEN
from zeus_stream.protocol.events import (
    EpochBegan,
    EpochEnded,
    Event,
    EventsDropped,
    Metric,
    RunEnded,
    RunPlanned,
    RunStarted,
    SearchWanted,
    StepBoundary,
    TryBegan,
    TryEnded,
    TryWanted,
    WindowBegan,
    WindowCancelled,
    WindowEnded,
)
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Events, Frame
from zeus_stream.protocol.notes import ClockAnchored, CollectorStarted, Notes
from zeus_stream.protocol.phases import PhasesRan
from zeus_stream.protocol.pipelines import IterationRan, PipelineBegan
from zeus_stream.protocol.readings import ABSENT, READING_BYTES, READING_FIELDS, Readings

_PLAIN = [name for name, _ in READING_FIELDS if name not in ("gpu", "seen")]
_NEVER_ABSENT = ("t_lo_ns", "t_hi_ns")
_EVENT_COLUMNS = ("kind", "t_ns", "ended_ns", "index", "name", "value", "placed", "uncertainty_ns")
_frame_columns = attrgetter(*(field.name for field in fields(Frame)))


def from_readings(readings: Sequence[tuple[Frame, Readings]], utc_ns: Sequence[int | None] = ()) -> pa.Table:
    """Return frames of well-formed readings, at least one, as rows of the table ``readings``.

    ``utc_ns``: of each frame, UTC minus its host's clock; None: it is not known.
    """
    rows = np.concatenate([np.frombuffer(body.rows, READING) for _, body in readings])
    sizes = [len(body.rows) // READING_BYTES for _, body in readings]
    logs: dict[str, int] = {}
    gpus: dict[str, int] = {}
    log_codes = [logs.setdefault(frame.log_id, len(logs)) for frame, _ in readings]
    gpu_codes = [[gpus.setdefault(gpu, len(gpus)) for gpu in body.gpus] for _, body in readings]
    # Where each frame's list of GPUs begins in all the lists, one after the other.
    starts = np.cumsum([0, *(len(codes) for codes in gpu_codes[:-1])])
    flat = np.array([code for codes in gpu_codes for code in codes], np.int32)
    columns = {
        "log_id": _words(np.repeat(np.array(log_codes, np.int32), sizes), tuple(logs)),
        "offset": pa.array(np.repeat([frame.offset for frame, _ in readings], sizes)),
        "logged_ns": pa.array(np.repeat([frame.t_ns for frame, _ in readings], sizes)),
        "gpu": _words(flat[np.repeat(starts, sizes) + rows["gpu"]], tuple(gpus)),
        "seen": _words(rows["seen"].astype(np.int8), SEEN),
    }
    for name in _PLAIN:
        values = np.ascontiguousarray(rows[name])
        columns[name] = pa.array(values, mask=None if name in _NEVER_ABSENT else values == ABSENT)
    hosts: dict[str, int] = {}
    host_codes = [hosts.setdefault(frame.host, len(hosts)) for frame, _ in readings]
    columns["host"] = _words(np.repeat(np.array(host_codes, np.int32), sizes), tuple(hosts))
    columns["read_at"] = _read_at(rows["t_hi_ns"], utc_ns or [None] * len(readings), sizes)
    return pa.table(columns)


def _read_at(t_ns: np.ndarray[Any, Any], utc_ns: Sequence[int | None], sizes: Sequence[int]) -> pa.Array:
    known = np.repeat([each is not None for each in utc_ns], sizes)
    utc_us = (t_ns + np.repeat(np.array([each or 0 for each in utc_ns], np.int64), sizes)) // 1000
    return pa.array(utc_us.view("datetime64[us]"), mask=~known)


def _words(codes: np.ndarray[Any, Any], words: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(words, pa.string()))


def from_frames(schema: pa.Schema, frames: Sequence[Frame]) -> pa.Table:
    """Return frames, at least one, as rows of the table ``frames``."""
    return columnar(schema, [_frame_columns(frame) for frame in frames])


def from_events(schema: pa.Schema, events: Sequence[tuple[Frame, Events]]) -> pa.Table:
    """Return frames with at least one event as rows of the table ``events``."""
    sizes = [len(body.events) for _, body in events]
    columns: dict[str, Any] = {
        "log_id": _repeated([frame.log_id for frame, _ in events], sizes),
        "offset": np.repeat([frame.offset for frame, _ in events], sizes),
        "host": _repeated([frame.host for frame, _ in events], sizes),
        "session": _repeated([body.session for _, body in events], sizes),
        "sequence": [body.sequence + number for _, body in events for number in range(len(body.events))],
    }
    rows = [_event_columns(event) for _, body in events for event in body.events]
    columns |= zip(_EVENT_COLUMNS, zip(*rows, strict=True), strict=True)
    for name, values in columns.items():
        if not isinstance(values, pa.Array):
            columns[name] = pa.array(values, schema.field(name).type)
    return pa.table(columns)


def _repeated(words: Sequence[str], sizes: Sequence[int]) -> pa.DictionaryArray:
    """Return each word so many times."""
    codes: dict[str, int] = {}
    each = [codes.setdefault(word, len(codes)) for word in words]
    return _words(np.repeat(np.array(each, np.int32), sizes), tuple(codes))


def _event_columns(event: Event | Unknown) -> tuple[Any, ...]:
    """Return the `_EVENT_COLUMNS` of an event."""
    match event:
        case StepBoundary():  # nearly all are
            t_ns = event.ended_ns if event.began_ns is None else event.began_ns
            placed, uncertainty_ns = event.placed, event.uncertainty_ns
            return "step_boundary", t_ns, event.ended_ns, event.index, None, None, placed, uncertainty_ns
        case _:
            return *_other_columns(event), None, None


def _other_columns(
    event: Event | Unknown,
) -> tuple[str, int | None, int | None, int | None, str | None, float | None]:
    """Return kind, t_ns, ended_ns, index, name, value of an event."""
    match event:
        case RunStarted():
            return "run_started", event.t_ns, None, event.rank, event.run, None
        case EpochBegan():
            return "epoch_began", event.t_ns, None, event.index, None, None
        case EpochEnded():
            return "epoch_ended", event.t_ns, None, event.index, None, None
        case WindowBegan():
            return "window_began", event.t_ns, None, event.window, event.name, None
        case WindowEnded():
            return "window_ended", event.t_ns, None, event.window, None, None
        case WindowCancelled():
            return "window_cancelled", event.t_ns, None, event.window, None, None
        case Metric():
            return "metric", event.t_ns, None, event.step, event.name, event.value
        case TryWanted():
            return "try_wanted", event.t_ns, None, event.attempt, event.job, None
        case TryBegan():
            return "try_began", event.t_ns, None, event.attempt, None, float(event.batch_size)
        case TryEnded():
            return "try_ended", event.t_ns, None, event.attempt, event.how, None
        case SearchWanted():
            return "search_wanted", event.t_ns, None, event.only_mw, event.select, None
        case PipelineBegan():
            return "pipeline_began", event.t_ns, None, event.stage, event.schedule, float(event.stages)
        case IterationRan():
            return "iteration_ran", event.t_ns, event.ended_ns, event.iteration, None, None
        case RunPlanned():
            epochs = None if event.epochs is None else float(event.epochs)
            return "run_planned", event.t_ns, None, event.steps, None, epochs
        case PhasesRan():
            return "phases_ran", event.t_ns, None, None, ",".join(event.names)[:200], None
        case EventsDropped():
            return "events_dropped", event.t_ns, None, None, event.reason, float(event.count)
        case RunEnded():
            return "run_ended", event.t_ns, None, None, event.failure, None
        case Unknown():
            return event.kind, None, None, None, None, None


def anchor_rows(frame: Frame, body: Notes) -> list[tuple[Any, ...]]:
    """Return a row of ``hosts`` for each time that both clocks were read."""
    rows: list[tuple[Any, ...]] = []
    for note in body.notes:
        if isinstance(note, CollectorStarted | ClockAnchored):
            boot_id = note.boot_id if isinstance(note, CollectorStarted) else None
            clocks = (note.t_ns, note.wall_ns, note.wall_error_ns)
            rows.append((frame.log_id, frame.offset, frame.host, boot_id, *clocks))
    return rows


def columnar(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Return rows, at least one, as columns."""
    columns = zip(zip(*rows, strict=True), schema, strict=True)
    return pa.table([pa.array(values, field.type) for values, field in columns], schema=schema)


def to_readings(table: pa.Table) -> Iterator[tuple[int, int, Readings]]:
    """Return offset, logged_ns and body of each frame in rows of the table ``readings``, sorted by offset."""
    from pyarrow.compute import index_in  # noqa: PLC0415  (slow to import, and only a replay needs it)

    rows = np.zeros(table.num_rows, READING)
    for name in _PLAIN:
        rows[name] = table[name].fill_null(ABSENT).to_numpy()
    rows["seen"] = index_in(table["seen"], pa.array(SEEN)).to_numpy()
    gpus = table["gpu"].to_numpy()
    logged_ns = table["logged_ns"].to_numpy()
    offsets, starts = np.unique(table["offset"].to_numpy(), return_index=True)
    for offset, (start, end) in zip(offsets, pairwise([*starts, table.num_rows]), strict=True):
        names, rows["gpu"][start:end] = np.unique(gpus[start:end], return_inverse=True)
        yield int(offset), int(logged_ns[start]), Readings(tuple(names), rows[start:end].tobytes())
