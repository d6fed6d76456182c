"""Frames as columns, on their way into the archive, and readings as frames again. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from analyzers.archive.rows.event_rows import COLUMNS, EventRows
from analyzers.results.readings import READING, SEEN
from analyzers.results.rows import VARIED, StepColumns
from zeus_stream.protocol.frames import Frame
from zeus_stream.protocol.notes import ClockAnchored, CollectorStarted, Notes
from zeus_stream.protocol.readings import ABSENT, READING_BYTES, READING_FIELDS, Readings

_WORDS = pa.dictionary(pa.int32(), pa.string())
_PLAIN = [name for name, _ in READING_FIELDS if name not in ("gpu", "seen")]
_NEVER_ABSENT = ("t_lo_ns", "t_hi_ns")


def from_readings(readings: Sequence[tuple[Frame, Readings]], utc_ns: Sequence[int | None] = ()) -> pa.Table:
    """Return frames of well-formed readings, at least one, as rows of the table ``readings``.

    ``utc_ns``: of each frame, UTC minus its host's clock; None: it is not known.
    """
    rows = np.frombuffer(b"".join([body.rows for _, body in readings]), READING)
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


def by_gpu(readings: pa.Table) -> pa.Table:
    """Return rows of `from_readings` in the order of their GPUs; those of one GPU keep their order."""
    gpus = readings["gpu"].chunk(0)
    rank = np.argsort(np.argsort(gpus.dictionary.to_numpy(zero_copy_only=False)))
    few = len(rank) <= np.iinfo(np.uint16).max  # then it is a radix sort
    return readings.take(pa.array(np.argsort(
        rank.astype(np.uint16 if few else np.int64)[gpus.indices.to_numpy()], kind="stable"
    )))  # fmt: skip


def _read_at(t_ns: np.ndarray[Any, Any], utc_ns: Sequence[int | None], sizes: Sequence[int]) -> pa.Array:
    known = np.repeat([each is not None for each in utc_ns], sizes)
    utc_us = (t_ns + np.repeat(np.array([each or 0 for each in utc_ns], np.int64), sizes)) // 1000
    return pa.array(utc_us.view("datetime64[us]"), mask=~known)


def _words(codes: np.ndarray[Any, Any], words: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(words, pa.string()))


def from_events(schema: pa.Schema, events: Sequence[tuple[Frame, EventRows]]) -> pa.Table:
    """Return frames with at least one event as rows of the table ``events``."""
    sizes = [len(of_frame.rows) for _, of_frame in events]
    columns: dict[str, Any] = {
        "log_id": _repeated([frame.log_id for frame, _ in events], sizes),
        "offset": np.repeat([frame.offset for frame, _ in events], sizes),
        "host": _repeated([frame.host for frame, _ in events], sizes),
        "session": _repeated([of_frame.session for _, of_frame in events], sizes),
        "sequence": np.repeat([of_frame.sequence for _, of_frame in events], sizes) + _numbers(sizes),
    }
    rows = chain.from_iterable(of_frame.rows for _, of_frame in events)
    columns |= zip(COLUMNS, zip(*rows, strict=True), strict=True)
    for name, values in columns.items():
        if not isinstance(values, pa.Array):
            columns[name] = pa.array(values, schema.field(name).type)
    return pa.table(columns)


def worded(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_type(_WORDS) if each.type == pa.string() else each for each in schema])


def from_steps(schema: pa.Schema, steps: Sequence[StepColumns]) -> pa.Table:
    """Return steps, at least one, as rows of the table ``windows``. ``schema``: `worded`."""
    sizes, same = [len(each) for each in steps], [each.same for each in steps]
    return pa.table([_of_steps(field, steps, same, sizes) for field in schema], schema=schema)


def _of_steps(
    field: pa.Field, steps: Sequence[StepColumns], same: Sequence[Mapping[str, Any]], sizes: Sequence[int]
) -> pa.Array:
    """Return one column of steps."""
    if field.name not in VARIED:
        values = [each[field.name] for each in same]
        words = field.type == _WORDS
        return _repeated(values, sizes) if words else pa.array(np.repeat(values, sizes), field.type)
    parts = [getattr(each, field.name) for each in steps]
    if isinstance(parts[0], tuple):
        return pa.array(list(chain.from_iterable(parts)), field.type)
    figures = np.concatenate(parts)
    return pa.array(figures, field.type, mask=np.isnan(figures) if figures.dtype == np.float64 else None)


def _numbers(sizes: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return 0, 1, ... for each of these sizes, one after the other."""
    starts = np.cumsum([0, *sizes[:-1]])
    numbers: np.ndarray[Any, Any] = np.arange(sum(sizes)) - np.repeat(starts, sizes)
    return numbers


def _repeated(words: Sequence[str], sizes: Sequence[int]) -> pa.DictionaryArray:
    """Return each word so many times."""
    codes: dict[str, int] = {}
    each = [codes.setdefault(word, len(codes)) for word in words]
    return _words(np.repeat(np.array(each, np.int32), sizes), tuple(codes))


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


def to_readings(table: pa.Table) -> Iterator[tuple[int, str | None, int, Readings]]:
    """Return offset, host, logged_ns and body of each frame in rows of ``readings``, sorted by offset."""
    from pyarrow.compute import index_in  # noqa: PLC0415  (slow to import, and only a replay needs it)

    rows = np.zeros(table.num_rows, READING)
    for name in _PLAIN:
        rows[name] = table[name].fill_null(ABSENT).to_numpy()
    rows["seen"] = index_in(table["seen"], pa.array(SEEN)).to_numpy()
    gpus = table["gpu"].to_numpy()
    logged_ns = table["logged_ns"].to_numpy()
    offsets, starts = np.unique(table["offset"].to_numpy(), return_index=True)
    hosts = table["host"].take(starts).to_pylist()
    spans = pairwise([*starts, table.num_rows])
    for offset, host, (start, end) in zip(offsets, hosts, spans, strict=True):
        names, rows["gpu"][start:end] = np.unique(gpus[start:end], return_inverse=True)
        yield int(offset), host, int(logged_ns[start]), Readings(tuple(names), rows[start:end].tobytes())
