"""The pipeline of a run and its plan of clocks, for people. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from zeus_stream.views.costs import JOULES_PER_KWH, money
from zeus_stream.views.quantity import Quantity, seconds, with_bounds

PIPELINE = """
SELECT pipelines.*, number, slowdown, promised_s, promised_j, unplanned_s, unplanned_j, measured_s,
    first_iteration, plans.state AS plan_state, plans.reason AS plan_reason, plans.iterations,
    saved, saved_low, saved_high, longer, longer_low, longer_high
FROM pipelines LEFT JOIN plans ON plans.run = pipelines.run AND first_iteration IS NOT NULL
WHERE pipelines.run = {run} ORDER BY number DESC NULLS LAST LIMIT 1
"""
"""The pipeline of a run with its last plan that began."""
POINTS = """
SELECT slowdown, time_s, energy_j, bound_j, unplanned_s, unplanned_j FROM plan_points
WHERE run = {run} ORDER BY slowdown
"""
PRICED = 1000
"""Iterations of all replicas that a choice is priced for."""
ROUNDED = 1.001
"""By so much a plan may be longer than asked for, as times are rounded."""


class PipelineChoice(Struct, frozen=True, kw_only=True):
    """A duration of iterations that may be chosen with ``--slowdown``, and what it costs by the profile."""

    slowdown: float | None
    """None: the highest clocks, without a plan."""
    time_s: float
    """Of an iteration."""
    energy_j: float
    """Of an iteration of one replica."""
    saved_percent: float
    hours: float
    """Of PRICED iterations, as all that follows."""
    kwh: float
    cost: str
    """Empty: no price is known."""
    chosen: bool = False
    """It is what the plan in force was asked for."""

    @property
    def name(self) -> str:
        if self.slowdown is None:
            return "highest clocks"
        return f"{self.slowdown:g}{', chosen' if self.chosen else ''}"


def choices_of(
    points: Sequence[Mapping[str, Any]], row: Mapping[str, Any], prices: Sequence[Mapping[str, Any]] = ()
) -> list[PipelineChoice]:
    """Return the highest clocks, if finite, and the finite points that save more than all faster ones.

    The point that was asked for has what the last plan promises, unless that waits for a slower replica.

    ``points``: rows of `POINTS`; ``row``: of `PIPELINE`; ``prices``: of ``SIGNALS_NOW`` or ``costs``.
    """
    if not points or not points[0]["unplanned_j"] > 0:
        return []
    first = points[0]
    at_top = {**first, "slowdown": None, "time_s": first["unplanned_s"], "energy_j": first["unplanned_j"]}
    found: list[PipelineChoice] = []
    for point in (at_top, *points):
        chosen = row["number"] is not None and row["slowdown"] == point["slowdown"]
        if chosen and row["promised_s"] <= ROUNDED * point["slowdown"] * first["unplanned_s"]:
            point = {**point, "time_s": row["promised_s"], "energy_j": row["promised_j"]}  # noqa: PLW2901
        if found and point["energy_j"] >= found[-1].energy_j:
            continue
        energy_j = PRICED * max(row["replicas"], 1) * point["energy_j"]
        saved_percent = 100 * (1 - point["energy_j"] / first["unplanned_j"])
        hours = PRICED * point["time_s"] / 3600
        if not all(map(math.isfinite, (energy_j, saved_percent, hours))):
            if not found:
                return []
            continue
        found.append(
            PipelineChoice(
                slowdown=point["slowdown"],
                time_s=point["time_s"],
                energy_j=point["energy_j"],
                saved_percent=saved_percent,
                hours=hours,
                kwh=energy_j / JOULES_PER_KWH,
                cost=money(energy_j, prices),
                chosen=chosen,
            )
        )
    return found


class PipelineView(Struct, frozen=True, kw_only=True):
    """A pipeline, and what its last plan of clocks changed, as measured."""

    shape: str
    state: str
    plan: int | None
    """None: no plan began yet."""
    energy: Quantity
    """Percent of an iteration's energy, all GPUs, that it takes less than before, at the highest clock."""
    time: Quantity
    """Percent that an iteration takes longer."""
    details: str = ""
    """The promise, and why the plan was chosen or ended."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "PipelineView":
        """Return the view of a row of `PIPELINE`."""
        energy, time, details = Quantity(None, "%"), Quantity(None, "%"), ""
        if row["number"] is not None:
            energy, time = _percent(row, "saved"), _percent(row, "longer")
            saved = Quantity(100 * (1 - row["promised_j"] / row["unplanned_j"]), "%")
            details = f"promised were {seconds(row['promised_s'])} an iteration and {saved} less energy"
            if row["measured_s"] is not None:
                details += f"; the first iterations took {seconds(row['measured_s'])}"
            if row["plan_reason"]:
                details += f"; {row['plan_reason']}"
        return cls(
            shape=_shape(row),
            state=_state(row),
            plan=row["number"],
            energy=energy,
            time=time,
            details=details,
        )

    @property
    def headline(self) -> str:
        """Return the result in one sentence, without its full stop."""
        if self.plan is None:
            return f"pipeline of {self.shape}: {self.state}"
        return f"plan {self.plan}: {self.measured_words}"

    @property
    def measured_words(self) -> str:
        """Return what iterations under the plan took beside those before."""
        if self.energy.known is None:
            return f"energy and time under it are {self.energy.absent}"
        energy = f"{with_bounds(self.energy)} of the energy of an iteration saved"
        return f"{energy}, {with_bounds(self.time)} time added, against the highest clock, both measured"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return the pipeline as names and texts."""
        facts = [("pipeline", f"{self.shape}: {self.state}")]
        if self.plan is not None:
            facts.append(("plan of clocks", f"{self.measured_words}; {self.details}"))
        return facts


def _percent(row: Mapping[str, Any], name: str) -> Quantity:
    """Return a share of a row with its interval, in percent."""
    found = [None if row[each] is None else 100 * row[each] for each in (name, f"{name}_low", f"{name}_high")]
    return Quantity(found[0], "%", found[1], found[2], absent="not measured yet")


def _shape(row: Mapping[str, Any]) -> str:
    replicas = f", {row['replicas']} replicas" if row["replicas"] > 1 else ""
    return f"{row['stages']} stages, {row['micro_batches']} micro-batches ({row['schedule']}){replicas}"


def _state(row: Mapping[str, Any]) -> str:
    known = f"{row['iterations_profiled']} iterations profiled"
    match row["state"]:
        case "waiting":
            return "it waits for its stages"
        case "profiling":
            again = f"; {row['reason']}" if row["reason"] else ""
            return f"its clocks are being profiled, {known}{again}"
        case "over":
            return f"{known}; it ended: {row['reason']}"
        case _:
            plan = f" plan {row['number']}" if row["number"] is not None else ""
            return f"{row['state']}{plan}, {known}"
