"""The search for the power limit of a run: its phase in words, and the limits that were measured. Pure."""

from typing import Literal

from msgspec import Struct

from zeus_stream.protocol.snapshots import RunNow, SearchNow, TrialNow
from zeus_stream.views.quantity import Quantity
from zeus_stream.views.saving import level_name

Tone = Literal["good", "accent", "warn", "dim"]
"""``good``: a limit is chosen. ``accent``: it is searched. ``warn``: something stands in the way."""


class PhaseView(Struct, frozen=True):
    """The state of a search in a few words."""

    text: str
    tone: Tone
    more: str = ""
    """Progress of the limit that is measured, or the reason why none is set."""


class TrialView(Struct, frozen=True, kw_only=True):
    """One limit that was measured."""

    level: str
    energy: Quantity
    time: Quantity
    mark: Literal["", "chosen", "best", "again"]


def phase_of(run: RunNow) -> PhaseView:
    """Return the phase of a run in a live snapshot."""
    search = run.search
    if search is None:
        if run.ended_wall_ns is not None:
            return PhaseView("ended", "dim")
        return PhaseView("only measured" if run.step is not None else "waiting for steps", "dim")
    phase = _phase(search)
    return PhaseView(f"{phase.text}, ended", "dim", phase.more) if run.ended_wall_ns is not None else phase


def _phase(search: SearchNow) -> PhaseView:
    level = "" if search.limit_mw is None else level_name(search.limit_mw / 1000, search.clock_mhz)
    match search.phase:
        case "waiting":
            return PhaseView("waiting for steps", "dim")
        case "measuring":
            if not search.trial:
                return PhaseView("measuring", "accent")
            of = "" if search.trials_planned is None else f" of {search.trials_planned}"
            steps = f"step {search.steps_done} of {search.steps_wanted}" if search.steps_wanted else ""
            return PhaseView(f"trial {search.trial}{of}: {level}", "accent", steps)
        case "observing":
            return PhaseView("only observed", "warn", search.reason)
        case "within a budget":
            return PhaseView(f"budget: {level}", "warn", search.reason)
        case _:
            return PhaseView(f"{search.phase} {level}", "good", search.reason)


def measuring_words(search: SearchNow) -> str:
    """Return the limit that is measured now, and how far; empty: none is."""
    if search.phase != "measuring" or search.limit_mw is None:
        return ""
    level = level_name(search.limit_mw / 1000, search.clock_mhz)
    if not search.steps_wanted:
        return f"measuring {level}"
    return f"measuring {level}, {search.steps_done or 0} of {search.steps_wanted} steps"


def trials_of(search: SearchNow) -> tuple[TrialView, ...]:
    """Return the limits that were measured, the highest first."""
    return tuple(
        _trial(trial, search) for trial in sorted(search.trials, key=lambda t: (-t.limit_mw, t.confirms))
    )


def _trial(trial: TrialNow, search: SearchNow) -> TrialView:
    measuring = search.phase == "measuring"
    mark: Literal["", "chosen", "best", "again"] = ""
    if trial.confirms:
        mark = "again"
    elif not measuring and trial.limit_mw == search.limit_mw:
        mark = "chosen"
    elif measuring and trial.limit_mw == search.best_mw:
        mark = "best"
    return TrialView(
        level=level_name(trial.limit_mw / 1000, trial.clock_mhz),
        energy=Quantity(trial.step_j, "J/step"),
        time=Quantity(trial.step_ms, "ms"),
        mark=mark,
    )
