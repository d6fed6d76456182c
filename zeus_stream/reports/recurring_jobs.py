"""Recurring jobs: queries over the archive, and their text."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TextIO, TypeVar

import pyarrow as pa
from rich.table import Table
from rich.text import Text

from analyzers.batch_size.history import MAX_TRIES, Known, Learned, by_job, choose, learn
from analyzers.batch_size.registry import beliefs, parse
from analyzers.results.rows import JobRow, TryRow
from zeus_stream.reports.html.questions import quoted
from zeus_stream.reports.tables import console_of, write

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One recurring job: its rows of the archive, and what a policy has learned from them."""

    learned: Learned
    policy: str
    history: pa.Table
    sizes: pa.Table
    saved: pa.Table
    next: tuple[tuple[str, int, str], ...]
    """For each setup: its name, the batch size of the next try, and the reason."""
    beliefs: tuple[str, ...]
    """Lines in which the policy describes its estimates. Empty for a policy without estimates."""


def look_up(ask: Ask, job: str, name: str | None = None) -> Shown | None:
    """Return a recurring job, or None if the archive has none of this name.

    Args:
        ask: answers SQL.
        job: its name.
        name: of the policy that learns from its tries; None means the policy of the analyzer.
    """
    name = name or str(ask(_POLICY)["value"].to_pylist()[0])
    policy = parse(name)
    specs = ask(_JOB.format(columns=_columns(JobRow), job=quoted(job))).to_pylist()
    if not specs:
        return None
    spec = _row(JobRow, specs[0])
    about = {"job": quoted(job), "version": spec.version, "most": MAX_TRIES}
    rows = ask(_TRIES.format(columns=_columns(TryRow), **about)).to_pylist()
    tries = tuple(_row(TryRow, row) for row in reversed(rows))
    learned = by_job(Known((spec,), tries))[job]
    setups = list(dict.fromkeys(row.setup for row in learned.tries.values()))
    chosen = []
    for setup in setups:
        choice = choose(policy, learned, setup)
        chosen.append((setup, choice.batch_size, choice.reason))
    return Shown(
        learned=learned,
        policy=name,
        history=ask(_HISTORY.format(**about)),
        sizes=ask(_SIZES.format(**about)),
        saved=ask(_SAVED.format(**about)),
        next=tuple(chosen),
        beliefs=tuple(
            f"{size} on {setup} costs {believed}"
            for setup in setups
            for size, believed in sorted(beliefs(policy, learn(policy, learned), setup).items())
        ),
    )


def _columns(kind: type[JobRow] | type[TryRow]) -> str:
    return ", ".join(field.name for field in fields(kind))


def _row(kind: Callable[..., R], values: dict[str, Any]) -> R:
    return kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    )


def print_job(shown: Shown, out: TextIO) -> None:
    """Print a job: its target, the next try, its tries, its batch sizes and the energy saved."""
    console, row = console_of(out), shown.learned.row
    console.rule(Text(row.job), align="left", style="dim")
    better = "at most" if row.lower_is_better else "at least"
    sizes = ", ".join(map(str, row.batch_sizes))
    grid = Table.grid(padding=(0, 3))
    facts = [
        ("target", f"{row.metric} of {better} {row.target:g} within {row.max_epochs} epochs"),
        ("sizes", f"{sizes}; {row.default_batch_size} by default"),
        ("cost", f"{row.eta:g} x energy + {1 - row.eta:g} x highest power limit x time"),
    ]
    facts.append(("policy", shown.policy))
    facts += [("next", f"{size} on {setup}: {why}") for setup, size, why in shown.next]
    facts += [("estimate", line) for line in shown.beliefs]
    for name, value in facts:
        grid.add_row(Text(name, style="bold"), Text(value))
    console.print(grid)
    for title, table in (("Tries", shown.history), ("Sizes", shown.sizes), ("Saved", shown.saved)):
        if table.num_rows:
            console.print(f"\n{title}")
            write(table, "table", out)
