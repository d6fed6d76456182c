"""Events as rows of the table ``events``, made where they were decoded. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

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
from zeus_stream.protocol.frames import Events
from zeus_stream.protocol.phases import PhasesRan
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
    """Return the columns that the `EventRows` of these frames share, and the other fields of each.

    ``bodies``: of the frames. Those that are no events have None.
    """
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
    """Return the `COLUMNS` of the events of all these frames."""
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


def _values(event: Event | Unknown) -> tuple[Any, ...]:
    """Return the `COLUMNS` of an event."""
    match event:
        case StepBoundary():  # nearly all are
            t_ns = event.ended_ns if event.began_ns is None else event.began_ns
            placed, uncertainty_ns = event.placed, event.uncertainty_ns
            return "step_boundary", t_ns, event.ended_ns, event.index, None, None, placed, uncertainty_ns
        case RunStarted():
            return "run_started", event.t_ns, None, event.rank, event.run, None, None, None
        case EpochBegan():
            return "epoch_began", event.t_ns, None, event.index, None, None, None, None
        case EpochEnded():
            return "epoch_ended", event.t_ns, None, event.index, None, None, None, None
        case WindowBegan():
            return "window_began", event.t_ns, None, event.window, event.name, None, None, None
        case WindowEnded():
            return "window_ended", event.t_ns, None, event.window, None, None, None, None
        case WindowCancelled():
            return "window_cancelled", event.t_ns, None, event.window, None, None, None, None
        case Metric():
            return "metric", event.t_ns, None, event.step, event.name, event.value, None, None
        case TryWanted():
            return "try_wanted", event.t_ns, None, event.attempt, event.job, None, None, None
        case TryBegan():
            return "try_began", event.t_ns, None, event.attempt, None, float(event.batch_size), None, None
        case TryEnded():
            return "try_ended", event.t_ns, None, event.attempt, event.how, None, None, None
        case SearchWanted():
            return "search_wanted", event.t_ns, None, event.only_mw, event.select, None, None, None
        case PipelineBegan():
            return (
                "pipeline_began",
                event.t_ns,
                None,
                event.stage,
                event.schedule,
                float(event.stages),
                None,
                None,
            )
        case IterationRan():
            return "iteration_ran", event.t_ns, event.ended_ns, event.iteration, None, None, None, None
        case RunPlanned():
            epochs = None if event.epochs is None else float(event.epochs)
            return "run_planned", event.t_ns, None, event.steps, None, epochs, None, None
        case PhasesRan():
            return "phases_ran", event.t_ns, None, None, ",".join(event.names)[:200], None, None, None
        case EventsDropped():
            return "events_dropped", event.t_ns, None, None, event.reason, float(event.count), None, None
        case RunEnded():
            return "run_ended", event.t_ns, None, None, event.failure, None, None, None
        case Unknown():
            return event.kind, None, None, None, None, None, None, None
