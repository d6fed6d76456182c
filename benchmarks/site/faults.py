"""A site in real processes, and random faults: what is lost, stored twice, or carried out wrongly.

    PYTHONPATH=. .venv-scale/bin/python -m benchmarks.site.faults --faults 300 --minutes 40 --seed 1

Two hosts with two simulated GPUs, a training on each that begins a new job every minute, two analyzers,
two archivers, NATS, PostgreSQL. A fault is a SIGKILL, a stop of some seconds that is continued, a link
that is cut for some seconds (closed, or silent and late), or a broker that loses all it has.

At the end everything runs again, the logs are archived to their ends, and all that the lake has is compared
with the hosts' logs. The exit code is 1 if a goal was missed.
"""

import argparse
import itertools
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

import numpy as np

from analyzers.archive.opening import Connection
from analyzers.lake import catalog
from benchmarks.harness import options, table
from benchmarks.site.fault_site import HOSTS, Site, wait_for
from zeus_stream.errors import StorageError
from zeus_stream.protocol.events import StepBoundary
from zeus_stream.protocol.frames import Events
from zeus_stream.protocol.notes import ControlApplied, ControlRefused, DeviceFound, Notes
from zeus_stream.protocol.readings import READING_BYTES, Readings
from zeus_stream.settings import Settings

Frames = Mapping[str, Mapping[int, Readings | Events | Notes]]
"""By host and offset."""
Row = tuple[str, object, object]
"""Name, figure, goal."""
QUESTIONS = (
    ("rows of gaps for frames", "SELECT count(*) FROM gaps WHERE what = 'frames'", 0),
    (
        "events that scripts could not hand over, as gaps name them",
        """SELECT coalesce(sum("count"), 0) FROM gaps WHERE what = 'events'""",
        "",
    ),
    ("runs in the lake", "SELECT count(*) FROM runs", ""),
    ("decisions in the lake", "SELECT count(*) FROM decisions", ""),
    ("windows in the lake", "SELECT count(*) FROM windows", ""),
    ("windows twice", "SELECT count(*) - count(DISTINCT (session, kind, index, gpu)) FROM windows", 0),
    (
        "steps missing between the first and the last of a run",
        """SELECT coalesce(sum(missing), 0) FROM (SELECT max(index) - min(index) + 1 - count(*) AS missing
        FROM windows WHERE kind = 'step' GROUP BY session, gpu)""",
        0,
    ),
    (
        "trials and commands twice",
        """SELECT (SELECT count(*) - count(DISTINCT (run, number)) FROM trials)
        + (SELECT count(*) - count(DISTINCT command) FROM commands)""",
        0,
    ),
)
"""Of the derived rows in the lake: name, query, goal."""


def steps_logged(logs: Frames) -> set[tuple[str, int]]:
    """Return session and index of each step whose end a host has logged."""
    return {
        (body.session, event.index - 1)
        for frames in logs.values()
        for body in frames.values()
        if isinstance(body, Events)
        for event in body.events
        if isinstance(event, StepBoundary) and event.ended_ns is not None
    }


def steps_stored(connection: Connection) -> set[tuple[str, int]]:
    """Return session and index of each step in the lake."""
    rows = connection.execute("SELECT DISTINCT session, index FROM windows WHERE kind = 'step'").fetchall()
    return set(rows)


def missing_now(site: Site) -> int:
    """Return how many steps that the hosts have logged are not stored."""
    try:
        connection = catalog.attach(site.dsn, Settings(), read_only=True)
    except StorageError:
        return 1  # PostgreSQL is not there yet
    try:
        logged = steps_logged({host: site.frames(host) for host in HOSTS})
        missing = len(logged - steps_stored(connection))
    finally:
        connection.close()
    says(f"{missing} of {len(logged)} steps are not stored yet")
    return missing


def compared(site: Site, logs: Frames) -> list[Row]:
    """Return what is in the logs of the hosts and in the lake."""
    connection = catalog.attach(site.dsn, Settings(), read_only=True)
    by_offset = 'SELECT "offset", count(*) FROM {} WHERE host = $1 GROUP BY "offset"'
    lost = twice = logged = frames_lost = frames_twice = 0
    for host in HOSTS:
        bodies = logs[host].items()
        counts = Counter({
            at: len(body.rows) // READING_BYTES for at, body in bodies if isinstance(body, Readings)
        })  # fmt: skip
        others = Counter(at for at, body in bodies if not isinstance(body, Readings))
        stored, kept = (
            Counter(dict(connection.execute(by_offset.format(name), [host]).fetchall()))
            for name in ("readings", "frames")
        )
        logged += counts.total()
        lost += (counts - stored).total()
        twice += (stored - counts).total()
        frames_lost += (others - kept).total()
        frames_twice += kept.total() - len(kept)

    def one(sql: str) -> object:
        [(value,)] = connection.execute(sql).fetchall()
        return value

    steps = steps_logged(logs)
    rows: list[Row] = [
        ("readings in the logs of the hosts", logged, ""),
        ("readings lost, twice in the lake", f"{lost}, {twice}", "0, 0"),
        ("frames of events and notes lost, twice", f"{frames_lost}, {frames_twice}", "0, 0"),
        *((what, one(sql), goal) for what, sql, goal in QUESTIONS),
        ("steps that the hosts logged", len(steps), ""),
        ("steps of them that the lake has not", len(steps - steps_stored(connection)), 0),
    ]
    connection.close()
    return rows


def commanded(logs: Frames) -> list[Row]:
    """Return what was carried out on the hosts."""
    applied: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    names = Counter[str]()
    refused = Counter[str]()
    found_mw = 0
    above = 0
    for host in HOSTS:
        for body in logs[host].values():
            for note in body.notes if isinstance(body, Notes) else ():
                match note:
                    case DeviceFound() if note.found_limit_mw is not None:
                        found_mw = max(found_mw, note.found_limit_mw)
                    case ControlApplied():
                        names[note.command] += 1
                        run, number, gpu = note.command.split("/")
                        applied[run, gpu].append(int(number.rpartition("-")[2]))
                        above += note.value > found_mw
                    case ControlRefused():
                        refused[note.cause] += 1
                    case _:
                        pass
    late = sum(after < before for each in applied.values() for before, after in itertools.pairwise(each))
    return [
        ("commands carried out", names.total(), ""),
        ("of them twice", names.total() - len(names), 0),
        ("of them stale: after a later one of the same run", late, 0),
        ("of them above the limit found", above, 0),
        ("commands refused as stale or of another owner", refused["stale"] + refused["owned"], ""),
    ]


def says(sentence: str) -> None:
    """Say how the run stands."""
    print(sentence, file=sys.stderr, flush=True)


def in_force(site: Site) -> int:
    """Return the number of restore records that ended hosts have left, each of a limit of ours in force."""
    left = [file for host in HOSTS for file in (site.where[host] / "restore").iterdir()]
    return sum(file.suffix != ".lock" for file in left)


def spans(took_s: list[float]) -> str:
    """Return number, median, 99 % and most of some times."""
    return ", ".join(
        [str(len(took_s)), *(f"{each:.1f}" for each in np.quantile(took_s or [0.0], (0.5, 0.99, 1.0)))]
    )


def recovery(site: Site, recovered_s: float) -> list[Row]:
    """Return what is in force at the end, and how long take-overs and the recovery took."""
    took_s = site.take_overs.took_s
    return [
        ("limits of ours in force after the end", in_force(site), 0),
        (
            "take-overs of shards of a killed analyzer: number, p50, p99, longest, s (goal -, 3, 10, -)",
            spans(took_s[True] + took_s[False]),
            "",
        ),
        ("of them where another analyzer was ready", spans(took_s[True]), ""),
        ("of them where one had to start first", spans(took_s[False]), ""),
        ("from the last fault until all steps are stored, s", f"{recovered_s:.0f}", ""),
        ("load of the machine, 1 and 15 minutes", "{0:.0f}, {2:.0f}".format(*os.getloadavg()), ""),
    ]


def play(site: Site, given: argparse.Namespace, rng: random.Random, done: Counter[str]) -> list[Row]:
    """Let faults happen. Return what became of it."""
    begin_s = time.monotonic()
    while done.total() < given.faults and time.monotonic() - begin_s < 60 * given.minutes:
        done[site.fault()] += 1
        says(f"{done.total()} faults in {time.monotonic() - begin_s:.0f} s")
        time.sleep(rng.uniform(0.2, 5))
    last_s = time.monotonic()
    recovered_s = site.finish(partial(missing_now, site)) - last_s
    logs = {host: site.frames(host) for host in HOSTS}
    ended: Row = "services that ended by themselves, and were started again", site.ended, ""
    return [*compared(site, logs), *commanded(logs), ended, *recovery(site, recovered_s)]


def main() -> int:
    given = options(__doc__, faults=300, minutes=40.0, seed=1)
    rng = random.Random(given.seed)
    faults = Counter[str]()
    with ExitStack() as running:
        site = Site(running, rng)
        for host in HOSTS:
            wait_for((site.where[host] / "publish").exists, f"the collector of {host} runs")
            site.train(host)
        wait_for(lambda: bool(site.carried_out()), "a search has begun")
        begin_s = time.monotonic()
        rows = play(site, given, rng, faults)
        took_s = time.monotonic() - begin_s
        table(f"{faults.total()} faults, {took_s:.0f} s, seed {given.seed}", ("fault", "times"),
              sorted(faults.items()))  # fmt: skip
        table("What became of it", ("what", "figure", "goal"), rows)
    return int(any(goal not in ("", figure) for _, figure, goal in rows))


if __name__ == "__main__":
    sys.exit(main())
