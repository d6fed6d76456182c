"""The search for the power limit of a run: its phase in words, and the limits that were measured. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from zeus_stream.protocol.snapshots import RunNow, SearchNow, TrialNow
from zeus_stream.views.quantity import Quantity, within_half
from zeus_stream.views.saving import level_name

Row = Mapping[str, Any]
Tone = Literal["good", "accent", "warn", "dim"]
"""``good``: a limit is chosen. ``accent``: it is searched. ``warn``: something stands in the way."""


Mark = Literal["", "found", "chosen", "best", "confirmed"]
"""``confirmed``: the choice was measured again, last."""


class PhaseView(Struct, frozen=True):
    """The state of a search in a few words."""

    text: str
    tone: Tone
    more: str = ""
    """Progress of the limit that is measured, or the reason why none is set."""


class TrialView(Struct, frozen=True, kw_only=True):
    """One limit that was measured."""

    level: str
    limit_w: float
    clock_mhz: int | None
    energy: Quantity
    time: Quantity
    mark: Mark
    energy_change: Quantity = Quantity(None, "%")
    """Percent of the energy of a step at the limit found."""
    time_change: Quantity = Quantity(None, "%")


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
    found = next((t for t in search.trials if t.limit_mw == search.found_mw and not t.confirms), None)
    ordered = sorted(search.trials, key=lambda t: (-t.limit_mw, t.confirms))
    return tuple(_trial(trial, search, found) for trial in ordered)


def _trial(trial: TrialNow, search: SearchNow, found: TrialNow | None) -> TrialView:
    measuring = search.phase == "measuring"
    mark: Mark = ""
    if trial.confirms:
        mark = "confirmed"
    elif not measuring and trial.limit_mw == search.limit_mw:
        mark = "chosen"
    elif measuring and trial.limit_mw == search.best_mw:
        mark = "best"
    elif trial.limit_mw == search.found_mw:
        mark = "found"
    return TrialView(
        level=level_name(trial.limit_mw / 1000, trial.clock_mhz),
        limit_w=trial.limit_mw / 1000,
        clock_mhz=trial.clock_mhz,
        energy=Quantity(trial.step_j, "J/step"),
        time=Quantity(trial.step_ms, "ms"),
        mark=mark,
        energy_change=_change(trial.step_j, found.step_j if found else None),
        time_change=_change(trial.step_ms, found.step_ms if found else None),
    )


def mark_of(limit_w: float, saving: Row | None) -> Mark:
    """Return the role of a limit in the row of ``saving_of``."""
    if saving is None or limit_w not in (saving["power_limit_w"], saving["default_limit_w"]):
        return ""
    return "chosen" if limit_w == saving["power_limit_w"] else "found"


def _change(value: float | None, found: float | None, within: float | None = None) -> Quantity:
    """Return by how much a value differs from that at the limit found. ``within``: half its interval."""
    if value is None or not found:
        return Quantity(None, "%", absent="the limit found was not measured")
    change = 100 * (value / found - 1)
    return within_half(change, "%", within, 100 / found)


def trials_of_rows(
    rows: Sequence[Row], within: Mapping[tuple[int, float], Row], saving: Row | None
) -> tuple[TrialView, ...]:
    """Return the limits of one round that was measured, the highest first.

    Args:
        rows: of the round: ``round``, ``power_limit_w``, ``clock_mhz``, ``step_j``, ``step_s``, ``confirms``.
        within: half widths of the intervals by round and limit: ``energy_within_j``, ``step_within_s``.
        saving: of ``saving_of``, for the limits found and chosen.
    """
    found_w = None if saving is None else saving["default_limit_w"]
    found = next((row for row in rows if row["power_limit_w"] == found_w and not row["confirms"]), None)
    views = []
    for row in sorted(rows, key=lambda row: (-row["power_limit_w"], row["confirms"])):
        half = within.get((row["round"], row["power_limit_w"]), {}) if row is not found else {}
        views.append(
            TrialView(
                level=level_name(row["power_limit_w"], row["clock_mhz"]),
                limit_w=row["power_limit_w"],
                clock_mhz=row["clock_mhz"],
                energy=Quantity(row["step_j"], "J/step"),
                time=Quantity(1000 * row["step_s"], "ms"),
                mark="confirmed" if row["confirms"] else mark_of(row["power_limit_w"], saving),
                energy_change=_change(
                    row["step_j"], None if found is None else found["step_j"], half.get("energy_within_j")
                ),
                time_change=_change(
                    row["step_s"], None if found is None else found["step_s"], half.get("step_within_s")
                ),
            )
        )
    return tuple(views)
