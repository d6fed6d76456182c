"""The search for the power limit of a run: its phase in words, and the limits that were measured. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from math import hypot
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from zeus_stream.protocol.snapshots import RunNow, SearchNow
from zeus_stream.views.quantity import Quantity, figure, half_of, opposite, thousandth, with_half, within_half
from zeus_stream.views.saving import Saving, level_name, saving_of_row

Row = Mapping[str, Any]
Tone = Literal["good", "accent", "warn", "dim"]
"""``good``: a limit is chosen. ``accent``: it is searched. ``warn``: something stands in the way."""


Mark = Literal["", "found", "chosen", "best", "confirmed"]
"""``confirmed``: the choice was measured again, last."""


_PLANS = {
    "waiting": "waiting for stages", "profiling": "profiling clocks", "offering": "plan of clocks chosen",
    "starting": "plan of clocks begins", "following": "clocks follow a plan", "over": "plan of clocks over",
}  # fmt: skip
"""By the state of a pipeline."""


class PhaseView(Struct, frozen=True):
    """The state of a search in a few words."""

    text: str
    tone: Tone
    more: str = ""
    """Progress of the limit that is measured, or the reason why none is set."""


UNMEASURED = Quantity(None, "")
DRIFT = 0.0083
"""Half of the 95 % interval by which two limits differ though nothing but time has passed."""


class TrialView(Struct, frozen=True, kw_only=True):
    """One limit that was measured in one round."""

    level: str
    limit_w: float
    clock_mhz: int | None
    energy: Quantity
    time: Quantity
    mark: Mark
    round: int = 0
    old: bool = False
    """Of an earlier round: before the workload changed, or before the search went on in the background."""
    steps: int = 0
    cost: Quantity = Quantity(None, "J/step")
    """By which the selector decides."""
    energy_change: Quantity = Quantity(None, "%")
    """Percent of the energy of a step at the limit found."""
    time_change: Quantity = Quantity(None, "%")


def phase_of(run: RunNow) -> PhaseView:
    """Return the phase of a run in a live snapshot."""
    search = run.search
    if search is None:
        if run.ended_wall_ns is not None:
            return PhaseView("ended", "dim")
        if run.pipeline is not None:
            return PhaseView(_PLANS.get(run.pipeline, run.pipeline), "accent")
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
    """Return the limits that a live snapshot has, the highest first."""
    rows = [
        {"round": 0, "power_limit_w": each.limit_mw / 1000, "clock_mhz": each.clock_mhz, "steps": each.steps,
         "step_j": each.step_j, "step_s": None if each.step_ms is None else each.step_ms / 1000,
         "cost_j": None, "confirms": each.confirms}
        for each in search.trials
    ]  # fmt: skip
    measuring = search.phase == "measuring"
    decided_mw = search.best_mw if measuring else search.limit_mw
    decided = {0: thousandth(decided_mw)}
    return trials_of_rows(rows, {}, thousandth(search.found_mw), decided, "best" if measuring else "chosen")


def trials_of_rows(
    rows: Iterable[Row],
    within: Mapping[tuple[int, float], Row],
    found_w: float | None,
    decided_w: Mapping[int, float | None],
    decided: Mark = "chosen",
) -> tuple[TrialView, ...]:
    """Return the limits of all rounds, each once: the mean of its visits, weighted by steps.

    A choice that was measured again has no interval: it has one visit, at another time than the limit found.

    ``within``: half widths of the intervals, ``energy_within_j`` and ``step_within_s``, by round and limit.
    ``decided_w``: the limit chosen in a round, or the best so far; ``decided``: the word for it.
    """
    visits: dict[tuple[int, float, bool], list[Row]] = {}
    for row in rows:
        visits.setdefault((row["round"], row["power_limit_w"], row["confirms"]), []).append(row)
    last = max((number for number, *_ in visits), default=0)
    known = {
        place: _step_of(own, {} if place[2] else within.get(place[:2], {})) for place, own in visits.items()
    }
    views = []
    for place in sorted(visits, key=lambda place: (place[0], -place[1], place[2])):
        (number, limit_w, confirms), own = place, visits[place]
        energy, time = known[place]
        found = known.get((number, found_w or 0.0, False), (UNMEASURED, UNMEASURED))
        mark: Mark = "found" if limit_w == found_w else ""
        views.append(
            TrialView(
                round=number,
                old=number < last,
                level=level_name(limit_w, own[0]["clock_mhz"]),
                limit_w=limit_w,
                clock_mhz=own[0]["clock_mhz"],
                steps=sum(row["steps"] for row in own),
                energy=energy,
                time=time,
                cost=Quantity(_mean(own, "cost_j"), "J/step"),
                mark="confirmed" if confirms else decided if limit_w == decided_w.get(number) else mark,
                energy_change=_change(energy, found[0]),
                time_change=_change(time, found[1]),
            )
        )
    return tuple(views)


def as_believed(
    rows: Sequence[Row],
    within: Mapping[tuple[int, float], Row],
    believed: Mapping[tuple[int, float], Row],
    decided: Row,
) -> tuple[TrialView, ...]:
    """Return limits as the search that decided knows them: what it states of its choice is its row.

    A mean of visits has delays and drift in it, and they are not in what is stated.

    Args:
        rows: visits, as measured.
        within: as in `trials_of_rows`.
        believed: ``step_j``, ``step_s`` and ``chosen_limit_w`` by round and limit, of rounds that decided.
        decided: row of ``saving_of`` of the run, of the last of them.
    """
    found_w, eta = decided["default_limit_w"], eta_of(decided["selector"])
    # Without a round of its own that has decided, the choice is from an earlier run.
    last = max((row["round"] for row in rows), default=0)
    chosen_w = {number: row["chosen_limit_w"] for (number, _), row in believed.items()}
    chosen_w = chosen_w or {last: decided["power_limit_w"]}
    decision = max(chosen_w)
    saving = saving_of_row(decided)
    weights = {} if eta is None else _weights(rows, eta)
    measured = trials_of_rows(rows, within, found_w, chosen_w)
    founds = {each.round: each for each in measured if each.limit_w == found_w and each.mark != "confirmed"}
    views = []
    for each in measured:
        of_found, belief = (believed.get((each.round, limit_w)) for limit_w in (found_w, each.limit_w))
        if of_found is not None and belief is not None:
            found = _believed(founds.get(each.round), of_found)
            energy, time, cost = each.energy, each.time, each.cost
            if each.mark != "confirmed":
                energy, time = found if each.limit_w == found_w else _believed(each, belief)
                cost = _cost(belief["step_j"], belief["step_s"], eta, weights.get(each.round), cost.known)
            changes = _change(energy, found[0]), _change(time, found[1])
            each = replace(  # noqa: PLW2901  (the same limit)
                each, cost=cost, energy=energy, time=time, energy_change=changes[0], time_change=changes[1]
            )
        views.append(as_stated(each, saving) if each.round == decision else each)
    return tuple(views)


def _believed(measured: TrialView | None, belief: Row) -> tuple[Quantity, Quantity]:
    """Return energy and time of a step as the search believes them, each as sure as it was measured."""
    halves = (None, None) if measured is None else (half_of(measured.energy), half_of(measured.time))
    return (
        within_half(belief["step_j"], "J/step", halves[0]),
        within_half(1000 * belief["step_s"], "ms", halves[1]),
    )


def as_stated(trial: TrialView, saving: Saving | None) -> TrialView:
    """Return a limit; the one chosen with what is stated of it, as everywhere else."""
    if saving is None or saving.energy.known is None or trial.mark != "chosen":
        return trial
    return replace(trial, energy_change=opposite(saving.energy), time_change=saving.time)


def _weights(rows: Iterable[Row], eta: float) -> dict[int, float]:
    """Return the watts that a second costs, by round."""
    return {
        row["round"]: (row["cost_j"] - eta * row["step_j"]) / row["step_s"]
        for row in rows
        if row["cost_j"] is not None and row["step_j"] is not None and row["step_s"]
    }


def _cost(
    step_j: float | None,
    step_s: float | None,
    eta: float | None,
    weight_w: float | None,
    known_j: float | None,
) -> Quantity:
    """Return the cost of a step. ``known_j``: of a selector that weighs no energy against time."""
    if eta is None or weight_w is None or step_j is None or step_s is None:
        return Quantity(known_j, "J/step")
    return Quantity(eta * step_j + weight_w * step_s, "J/step")


def eta_of(selector: str | None) -> float | None:
    """Return the share of energy in the cost of a selector. None: it decides by no such cost."""
    name, _, number = (selector or "").partition(":")
    return {"energy": 1.0, "time": 0.0}.get(name) if name != "cost" else float(number or 0.5)


def trial_table(trials: Sequence[TrialView]) -> tuple[list[str], list[list[str]]]:
    """Return heads and cells of limits, against the limit found; the more important columns are first."""
    what = "clock" if any(each.clock_mhz is not None for each in trials) else "limit"
    heads = [what, "", "energy", "time", "cost, J", "J a step", "ms a step", "steps"]
    rows = [
        [
            each.level, each.mark, with_half(each.energy_change), with_half(each.time_change),
            figure(each.cost.known), figure(each.energy.known), figure(each.time.known), f"{each.steps:,}",
        ]
        for each in trials
    ]  # fmt: skip
    if all(each.cost.known is None for each in trials):
        heads.remove("cost, J")
        for row in rows:
            del row[4]
    if any(each.old for each in trials):
        heads[1] = "round"
        for each, row in zip(trials, rows, strict=True):
            row[1] = f"{each.round} {each.mark}".rstrip()
    return heads, rows


def _mean(visits: Sequence[Row], name: str) -> float | None:
    """Return the mean of a figure, weighted by steps. None: it is not known of one of them."""
    steps = sum(row["steps"] for row in visits)
    if not steps or any(row[name] is None for row in visits):
        return None
    return float(sum(row[name] * row["steps"] for row in visits) / steps)


def _step_of(visits: Sequence[Row], half: Row) -> tuple[Quantity, Quantity]:
    """Return energy and time of a step at one limit. ``half``: as in ``within`` of `trials_of_rows`."""
    step_s, half_s = _mean(visits, "step_s"), half.get("step_within_s")
    return (
        within_half(_mean(visits, "step_j"), "J/step", half.get("energy_within_j")),
        within_half(None if step_s is None else 1000 * step_s, "ms", half_s, 1000),
    )


def _change(value: Quantity, found: Quantity) -> Quantity:
    """Return by how much a figure differs from that at the limit found: as sure as both are known."""
    if value.known is None or not found.known:
        return Quantity(None, "%", absent="the limit found was not measured")
    ratio, halves = value.known / found.known, (half_of(value), half_of(found))
    within = None
    if value is not found and halves[0] is not None and halves[1] is not None:
        within = hypot(halves[0] / found.known, ratio * halves[1] / found.known, ratio * DRIFT)
    return within_half(100 * (ratio - 1), "%", within, 100)
