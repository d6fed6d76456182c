"""Processes that are killed in turn: what is lost, stored twice, left in force, or restored too late.

A collector, an analyzer that tries power limits, and a training on each simulated GPU are killed at random
moments and started again in any order.
"""

import argparse
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from benchmarks.faults.soak_worlds import KINDS, kills_by_process
from benchmarks.harness import Found, Rows, sentences
from collectors.devices.simulated import SimulatedBus
from tests.directories import EAGER, short_directory
from tests.processes.pipeline import Account, pipeline
from tests.waiting import until

FOUND_MW = 220_000
"""Neither the default nor the maximum of the GPUs: what an administrator chose."""
GOAL_S = 2.0
PATIENCE_S = 10.0
GPUS = 2


class Limits:
    """Looks at the power limits as a driver would show them, all the time. A thread."""

    def __init__(self, where: Path, gpus: int) -> None:
        self._bus = SimulatedBus.parse(f"simulated:v100x{gpus}", where)
        self._devices = self._bus.discover()
        for device in self._devices:
            device.set_control("power_limit", FOUND_MW)
        self.highest_mw = FOUND_MW
        self.found = self.sets = self.restored = 0
        """Times that one found was changed, that one was set to another, and that one found was set again."""
        self.returns_s: dict[str, list[float]] = {}
        """By what was killed."""
        self.now_mw = [FOUND_MW] * gpus
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.004):
            self._look_once()

    def _look_once(self) -> None:
        read_mw = [device.read_control("power_limit") for device in self._devices]
        seen_mw = [limit_mw for limit_mw in read_mw if limit_mw is not None]
        for new, old in zip(seen_mw, self.now_mw, strict=True):
            if new != old:
                self.found += old == FOUND_MW
                self.sets += new != FOUND_MW
                self.restored += new == FOUND_MW
        self.highest_mw = max(self.highest_mw, *seen_mw)
        self.now_mw = seen_mw

    def wait_returned(self, name: str) -> None:
        """Wait until what a killed process had set is back, and note how long it took."""
        kind, _, index = name.partition(" ")
        concerned = [int(index)] if index else range(GPUS)
        begin_s = time.monotonic()
        if all(self.now_mw[gpu] == FOUND_MW for gpu in concerned):
            return
        while any(self.now_mw[gpu] != FOUND_MW for gpu in concerned):
            if time.monotonic() - begin_s > PATIENCE_S:
                break  # noted as what it is: far too long
            time.sleep(0.002)
        self.returns_s.setdefault(kind, []).append(time.monotonic() - begin_s)

    def stop(self) -> None:
        """Return when all has been seen that was set until now."""
        self._over.set()
        self._thread.join()
        self._look_once()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._bus.close()


def kills(given: argparse.Namespace) -> Found:
    """Kill processes in turn, as the options of `benchmarks.faults.exercises` have it."""
    with ExitStack() as held:
        where = held.enter_context(short_directory())
        rng, limits, begin_s = random.Random(given.seed), Limits(where, GPUS), time.monotonic()
        held.callback(limits.close)

        def one_killed(name: str) -> None:
            if rng.random() < 0.6:  # else others start at once, and may set it again
                limits.wait_returned(name)

        setup = held.enter_context(pipeline(where, GPUS, EAGER))
        killed = setup.kill_in_turn(given.kills, rng, one_killed, 2 * given.between_s)
        until(setup.welcome)
        account = setup.finish()
        limits.stop()
        rows, wrong = report(killed, account, limits)
    return [*rows, ("time", f"{time.monotonic() - begin_s:.0f} s")], wrong


def report(killed: dict[str, int], account: Account, limits: Limits) -> Found:
    slowest_s = max((max(times) for times in limits.returns_s.values()), default=0.0)
    by_kind = Counter[str]()
    for name, count in killed.items():
        by_kind[name.split()[0]] += count
    returns = [
        f"{kind} {max(limits.returns_s[kind]):.2f} s of {len(limits.returns_s[kind])}"
        for kind in KINDS
        if kind in limits.returns_s
    ]
    in_force = sum(limit_mw != FOUND_MW for limit_mw in limits.now_mw)
    stored = f"{account.archived} events, {account.readings} readings, {account.frames} frames"
    rows: Rows = [
        *kills_by_process(by_kind),
        ("items emitted", f"{account.emitted} events, {account.acknowledged} of them acknowledged"),
        ("items archived", stored),
        ("twice", str(account.twice)),
        ("lost", str(account.lost)),
        (
            "rows in gaps, of them not of a time without a collector",
            f"{len(account.gaps)}, {len(account.other_gaps)}",
        ),
        ("steps archived and not measured", str(account.unmeasured)),
        ("limits found, set, restored", f"{limits.found}, {limits.sets}, {limits.restored}"),
        ("limits left in force", str(in_force)),
        ("limit found, highest seen", f"{FOUND_MW / 1000:g} W, {limits.highest_mw / 1000:g} W"),
        ("slowest restore after a kill", f"{slowest_s:.2f} s ({', '.join(returns) or 'none was due'})"),
    ]
    wrong = sentences(
        (f"{account.lost} items were lost.", account.lost),
        (f"{account.unmeasured} steps have no measurement.", account.unmeasured),
        (f"{account.twice} items are stored twice.", account.twice),
        (f"a limit was set above {FOUND_MW / 1000:g} W.", limits.highest_mw > FOUND_MW),
        ("a limit is left in force.", in_force),
        (f"{limits.found} limits were changed, {limits.restored} restored.", limits.found != limits.restored),
        (f"a limit took {slowest_s:.2f} s to return.", slowest_s > GOAL_S),
        *((f"a gap: {gap}.", gap) for gap in account.other_gaps),
    )
    return rows, wrong
