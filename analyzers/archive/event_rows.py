"""Events as rows of the table ``events``, made where they were decoded. Pure."""

from collections.abc import Sequence
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
    """Return the events of a frame as they are stored."""
    iterations = [event for event in body.events if isinstance(event, IterationRan)]
    return EventRows(body.session, body.sequence, list(map(_values, body.events)), iterations)


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
