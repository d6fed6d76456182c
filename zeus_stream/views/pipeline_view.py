"""The pipeline of a run and its plan of clocks, for people. Pure."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from zeus_stream.views.quantity import Quantity, figure

PIPELINE = """
SELECT pipelines.*, number, slowdown, promised_s, promised_j, unplanned_s, unplanned_j, measured_s,
    first_iteration, plans.state AS plan_state, plans.reason AS plan_reason
FROM pipelines LEFT JOIN plans ON plans.run = pipelines.run AND first_iteration IS NOT NULL
WHERE pipelines.run = {run} QUALIFY row_number() OVER (ORDER BY number DESC NULLS LAST) = 1
"""
"""The pipeline of a run with its last plan that began."""
POINTS = """
SELECT slowdown, time_s, energy_j, bound_j, unplanned_s, unplanned_j FROM plan_points
WHERE run = {run} ORDER BY slowdown
"""


class PipelineView(Struct, frozen=True, kw_only=True):
    """A pipeline, and what its last plan of clocks promises."""

    shape: str
    state: str
    plan: int | None
    """None: no plan began yet."""
    energy: Quantity
    """Percent of an iteration's energy that the plan saves against the highest clocks."""
    time: Quantity
    """Percent that an iteration takes longer."""
    details: str = ""
    """Energy and time of an iteration as promised, and as measured."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "PipelineView":
        """Return the view of a row of `PIPELINE`."""
        energy, time, details = Quantity(None, "%"), Quantity(None, "%"), ""
        if row["number"] is not None:
            energy = Quantity(100 * (1 - row["promised_j"] / row["unplanned_j"]), "%")
            time = Quantity(100 * (row["promised_s"] / row["unplanned_s"] - 1), "%")
            details = f"{figure(row['promised_j'], 'J')} and {figure(row['promised_s'], 's')} an iteration"
            if row["measured_s"] is not None:
                details += f"; iterations took {figure(row['measured_s'], 's')}"
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
        return f"plan {self.plan} takes {self.promise_words}"

    @property
    def promise_words(self) -> str:
        """Return what the plan promises."""
        added = self.time.known or 0.0
        time = f"{Quantity(abs(added), '%')} {'more' if added >= 0 else 'less'} time"
        return f"{self.energy} less energy than the highest clocks, for {time}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return the pipeline as names and texts."""
        facts = [("pipeline", f"{self.shape}: {self.state}")]
        if self.plan is not None:
            facts.append(("plan of clocks", f"{self.promise_words}: {self.details}"))
        return facts


def _shape(row: Mapping[str, Any]) -> str:
    replicas = f", {row['replicas']} replicas" if row["replicas"] > 1 else ""
    return f"{row['stages']} stages, {row['micro_batches']} micro-batches ({row['schedule']}){replicas}"


def _state(row: Mapping[str, Any]) -> str:
    known = f"{row['iterations_profiled']} iterations profiled"
    match row["state"]:
        case "waiting":
            return "it waits for its stages"
        case "profiling":
            return f"its clocks are being profiled, {known}"
        case "over":
            return f"{known}; it ended: {row['reason']}"
        case _:
            plan = f" plan {row['number']}" if row["number"] is not None else ""
            return f"{row['state']}{plan}, {known}"
