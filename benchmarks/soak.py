"""Nothing lost, nothing twice, nothing left throttled: seeds of trouble, then rounds of SIGKILLs, one table.

    python benchmarks/soak.py [--seeds 1000] [--kills 60] [--gpus 2] [--seed 0]

First the whole pipeline in one thread, once a seed (tests/simulation/pipeline.py). Then real processes: a
collector, an analyzer that tries power limits, and a training on each simulated GPU are killed in turn at
random moments and started again in any order. Ends by itself; its exit code is 1 if anything was lost,
stored twice, set above the limit found, or left in force.
"""

import argparse
import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from common import directory, table

from collectors.simulated import SimulatedBus
from tests.processes.pipeline import Account, Setup, pipeline
from tests.simulation.pipeline import Report, World

FOUND_MW = 220_000
"""Neither the default nor the maximum of the GPUs: what an administrator chose."""
GOAL_S = 2.0
PATIENCE_S = 10.0
LONGEST_S = 3.0
"""Between two kills: long enough for limits to be set, short enough for some to die while they start."""
EAGER = ("--profile-steps", "5", "--warmup-steps", "2", "--stride-w", "40", "--settle-ms", "50")
Rows = list[tuple[str, object]]


# ---- in one thread ----------------------------------------------------------------------------------------


def simulate(seed: int) -> Report | str:
    """Return what one seed counted, or what went wrong."""
    logging.disable()
    with tempfile.TemporaryDirectory() as made:
        try:
            return World(seed, Path(made) / "log.sqlite").run()
        except AssertionError as wrong:
            again = f"python benchmarks/soak.py --first-seed {seed} --seeds 1 --kills 0"
            return f"seed {seed}: {wrong}. Repeat it with: {again}"


def simulations(first: int, seeds: int) -> tuple[Rows, list[str]]:
    with ProcessPoolExecutor(2) as pool:
        done = list(pool.map(simulate, range(first, first + seeds), chunksize=5))
    failed = [what for what in done if isinstance(what, str)]
    reports = [what for what in done if isinstance(what, Report)]
    kills = sum((report.kills for report in reports), Counter[str]())
    return [
        ("simulated worlds", f"{seeds}, {len(failed)} failed"),
        ("of them, kills", ", ".join(f"{name} {count}" for name, count in sorted(kills.items()))),
        ("events emitted", sum(report.emitted for report in reports)),
        ("events archived", sum(report.archived for report in reports)),
        ("rows in gaps", sum(report.gaps for report in reports)),
        ("windows measured, all within their bounds", sum(report.windows for report in reports)),
        ("limits set", sum(report.sets for report in reports)),
    ], failed


# ---- with real processes ----------------------------------------------------------------------------------


class Limits:
    """Looks at the power limits as a driver would tell them, all the time."""

    def __init__(self, where: Path, gpus: int) -> None:
        self._bus = SimulatedBus.parse(f"simulated:v100x{gpus}", where)
        self._devices = self._bus.discover()
        for device in self._devices:
            device.set_limit(FOUND_MW)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.highest_mw = 0
        self.changes = 0
        self.returns_s: dict[str, list[float]] = {}
        """By what was killed."""
        self._now_mw = [FOUND_MW] * gpus
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.004):
            seen_mw = [device.requested_limit_mw() for device in self._devices]
            self.changes += sum(new != old for new, old in zip(seen_mw, self._now_mw, strict=True))
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

    def left_in_force(self) -> int:
        return sum(limit_mw != FOUND_MW for limit_mw in self._now_mw)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._bus.close()


def kills(where: Path, number: int, gpus: int, rng: random.Random) -> tuple[Rows, list[str]]:
    limits = Limits(where, gpus)
    try:
        with pipeline(where, gpus, EAGER) as setup:
            killed = setup.kill_in_turn(number, rng, lambda name: one_killed(name, limits, rng), LONGEST_S)
            account = settle(setup)
        time.sleep(0.1)
        return report(killed, account, limits)
    finally:
        limits.close()


def one_killed(name: str, limits: Limits, rng: random.Random) -> None:
    if rng.random() < 0.6:  # else others start at once, and may set it anew
        limits.returned(name)


def settle(setup: Setup) -> Account:
    try:
        return setup.finish()
    except (AssertionError, TimeoutError):
        for name in ("collector", "analyzer"):
            print(f"{name} said:\n{setup.said(name)[-2000:]}", file=sys.stderr)
        raise


def report(killed: dict[str, int], account: Account, limits: Limits) -> tuple[Rows, list[str]]:
    slowest_s = max((max(times) for times in limits.returns_s.values()), default=0.0)
    rows: Rows = [
        ("SIGKILLs", f"{sum(killed.values())}: " + ", ".join(f"{n} {count}" for n, count in killed.items())),
        ("events emitted", account.emitted),
        ("events acknowledged", account.acknowledged),
        ("events archived", account.archived),
        ("readings archived", account.readings),
        ("frames archived", account.frames),
        ("twice", account.twice),
        ("lost", account.lost),
        ("archived steps without a measurement", account.unmeasured),
        ("rows in gaps", len(account.gaps)),
        ("limit found", f"{FOUND_MW / 1000:g} W"),
        ("highest limit seen", f"{limits.highest_mw / 1000:g} W"),
        ("changes of a limit seen", limits.changes),
        ("limits left in force", limits.left_in_force()),
        *(
            (f"restored after a kill of the {kind}", f"{len(times)} times, slowest {max(times):.2f} s")
            for kind, times in sorted(limits.returns_s.items())
        ),
    ]
    wrong = [
        sentence
        for sentence, bad in (
            (f"{account.lost} items were lost.", account.lost),
            (f"{account.unmeasured} steps have no measurement.", account.unmeasured),
            (f"{account.twice} items are stored twice.", account.twice),
            (f"a limit was set above {FOUND_MW / 1000:g} W.", limits.highest_mw > FOUND_MW),
            ("a limit is left in force.", limits.left_in_force()),
            (f"a limit took {slowest_s:.2f} s to return.", slowest_s > GOAL_S),
            *((f"a gap: {gap}.", gap) for gap in account.gaps),
        )
        if bad
    ]
    return rows, wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=1000, help="simulated worlds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=60, help="SIGKILLs of real processes, in turn")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args(arguments)
    rows: Rows = []
    wrong: list[str] = []
    if options.seeds:
        rows, wrong = simulations(options.first_seed, options.seeds)
    if options.kills:
        with directory() as where:
            begin = time.monotonic()
            more, worse = kills(where, options.kills, options.gpus, random.Random(options.seed))
        rows, wrong = rows + more, wrong + worse
        rows.append(("time of the kills", f"{time.monotonic() - begin:.0f} s"))
    table("Soak", ("what", "figure"), rows)
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
