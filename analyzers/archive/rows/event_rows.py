"""Events as rows of the table ``events``, made where they were decoded. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from zeus_stream.protocol import events
from zeus_stream.protocol.events import PhasesRan
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Events
from zeus_stream.protocol.pipelines import IterationRan, PipelineBegan

COLUMNS = ("kind", "t_ns", "ended_ns", "index", "name", "value", "placed", "uncertainty_ns")
"""Columns of ``events`` that come from the event itself."""


class EventRows(NamedTuple):
    """The events of a frame, as they are stored."""

    session: str
    sequence: int
    """Of the first."""
    rows: Sequence[tuple[Any, ...]]
    """The `COLUMNS` of each."""
    iterations: Sequence[IterationRan]
    """Those with instructions, which are added up by minute."""


def event_rows(body: Events) -> EventRows:
    ran = [event for event in body.events if isinstance(event, IterationRan)]
    return EventRows(body.session, body.sequence, list(map(_values, body.events)), ran)


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
