"""The lag, answers, leases and losses of a real analyzer under the steps of many sessions.

    python -m benchmarks.load.busy_analyzer [--sessions 100] [--rate 200] [--seconds 20] [--one-core]

A real collector logs, beside its own GPU's, the readings and step events of ``--sessions`` runs as their
publishers would send them (`sessions.py`). A training on the collector's own simulated GPU has its
power limit searched for, so leases are held all the while. The status is asked for ten times a second.

``--one-core``: the analyzer with its store has the first core, and everything else the others. Exit code 1 if
a step is lost, a lease lapses, the lag is above 2 s, or the p99 of the status above 250 ms.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import anyio
import numpy as np

from benchmarks.harness import cpu_seconds, directory, process, script, sql, table
from benchmarks.load.loaded_collector import loaded_collector
from benchmarks.load.sessions import S, begin, steps_and_readings
from collectors.log.feed import LogFeed
from collectors.log.store import SessionMemory
from tests.waiting import until
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import ZeusStreamError
from zeus_stream.paths import Places
from zeus_stream.protocol.frames import Body, Events
from zeus_stream.protocol.notes import ControlLeaseEnded, Note, Notes
from zeus_stream.protocol.readings import Readings
from zeus_stream.transport.client import status

GOAL_LAG_S, GOAL_STATUS_MS = 2.0, 250.0
AFTER_S = 2.0
"""Of readings, after the last step."""
LOOK_S = 0.1
PATIENCE_S = 60.0
"""Until all is measured that is logged."""
LOGGED_S = 600.0
"""Until all is logged: the collector has the load to log, and on a busy host falls behind first."""
HELD = """
import sys, zeus_stream
from zeus_stream import simulated
accelerator = simulated.attach("imagenet")
for _ in zeus_stream.steps(range(10**9)):
    accelerator.run(0.05)
"""
MEASURED = "SELECT count(*) FROM windows WHERE kind = 'step' AND run LIKE 'load-%'"


async def log_load(where: Path, sessions: int, rate: int, seconds: float, log: LogFeed) -> None:
    """Log the events of many sessions, and count by cause the leases that end in the meantime."""
    say, ended = log.say, Counter[str]()

    def counting(*notes: Note) -> None:
        ended.update(note.cause for note in notes if isinstance(note, ControlLeaseEnded))
        (where / "ended.json").write_text(json.dumps(ended))
        say(*notes)

    log.say = counting  # type: ignore[method-assign]  # of this object alone, to count
    begin_ns = monotonic_ns()
    for due_ns, body in bodies(sessions, rate, seconds, begin_ns):
        await anyio.sleep(max(0, due_ns - monotonic_ns()) / S)
        match body:
            case Notes(notes=notes):
                log.say(*notes)
            case Readings():
                log.readings(body, 0)
            case Events():
                after = body.sequence + len(body.events)
                log.events("load", body, SessionMemory(body.session, after, "{}"))
    logged_of(where).write_text(f"{(monotonic_ns() - begin_ns) / S:.1f}")


def logged_of(where: Path) -> Path:
    """Return the file that has in how many seconds all was logged, once it is."""
    return where / "logged.s"


def bodies(sessions: int, rate: int, seconds: float, begin_ns: int) -> Iterator[tuple[int, Body]]:
    """Yield what is logged and when, as `benchmarks.load.sessions.frames` does, on this host's clock."""
    for body in islice(begin(sessions, begin_ns, "load-"), 1, None):  # this collector has started already
        yield begin_ns, body
    yield from steps_and_readings(sessions, rate, seconds, begin_ns, after_s=AFTER_S)


def children(pid: int) -> list[int]:
    """Return a process and its direct children: the analyzer and its store."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, listed)]


def pin(pids: Sequence[int], core: int) -> None:
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), {core})


def look(where: Path, seconds: float) -> tuple[list[float], list[float], int]:
    """Ask for the status again and again. Return lags (s), times (ms), and the number without an answer."""
    lags, took_ms, silent = list[float](), list[float](), 0
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        try:
            rows = status(Places(where, where), "analyzer", 5.0).rows
        except ZeusStreamError:
            silent += 1
        else:
            took_ms.append(1000 * (time.monotonic() - began))
            lags.append(next(float(value.split()[0]) for _, name, value in rows if name == "behind by"))
        time.sleep(max(0.0, LOOK_S - (time.monotonic() - began)))
    return lags, took_ms, silent


def measure(where: Path, sessions: int, rate: int, seconds: float, *, one_core: bool) -> int:
    """Run the load once. Return 1 if a goal is missed."""
    cores = os.sched_getaffinity(0)
    others = {*cores} - {min(cores)} if one_core and len(cores) > 1 else cores
    os.sched_setaffinity(0, others)
    with (
        loaded_collector(where, partial(log_load, where, sessions, rate, seconds)),
        process(where, "analyze", ready="query") as analyzer,
        script(where, HELD),
    ):
        pids = children(analyzer)
        if one_core:
            pin(pids, min(cores))
        before = [cpu_seconds(pid) for pid in pids]
        lags, took_ms, silent = look(where, seconds)
        used = [cpu_seconds(pid) - then for pid, then in zip(pids, before, strict=True)]
        wanted = sessions * (round(rate * seconds) - 1)
        until(logged_of(where).exists, LOGGED_S)
        logged_s = float(logged_of(where).read_text())
        began = time.monotonic()
        with suppress(TimeoutError):
            until(lambda: int(str(sql(where, MEASURED)[0][0])) >= wanted, PATIENCE_S)
        late_s, found = time.monotonic() - began, int(str(sql(where, MEASURED)[0][0]))
        gaps = sql(where, "SELECT what, count, reason FROM gaps")
        shed = sql(where, f"{MEASURED} AND quality LIKE '%the analyzer was behind%'")[0][0]
    ended = json.loads((where / "ended.json").read_text()) if (where / "ended.json").exists() else {}
    lapses = ended.get("lapsed", 0)
    p99_ms = float(np.quantile(took_ms, 0.99)) if took_ms else float("inf")
    table(
        f"{sessions} sessions x {rate} steps/s for {seconds:g} s through one analyzer"
        f"{' on one core' if one_core else ''}, load {os.getloadavg()[0]:.1f}",
        " | found | goal",
        [
            ["steps measured of those logged", f"{found:,} of {wanted:,}", "all"],
            ["rows in gaps", len(gaps), 0],
            ["behind by, median and worst", f"{np.median(lags):.1f}, {max(lags):.1f} s", f"{GOAL_LAG_S:g} s"],
            ["status, median and p99", f"{np.median(took_ms):.0f}, {p99_ms:.0f} ms", f"{GOAL_STATUS_MS} ms"],
            ["status without an answer", silent, 0],
            ["leases that lapsed (ended otherwise)", f"{lapses} ({sum(ended.values()) - lapses})", 0],
            ["steps whose fit was left out", shed, "-"],
            [
                "analyzer, store: processor time",
                ", ".join(f"{s / seconds:.2f}" for s in used) + " cores",
                "1 in all",
            ],
            ["all logged in", f"{logged_s:.1f} s", f"{seconds + AFTER_S:g} s"],
            ["all measured after that", f"{late_s:.1f} s", "-"],
        ],
    )
    for gap in gaps[:5]:
        print(f"a gap: {gap}", file=sys.stderr)
    missed = found < wanted or gaps or lapses or silent or max(lags) > GOAL_LAG_S or p99_ms > GOAL_STATUS_MS
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.busy_analyzer")
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--one-core", action="store_true")
    chosen = parser.parse_args()
    with directory() as where:
        return measure(where, chosen.sessions, chosen.rate, chosen.seconds, one_core=chosen.one_core)


if __name__ == "__main__":
    sys.exit(main())
