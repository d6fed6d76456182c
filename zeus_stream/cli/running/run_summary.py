"""The summary of a run that has just ended, and the last line of a script that started its services itself.

    python -m zeus_stream.cli.running.run_summary RUN

prints that line: joules with their interval, and what the power limit saved.
"""

import os
import sys
from typing import TYPE_CHECKING

from zeus_stream.cli.running.signals import Signals
from zeus_stream.cli.running.waits import say, until
from zeus_stream.errors import ZeusStreamError
from zeus_stream.paths import Places, places
from zeus_stream.training.sender import flush_s
from zeus_stream.transport.client import Connection, quoted

if TYPE_CHECKING:
    from zeus_stream.screens.text.run_cost import Summary

REPORT_S = 3.0
"""Longest wait, after the command, for its run in the archive. ``ZEUS_STREAM_FLUSH_S`` may be longer."""
_CLOSED = """
SELECT count(*) AS sessions, count(*) = (
    SELECT count(DISTINCT session) FROM windows WHERE run = {run} AND kind = 'run'
) AS closed FROM runs WHERE run = {run}
"""


def wait_for_summary(where: Places, name: str, signals: Signals) -> "Summary | None":
    """Return the summary of a run once it is closed, or after `REPORT_S`. None: the archive has none."""
    from zeus_stream.screens.text.run_cost import summarize

    connection = Connection(where)
    sessions = 0

    def closed() -> bool:
        nonlocal sessions
        (row,) = connection.sql(_CLOSED.format(run=quoted(name))).to_pylist()
        sessions = row["sessions"]
        return bool(sessions and row["closed"])

    longest_s = max(REPORT_S, flush_s(os.environ.get("ZEUS_STREAM_FLUSH_S", "")))
    until(closed, longest_s, signals, "the last readings of the run")
    return summarize(connection.sql, name) if sessions else None


def closing_line(where: Places, name: str, signals: Signals) -> str:
    """Return the energy of a run, its interval, and what its limit saved, as one sentence."""
    try:
        summary = wait_for_summary(where, name, signals)
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
