"""The summary of a run that has just ended, and the last line of a script that started its services itself.

    python -m zeus_stream.cli.running.run_summary RUN

prints that line: joules with their interval, and what the power limit saved.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from zeus_stream.cli.running.signals import Signals
from zeus_stream.cli.running.waits import Late, deadline, until
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import UnreachableError, ZeusStreamError
from zeus_stream.own_services import say
from zeus_stream.paths import Places, places
from zeus_stream.protocol.snapshots import SESSIONS_BEGUN, Snapshot
from zeus_stream.quoting import quoted
from zeus_stream.training.sender import flush_s
from zeus_stream.transport.client import Connection, ask_now
from zeus_stream.views.run_view import RunView, run_of_live

if TYPE_CHECKING:
    from zeus_stream.screens.text.run_cost import Summary

REPORT_S = 3.0
"""Longest wait for the report, after the command. ``ZEUS_STREAM_FLUSH_S`` may be longer."""
CLOSES = 2 / 3
"""Of that wait: until the run is closed. The rest is for the queries of the report."""
BEHIND_MS = 1_000
"""An analyzer that is behind by more is named as the reason."""
LAST_WORDS_S = 0.5
"""From the end of a command until the collector has taken in what it sent last."""
_CLOSED = """
SELECT count(*) AS sessions, count(*) = (
    SELECT count(DISTINCT session) FROM windows WHERE run = {run} AND kind = 'run'
) AS closed FROM sessions WHERE run = {run}
"""


def report_s(environ: Mapping[str, str]) -> float:
    """Return the longest wait for the report of a run that has ended, s."""
    return max(REPORT_S, flush_s(environ.get("ZEUS_STREAM_FLUSH_S", "")))


def sessions_begun(now: Snapshot) -> int | None:
    """Return how many training processes have published to a collector. None: it does not say."""
    return dict(now.counters).get(SESSIONS_BEGUN)


def wait_for_summary(
    where: Places, name: str, signals: Signals, begun: int | None = None
) -> "Summary | None":
    """Return the summary of a run once it is closed, or as far as it is known by then. None: it has none.

    Args:
        where: the setup of the analyzer.
        name: of the run.
        signals: end the wait.
        begun: sessions before the command. Where no other began, nothing was published: the wait is short.

    Raises:
        Late: it took longer than `report_s`.
        UnreachableError: the analyzer has gone.
    """
    from zeus_stream.screens.text.run_cost import summarize

    connection, longest_s = Connection(where), report_s(os.environ)
    sessions = 0
    all_sent_ns = monotonic_ns() + round(LAST_WORDS_S * 1e9)

    def closed() -> bool:
        nonlocal sessions
        (row,) = connection.sql(_CLOSED.format(run=quoted(name))).to_pylist()
        sessions = row["sessions"]
        if not sessions and monotonic_ns() >= all_sent_ns:
            with suppress(UnreachableError):
                return begun is not None and sessions_begun(ask_now(where, process="collector")) == begun
            return False
        return bool(sessions and row["closed"])

    with deadline(longest_s, "the report"):
        until(closed, CLOSES * longest_s, signals)
        return summarize(connection.sql, name) if sessions else None


def runs_begun(where: Places, since_ns: int) -> list[str]:
    """Return the names of the runs that began since then, UTC. Raises ZeusStreamError."""
    began = f"SELECT run FROM sessions WHERE world_size > 0 AND began_wall_ns >= {since_ns}"  # noqa: S608  (a number)
    rows = Connection(where).sql(f"{began} GROUP BY run ORDER BY min(began_wall_ns)")
    names: list[str] = rows["run"].to_pylist()
    return names


def so_far(where: Places, name: str, report: str = "zeus-stream report") -> str:
    """Return what is known of a run whose report is late, what it waits for, and how to ask later."""
    late = f"the report is not ready after {report_s(os.environ):g} s"
    more = f"`{report} {name}` prints what is archived."
    try:
        now = ask_now(where)
    except UnreachableError:
        return f"{late}: the analyzer does not answer. {more}"
    behind = now.lag_ms or 0
    why = f"the analyzer is {behind / 1000:.0f} s behind" if behind > BEHIND_MS else "this host is busy"
    run = next((each for each in now.runs if each.run == name), None)
    known = "nothing of the run has arrived" if run is None else in_words(run_of_live(run, now.wall_ns))
    return f"{late}: {why}. So far {known}. {more}"


def in_words(view: RunView) -> str:
    """Return the energy of a run, its interval, and what its limit saved."""
    known = view.energy.known is not None
    parts = [f"this run used {view.energy_words}" if known else f"its energy is {view.energy_words}"]
    if view.saving is not None:
        parts.append(view.saving.headline)
    elif view.undecided:
        parts.append(view.undecided)
    return "; ".join(parts)


def closing_line(where: Places, name: str, signals: Signals) -> str:
    """Return what a run cost and saved as one sentence, or why that is not known."""
    try:
        summary = wait_for_summary(where, name, signals)
    except Late:
        return so_far(where, name)
    except ZeusStreamError as wrong:
        return str(wrong)
    known = "the energy of this run is not known yet" if summary is None else in_words(summary.view)
    return f"{known}. More: zeus-stream report {name}"


def main(name: str) -> None:
    with Signals() as signals:
        say(closing_line(places(os.environ), name, signals))


if __name__ == "__main__":
    main(sys.argv[1])
