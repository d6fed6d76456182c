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
from zeus_stream.cli.running.waits import say, until
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import UnreachableError, ZeusStreamError
from zeus_stream.paths import Places, places
from zeus_stream.protocol.snapshots import SESSIONS_BEGUN, Snapshot
from zeus_stream.training.sender import flush_s
from zeus_stream.transport.client import Connection, ask_now, quoted

if TYPE_CHECKING:
    from zeus_stream.screens.text.run_cost import Summary

REPORT_S = 3.0
"""Longest wait for the report, after the command. ``ZEUS_STREAM_FLUSH_S`` may be longer."""
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
    where: Places, name: str, signals: Signals, longest_s: float, begun: int | None = None
) -> "Summary | None":
    """Return the summary of a run once it is closed, or after a wait. None: the archive has none.

    Args:
        where: the setup of the analyzer.
        name: of the run.
        signals: end the wait.
        longest_s: the wait.
        begun: sessions before the command. Where no other began, nothing was published: the wait is short.
    """
    from zeus_stream.screens.text.run_cost import summarize

    connection = Connection(where)
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

    until(closed, longest_s, signals, "the last readings of the run")
    return summarize(connection.sql, name) if sessions else None


def closing_line(where: Places, name: str, signals: Signals) -> str:
    """Return the energy of a run, its interval, and what its limit saved, as one sentence."""
    try:
        summary = wait_for_summary(where, name, signals, report_s(os.environ))
    except ZeusStreamError as wrong:
        return str(wrong)
    more = f"More: zeus-stream report {name}"
    if summary is None:
        return f"the energy of this run is not known yet. {more}"
    view = summary.view
    parts = [f"this run used {view.energy_words}"]
    if view.saving is not None:
        parts.append(view.saving.headline)
    elif view.undecided:
        parts.append(view.undecided)
    return f"{'; '.join(parts)}. {more}"


def main(name: str) -> None:
    with Signals() as signals:
        say(closing_line(places(os.environ), name, signals))


if __name__ == "__main__":
    main(sys.argv[1])
