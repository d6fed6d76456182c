"""Recurring jobs: queries over the archive, and their text."""

from collections.abc import Callable, Mapping
from typing import Any, TextIO, TypeVar

import pyarrow as pa
from msgspec import Struct
from rich.text import Text

from analyzers.batch_size.known_jobs import MAX_TRIES, LearnedHistory, by_job, choose
from analyzers.batch_size.policy import Choice
from analyzers.batch_size.registry import estimates, parse
from analyzers.results.rows import JobRow, TryRow
from zeus_stream.quoting import quoted
from zeus_stream.screens.site.job_belief import Estimate, JobBelief, SetupBelief
from zeus_stream.screens.text.tables import console_of, print_facts, write

ALL = "SELECT * FROM job_savings ORDER BY job, setup"
SHOWN = {
    "job": "job",
    "setup": "setup",
    "tries": "tries",
    "best_batch_size": "best_size",
    "saved_j": "saved_j",
    "saved_percent": "saved_percent",
}
"""Columns of `ALL` that fit a terminal of 80 columns."""
_JOB = "SELECT {columns} FROM jobs WHERE job = {job} ORDER BY version DESC LIMIT 1"
_TRIES = "SELECT {columns} FROM tries WHERE job = {job} ORDER BY number DESC LIMIT {most}"
_HISTORY = """
FROM (
    SELECT number, recurrence, batch_size, setup, ended, epochs, metrics[-1] AS metric, energy_j, duration_s,
        cost_j, coalesce(nullif(ended_why, ''), reason) AS why
    FROM tries WHERE job = {job} AND version = {version} ORDER BY number DESC LIMIT 40
) ORDER BY number
"""
_POLICY = "SELECT value FROM settings WHERE name = 'policy' ORDER BY start DESC LIMIT 1"
_SIZES = "SELECT * EXCLUDE (job) FROM job_sizes WHERE job = {job} ORDER BY setup, batch_size"
_SAVED = "SELECT * FROM job_savings WHERE job = {job} ORDER BY setup"

R = TypeVar("R", JobRow, TryRow)
Ask = Callable[[str], pa.Table]


class Shown(Struct, frozen=True, kw_only=True):
    """One recurring job: its rows of the archive, and what a policy has learned from them."""

    learned: LearnedHistory
    policy: str
    setups: tuple[SetupBelief, ...]
    history: pa.Table
    sizes: pa.Table
    saved: pa.Table
    next: tuple[tuple[str, int, str], ...]
    """For each setup: its name, the batch size of the next try, and the reason."""


def look_up(ask: Ask, job: str, name: str | None = None) -> Shown | None:
    """Return a recurring job, if there. ``name``: the policy that learns; None: that of the analyzer."""
    name = name or str(ask(_POLICY)["value"].to_pylist()[0])
    policy = parse(name)
    specs = ask(_JOB.format(columns=_columns(JobRow), job=quoted(job))).to_pylist()
    if not specs:
        return None
    spec = _row(JobRow, specs[0])
    about = {"job": quoted(job), "version": spec.version, "most": MAX_TRIES}
    rows = ask(_TRIES.format(columns=_columns(TryRow), **about)).to_pylist()
    tries = tuple(_row(TryRow, row) for row in reversed(rows))
    learned = by_job((spec,), tries)[job]
    setups = list(dict.fromkeys(row.setup for row in learned.tries.values()))
    chosen, believed = [], []
    for setup in setups:
        choice = choose(policy, learned, setup)
        chosen.append((setup, choice.batch_size, choice.reason))
        believed.append(_belief(learned, setup, choice, estimates(policy, learned.known(), setup)))
    return Shown(
        learned=learned,
        policy=name,
        setups=tuple(believed),
        history=ask(_HISTORY.format(**about)),
        sizes=ask(_SIZES.format(**about)),
        saved=ask(_SAVED.format(**about)),
        next=tuple(chosen),
    )


def _belief(
    learned: LearnedHistory, setup: str, choice: Choice, known: Mapping[int, tuple[float, float, float]]
) -> SetupBelief:
    ended = [
        row.batch_size for row in learned.tries.values() if row.setup == setup and row.cost_j is not None
    ]
    return SetupBelief(
        setup=setup,
        next_size=choice.batch_size,
        reason=choice.reason,
        estimates=tuple(Estimate(size, *costs, ended.count(size)) for size, costs in sorted(known.items())),
    )


def job_belief(ask: Ask, job: str) -> JobBelief | None:
    """Return what the policy of the analyzer believes of a recurring job. None: there is none."""
    shown = look_up(ask, job)
    if shown is None:
        return None
    return JobBelief(policy=shown.policy, target=_target(shown.learned.row), setups=shown.setups)


def _target(row: JobRow) -> str:
    better = "at most" if row.lower_is_better else "at least"
    return f"{row.metric} of {better} {row.target:g} within {row.max_epochs} epochs"


def _columns(kind: type[JobRow] | type[TryRow]) -> str:
    return ", ".join(kind.__struct_fields__)


def _row(kind: Callable[..., R], values: dict[str, Any]) -> R:
    return kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    )


def print_job(shown: Shown, out: TextIO) -> None:
    """Print a job: its target, the next try, its tries, its batch sizes and the energy saved."""
    console, row = console_of(out), shown.learned.row
    console.rule(Text(row.job), align="left", style="dim")
    sizes = ", ".join(map(str, row.batch_sizes))
    facts = [
        ("target", _target(row)),
        ("sizes", f"{sizes}; {row.default_batch_size} by default"),
        ("cost", f"{row.eta:g} x energy + {1 - row.eta:g} x highest power limit x time"),
        ("policy", shown.policy),
    ]
    facts += [("next", f"{size} on {setup}: {why}") for setup, size, why in shown.next]
    facts += [
        (
            "estimate",
            f"{one.batch_size} on {of.setup} costs {one.cost_j:.3g} J ({one.low_j:.3g} to {one.high_j:.3g})",
        )
        for of in shown.setups
        for one in of.estimates
    ]
    print_facts(console, facts)
    for title, table in (("Tries", shown.history), ("Sizes", shown.sizes), ("Saved", shown.saved)):
        if table.num_rows:
            console.print(f"\n{title}")
            write(table, "table", out)
