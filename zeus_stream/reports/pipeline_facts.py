"""The pipeline of a run and its plan of clocks, for the report: a question, and its answer in words. Pure."""

from collections.abc import Mapping
from typing import Any

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

Row = Mapping[str, Any]


def pipeline_facts(row: Row) -> list[tuple[str, str]]:
    """Return the pipeline of a run, as names and texts."""
    facts = [("pipeline", f"{shape(row)}: {_state(row)}")]
    if row["number"] is not None:
        facts.append(("plan of clocks", promise(row)))
    return facts


def shape(row: Row) -> str:
    """Return what a pipeline consists of."""
    replicas = f", {row['replicas']} replicas" if row["replicas"] > 1 else ""
    return f"{row['stages']} stages, {row['micro_batches']} micro-batches ({row['schedule']}){replicas}"


def promise(row: Row) -> str:
    """Return what the last plan promises against the highest clocks, and how long iterations took."""
    saved = 100 * (1 - row["promised_j"] / row["unplanned_j"])
    added = 100 * (row["promised_s"] / row["unplanned_s"] - 1)
    measured = "" if row["measured_s"] is None else f"; iterations took {row['measured_s']:.4g} s"
    why = f"; {row['plan_reason']}" if row["plan_reason"] else ""
    return (
        f"{saved:.1f} % less energy than at the highest clocks, for {added:+.1f} % time:"
        f" {row['promised_j']:.4g} J and {row['promised_s']:.4g} s an iteration{measured}{why}"
    )


def _state(row: Row) -> str:
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
