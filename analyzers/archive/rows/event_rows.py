"""Events as rows of the table ``events``, made where they were decoded. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from zeus_stream.protocol import events
from zeus_stream.protocol.events import PhasesRan
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Events
from zeus_stream.protocol.pipelines import IterationRan, PipelineBegan

COLUMNS = ("kind", "t_ns", "ended_ns", "index", "name", "value", "placed", "uncertainty_ns")
"""Columns of ``events`` that come from the event itself."""


Columns = Sequence[Sequence[Any]]
"""The `COLUMNS` of the events of several frames."""


class EventRows(NamedTuple):
    """The events of a frame, as they are stored."""

    columns: Columns
    """Of several frames."""
    session: str
    sequence: int
    """Of the first."""
    first: int
    """The place of the first in ``columns``."""
    end: int
    iterations: Sequence[IterationRan]
    """Those with instructions, which are added up by minute."""


def event_rows(bodies: Iterable[object]) -> tuple[Columns, list[tuple[Any, ...] | None]]:
    """Return the columns that the `EventRows` of frames share, and the others of each; None: no events."""
    rows: list[tuple[Any, ...]] = []
    found: list[tuple[Any, ...] | None] = []
    for body in bodies:
        if isinstance(body, Events):
            first = len(rows)
            rows += map(_values, body.events)
            ran = tuple([event for event in body.events if isinstance(event, IterationRan)])
            found.append((body.session, body.sequence, first, len(rows), ran))
        else:
            found.append(None)
    return list(zip(*rows, strict=True)) or [()] * len(COLUMNS), found


def gathered(events: Iterable[EventRows]) -> list[list[Any]]:
    spans: list[tuple[Columns, int, int]] = []
    for each in events:
        if spans and spans[-1][0] is each.columns and spans[-1][2] == each.first:
            spans[-1] = each.columns, spans[-1][1], each.end
        else:
            spans.append((each.columns, each.first, each.end))
    return [
        [value for columns, first, end in spans for value in columns[place][first:end]]
        for place in range(len(COLUMNS))
    ]


_FIELDS: Mapping[type, tuple[str, str, str, str]] = {
    events.RunStarted: ("run_started", "rank", "run", ""),
    events.RunPlanned: ("run_planned", "steps", "", "epochs"),
    events.RunEnded: ("run_ended", "", "failure", ""),
    events.EpochBegan: ("epoch_began", "index", "", ""),
    events.EpochEnded: ("epoch_ended", "index", "", ""),
    events.WindowBegan: ("window_began", "window", "name", ""),
    events.WindowEnded: ("window_ended", "window", "", ""),
    events.WindowCancelled: ("window_cancelled", "window", "", ""),
    events.Metric: ("metric", "step", "name", "value"),
    events.TryWanted: ("try_wanted", "attempt", "job", ""),
    events.TryBegan: ("try_began", "attempt", "", "batch_size"),
    events.TryEnded: ("try_ended", "attempt", "how", ""),
    events.SearchWanted: ("search_wanted", "only_mw", "select", ""),
    events.EventsDropped: ("events_dropped", "", "reason", "count"),
    PipelineBegan: ("pipeline_began", "stage", "schedule", "stages"),
    IterationRan: ("iteration_ran", "iteration", "", ""),
    PhasesRan: ("phases_ran", "", "names", ""),
}
"""By class, the kind of an event, and its fields in the columns ``index``, ``name`` and ``value``."""


def _values(event: events.Event | Unknown) -> tuple[Any, ...]:
    if isinstance(event, events.StepBoundary):  # nearly all are
        t_ns = event.ended_ns if event.began_ns is None else event.began_ns
        placed, uncertainty_ns = event.placed, event.uncertainty_ns
        return "step_boundary", t_ns, event.ended_ns, event.index, None, None, placed, uncertainty_ns
    if isinstance(event, Unknown):
        return event.kind, None, None, None, None, None, None, None
    kind, *fields = _FIELDS[type(event)]
    index, name, value = (getattr(event, field, None) for field in fields)
    if isinstance(name, tuple):
        name = ",".join(name)[:200]
    number = None if value is None else float(value)
    return kind, event.t_ns, getattr(event, "ended_ns", None), index, name, number, None, None
