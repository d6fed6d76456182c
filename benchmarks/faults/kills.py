"""Processes that are killed in turn: what is lost, stored twice, left in force, or restored too late.

A collector, an analyzer that tries power limits, and a training on each simulated GPU are killed at random
moments and started again in any order; if wanted beside the steps of many sessions
(benchmarks/load/session_load.py).
"""

import argparse
import random
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from benchmarks.faults.soak_worlds import KINDS, kills_by_process
from benchmarks.harness import Found, Rows, directory, sentences
from benchmarks.load.session_load import loaded, session_load
from collectors.devices.simulated import SimulatedBus
from tests.directories import EAGER
from tests.processes.pipeline import Account, Setup, pipeline
from tests.waiting import until

FOUND_MW = 220_000
"""Neither the default nor the maximum of the GPUs: what an administrator chose."""
GOAL_S = 2.0
PATIENCE_S = 10.0
GPUS = 2


class Limits:
    """Looks at the power limits as a driver would tell them, all the time."""

    def __init__(self, where: Path, gpus: int) -> None:
        self._bus = SimulatedBus.parse(f"simulated:v100x{gpus}", where)
        self._devices = self._bus.discover()
        for device in self._devices:
            device.set_control("power_limit", FOUND_MW)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.highest_mw = 0
        self.found = 0
        """Times one that was found was changed."""
        self.sets = 0
        """Changes to another than the one found."""
        self.restored = 0
        self.returns_s: dict[str, list[float]] = {}
        """By what was killed."""
        self._now_mw = [FOUND_MW] * gpus
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.004):
            self._look_once()

    def _look_once(self) -> None:
        read_mw = [device.read_control("power_limit") for device in self._devices]
        seen_mw = [limit_mw for limit_mw in read_mw if limit_mw is not None]
        for new, old in zip(seen_mw, self._now_mw, strict=True):
            if new != old:
                self.found += old == FOUND_MW
                self.sets += new != FOUND_MW
                self.restored += new == FOUND_MW
        self.highest_mw = max(self.highest_mw, *seen_mw)
        self._now_mw = seen_mw

    def returned(self, name: str) -> None:
        """Wait until what a killed process had set is back, and note how long it took."""
        kind, _, index = name.partition(" ")
        concerned = [int(index)] if index else range(len(self._devices))
        begin = time.monotonic()
        if all(self._now_mw[gpu] == FOUND_MW for gpu in concerned):
            return
        while not all(self._now_mw[gpu] == FOUND_MW for gpu in concerned):
            if time.monotonic() - begin > PATIENCE_S:
                break  # noted as what it is: far too long
            time.sleep(0.002)
        self.returns_s.setdefault(kind, []).append(time.monotonic() - begin)

    def look_again(self) -> None:
        """Return when all has been seen that was set until now."""
        self._over.set()
        self._thread.join()
        self._look_once()

    def left_in_force(self) -> int:
        return sum(limit_mw != FOUND_MW for limit_mw in self._now_mw)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._bus.close()


def kills(given: argparse.Namespace) -> Found:
    """Kill processes in turn, as the options of `benchmarks.faults.exercises` have it."""
    with ExitStack() as held:
        where = held.enter_context(directory())
        rng, limits, begin = random.Random(given.seed), Limits(where, GPUS), time.monotonic()
        held.callback(limits.close)
        setup = held.enter_context(pipeline(where, GPUS, EAGER, ("--log-mb", str(given.log_mb))))
        with session_load(where, GPUS, given.sessions, given.rate):
            killed = setup.kill_in_turn(
                given.kills, rng, lambda name: one_killed(name, limits, rng), 2 * given.between_s
            )
            until(setup.welcome)
        account = settle(setup)
        limits.look_again()
        rows, wrong = report(killed, account, limits)
        of_load, lost = loaded(where, given.sessions)
    return [*rows, *of_load, ("time", f"{time.monotonic() - begin:.0f} s")], wrong + lost


def one_killed(name: str, limits: Limits, rng: random.Random) -> None:
    if rng.random() < 0.6:  # else others start at once, and may set it again
        limits.returned(name)


def settle(setup: Setup) -> Account:
    try:
        return setup.finish()
    except (AssertionError, TimeoutError):
        for name in ("collector", "analyzer"):
            print(f"{name} wrote:\n{setup.output(name)[-2000:]}", file=sys.stderr)
        raise


def report(killed: dict[str, int], account: Account, limits: Limits) -> Found:
    slowest_s = max((max(times) for times in limits.returns_s.values()), default=0.0)
    by_kind = Counter[str]()
    for name, count in killed.items():
        by_kind[name.split()[0]] += count
    returns = (
        f"{kind} {max(limits.returns_s[kind]):.2f} s of {len(limits.returns_s[kind])}"
        for kind in KINDS
        if kind in limits.returns_s
    )
    rows: Rows = [
        *kills_by_process(by_kind),
        ("items emitted", f"{account.emitted} events, {account.acknowledged} of them acknowledged"),
        (
            "items archived",
            f"{account.archived} events, {account.readings} readings, {account.frames} frames",
        ),
        ("twice", str(account.twice)),
        ("lost", str(account.lost)),
        ("rows in gaps", str(len(account.gaps))),
        ("steps archived and not measured", str(account.unmeasured)),
        ("limits found, set, restored", f"{limits.found}, {limits.sets}, {limits.restored}"),
        ("limits left in force", str(limits.left_in_force())),
        ("limit found, highest seen", f"{FOUND_MW / 1000:g} W, {limits.highest_mw / 1000:g} W"),
        ("slowest restore after a kill", f"{slowest_s:.2f} s ({', '.join(returns) or 'none was due'})"),
    ]
    wrong = sentences(
        (f"{account.lost} items were lost.", account.lost),
        (f"{account.unmeasured} steps have no measurement.", account.unmeasured),
        (f"{account.twice} items are stored twice.", account.twice),
        (f"a limit was set above {FOUND_MW / 1000:g} W.", limits.highest_mw > FOUND_MW),
        ("a limit is left in force.", limits.left_in_force()),
        (
            f"{limits.found} limits were changed, {limits.restored} restored.",
            limits.found != limits.restored,
        ),
        (f"a limit took {slowest_s:.2f} s to return.", slowest_s > GOAL_S),
        *((f"a gap: {gap}.", gap) for gap in account.gaps),
    )
    return rows, wrong
