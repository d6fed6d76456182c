"""Simulated worlds full of trouble, one a seed: what is lost, stored twice or not restored in any of them.

A world is the whole pipeline in one thread and in virtual time (tests/simulation). It raises at the first
event that is lost or stored twice, limit that is not restored, impossible energy or other wrong row. One
world in 20 archives into DuckDB, which takes ten times as long.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from multiprocessing import get_context

from msgspec import Struct

from benchmarks.harness import Found, Rows
from tests.simulation.troubled_world import Report, run

STORED_EVERY = 20
"""Worlds of which one archives into DuckDB."""
KINDS = ("collector", "analyzer", "publisher")


class Played(Struct, frozen=True):
    """One world: what it counted, or what went wrong."""

    report: Report | None
    wrong: str
    cpu_s: float


def play(seed: int, *, stored: bool) -> Played:
    logging.disable()
    begin_s = time.process_time()
    try:
        report, wrong = run(seed, stored=stored or seed % STORED_EVERY == 0), ""
    except AssertionError as failed:
        report, wrong = None, f"seed {seed}: {failed}. {' '.join(failed.__notes__)}"
    return Played(report, wrong, time.process_time() - begin_s)


def simulations(seeds: Sequence[int], *, stored: bool) -> Found:
    with get_context("spawn").Pool() as pool:
        worlds = pool.map(partial(play, stored=stored), seeds, chunksize=1)
    wrong = [world.wrong for world in worlds if world.wrong]
    reports = [world.report for world in worlds if world.report is not None]

    def total(name: str) -> int:
        return sum(getattr(report, name) for report in reports)

    cpu_s = sum(world.cpu_s for world in worlds)
    slowest_s = max((report.slowest_restore_s for report in reports), default=0.0)
    of_failed = f", and {len(wrong)} worlds failed" if wrong else ""
    return [
        ("worlds", f"{len(worlds)} (seeds up to {seeds[-1]}), {len(wrong)} failed"),
        ("of them archived by DuckDB", "all" if stored else f"one in {STORED_EVERY}"),
        ("processor time", f"{cpu_s:.0f} s, {cpu_s / max(1, len(worlds)):.2f} s a world"),
        *kills_by_process(sum((report.kills for report in reports), Counter[str]())),
        ("items emitted", f"{total('emitted')} events"),
        ("items archived", f"{total('archived')} events"),
        ("twice", none_but(total("twice"), "stored under two sessions, their log damaged") + of_failed),
        ("lost", none_but(total("lost"), "in logs that were damaged: named in gaps") + of_failed),
        ("rows in gaps", str(total("gaps"))),
        ("windows measured, all within their bounds", str(total("windows"))),
        (
            "limits found, set, restored",
            f"{total('found')}, {total('sets')}, {total('restored')}; else never set, or another's stays",
        ),
        ("not restored", "0" + of_failed),
        ("slowest restore after a kill", f"{slowest_s:.2f} s"),
    ], wrong


def kills_by_process(killed: Counter[str]) -> Rows:
    return [
        ("SIGKILLs", str(killed.total())),
        *((f"SIGKILLs of the {kind}", str(killed[kind])) for kind in KINDS),
    ]


def none_but(explained: int, by: str) -> str:
    """Say that there is none, but for what a damaged log explains: all else has failed its world."""
    return f"0, and {explained} {by}" if explained else "0"
