"""Nothing lost, nothing twice, nothing left throttled, nothing crashed: one table of all that was tried.

    python -m benchmarks.faults.soak [--seeds 1000] [--kills 60] [--messages 100000] [--gpus 2] [--seed 0]
                              [--sessions 0] [--rate 200] [--between-s 1.5] [--log-mb 256]
                              [--attack-minutes 1]

First the whole pipeline in one thread, once a seed (benchmarks/faults/soak_worlds.py). Then real processes: a
collector, an analyzer that tries power limits, and a training on each simulated GPU are killed in turn at
random moments, ``--between-s`` apart on average, and started again in any order; with ``--sessions``, beside
the steps of so many sessions (``--rate`` a second each; benchmarks/load/session_load.py), into a log of
``--log-mb``. Then every socket of live processes is sent what nobody should send (hostile.py). Last, all
attackers of a host together (under_attack.py), for ``--attack-minutes``.
Ends by itself, with one table; its exit code is 1 if anything was lost, stored twice, set above the limit
found, left in force, restored too late, or crashed.
"""

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults import hostile
from benchmarks.faults.soak_worlds import KINDS, Found, Rows, kills_by_process, simulations
from benchmarks.harness import directory, table
from benchmarks.load.session_load import loaded, session_load
from collectors.devices.simulated import SimulatedBus
from tests.directories import QUICK_FILE
from tests.processes.pipeline import Account, Setup, pipeline, until
from zeus_stream.settings import Settings

FOUND_MW = 220_000
"""Neither the default nor the maximum of the GPUs: what an administrator chose."""
GOAL_S = 2.0
PATIENCE_S = 10.0
BETWEEN_S = 1.5
"""Between two kills, on average; up to twice that: long enough for limits to be set, short enough for some to
die while they start."""
LOG_MB = Settings().log_mb
EAGER = (
    *("--search", "exhaustive", "--profile-steps", "5", "--warmup-steps", "2"),
    *("--stride-w", "40", *QUICK_FILE),
)


# ---- with real processes ----------------------------------------------------------------------------------


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
        seen_mw = [device.read_control("power_limit") for device in self._devices]
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


def kills(
    where: Path,
    number: int,
    gpus: int,
    rng: random.Random,
    *,
    sessions: int = 0,
    rate: int = 0,
    between_s: float = BETWEEN_S,
    log_mb: int = LOG_MB,
) -> Found:
    limits = Limits(where, gpus)
    begin = time.monotonic()
    try:
        with pipeline(where, gpus, EAGER, ("--log-mb", str(log_mb))) as setup:
            with session_load(where, gpus, sessions, rate):
                killed = setup.kill_in_turn(
                    number, rng, lambda name: one_killed(name, limits, rng), 2 * between_s
                )
                until(setup.welcome)
            account = settle(setup)
        limits.look_again()
        rows, wrong = report(killed, account, limits)
        of_load, lost = loaded(where, sessions)
        return [*rows, *of_load, ("time", f"{time.monotonic() - begin:.0f} s")], wrong + lost
    finally:
        limits.close()


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
    wrong = [
        sentence
        for sentence, bad in (
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
        if bad
    ]
    return rows, wrong


# ---- with hostile messages --------------------------------------------------------------------------------


def fire(messages: int, rng: random.Random) -> Found:
    counts = {name: round(share * messages) for name, share in hostile.SHARES.items()}
    fired = [
        *hostile.fire_at_servers(rng, counts),
        hostile.fire_at_clients(rng, counts["feed, replies"]),
    ]
    rows: Rows = []
    crashes = 0
    for socket, sent, _, refused, crashed, process, warm_mb, after_mb, _ in fired:
        crashes += int(str(crashed))
        memory = f"memory of the {process} {warm_mb} MB after a tenth, {after_mb} MB after all"
        rows.append((f"malformed messages on {socket}", f"{sent} ({refused} refused and counted), {memory}"))
    return [*rows, ("crashes", str(crashes))], [f"{crashes} processes crashed."] if crashes else []


# ---- all --------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=1000, help="simulated worlds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=60, help="SIGKILLs of real processes, in turn")
    parser.add_argument("--messages", type=int, default=100_000, help="hostile ones, over all sockets")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=0, help="sessions that send steps beside the kills")
    parser.add_argument("--rate", type=int, default=200, help="steps a second of each of them")
    parser.add_argument("--between-s", type=float, default=BETWEEN_S, help="from kill to kill, on average")
    parser.add_argument(
        "--log-mb", type=int, default=LOG_MB, help="of the collector's log, and a user's hour"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the moments of the kills, and of the messages"
    )
    parser.add_argument("--attack-minutes", type=float, default=1.0, help="of all attackers together")
    options = parser.parse_args(arguments)
    parts: list[tuple[str, Found]] = []
    if options.seeds:
        parts.append(
            ("simulated worlds", simulations(range(options.first_seed, options.first_seed + options.seeds)))
        )
    if options.kills:
        with directory() as where:
            rng = random.Random(options.seed)
            found = kills(
                where,
                options.kills,
                options.gpus,
                rng,
                sessions=options.sessions,
                rate=options.rate,
                between_s=options.between_s,
                log_mb=options.log_mb,
            )
        parts.append(("real processes", found))
    if options.messages:
        parts.append(("hostile messages", fire(options.messages, random.Random(options.seed))))
    if options.attack_minutes:
        from benchmarks.faults.under_attack import ATTACKERS, under_attack  # it uses `Limits` of this module

        found = under_attack(options.attack_minutes, ATTACKERS, options.seed)
        parts.append(("all attackers", found))
    rows = [(part, what, figure) for part, (found, _) in parts for what, figure in found]
    table("Soak", ("with", "what", "figure"), rows)
    wrong = [sentence for _, (_, sentences) in parts for sentence in sentences]
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
