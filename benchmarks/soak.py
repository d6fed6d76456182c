"""Nothing lost, nothing twice, nothing left throttled, nothing crashed: one table of all that was tried.

    python benchmarks/soak.py [--seeds 1000] [--kills 60] [--messages 100000] [--gpus 2] [--seed 0]
                              [--sessions 0] [--rate 200]

First the whole pipeline in one thread, once a seed (tests/simulation/pipeline.py). Then real processes: a
collector, an analyzer that tries power limits, and a training on each simulated GPU are killed in turn at
random moments and started again in any order; with ``--sessions``, beside the steps of so many sessions
(``--rate`` a second each; benchmarks/session_load.py). Last, every socket of live processes is sent what
nobody should send (benchmarks/hostile.py). Ends by itself, with one table; its exit code is 1 if anything was
lost, stored twice, set above the limit found, left in force, restored too late, or crashed.
"""

import argparse
import json
import logging
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from common import ROOT, directory, table

from analyzers.archive.duckdb_file import Archive
from analyzers.archive.query import read_own
from benchmarks import hostile
from collectors.devices.simulated import SimulatedBus
from collectors.devices.simulated_spec import parse
from tests.processes.pipeline import Account, Setup, pipeline, until
from tests.simulation.pipeline import Report, run
from zeus_stream.settings import Settings

FOUND_MW = 220_000
"""Neither the default nor the maximum of the GPUs: what an administrator chose."""
GOAL_S = 2.0
PATIENCE_S = 10.0
LONGEST_S = 3.0
"""Between two kills: long enough for limits to be set, short enough for some to die while they start."""
EAGER = (
    *("--search", "exhaustive", "--profile-steps", "5", "--warmup-steps", "2"),
    *("--stride-w", "40", "--settle-ms", "50"),
)
STORED_EVERY = 20
"""Worlds of which one archives into DuckDB, which takes ten times as long."""
OF_PROCESS = 50
"""Sessions of one process of the load: a collector takes 64 of one process."""
SENT_S = 180.0
"""For what the load has not sent yet, at its end."""
KINDS = ("collector", "analyzer", "publisher")
Rows = list[tuple[str, str]]
"""What, and its figure."""
Found = tuple[Rows, list[str]]
"""Figures, and what is wrong with them, a sentence each."""


# ---- in one thread ----------------------------------------------------------------------------------------


def simulate(seed: int) -> Report | str:
    """Return what one seed counted, or what went wrong."""
    logging.disable()
    try:
        return run(seed, stored=seed % STORED_EVERY == 0)
    except AssertionError as wrong:
        return f"seed {seed}: {wrong}. {' '.join(wrong.__notes__)}"


def simulations(first: int, seeds: int) -> Found:
    with ProcessPoolExecutor(2) as pool:
        done = list(pool.map(simulate, range(first, first + seeds), chunksize=5))
    failed = [what for what in done if isinstance(what, str)]
    reports = [what for what in done if isinstance(what, Report)]

    def total(name: str) -> int:
        return sum(getattr(report, name) for report in reports)

    slowest_s = max((report.slowest_restore_s for report in reports), default=0.0)
    return [
        ("worlds", f"{seeds}, {len(failed)} failed; one in {STORED_EVERY} archived by DuckDB"),
        *kills_by_process(sum((report.kills for report in reports), Counter[str]())),
        ("items emitted", f"{total('emitted')} events"),
        ("items archived", f"{total('archived')} events"),
        ("twice", besides(total("twice"), "stored under two sessions, their log damaged: named in gaps")),
        ("lost", besides(total("lost"), "in logs that were damaged: named in gaps")),
        ("rows in gaps", str(total("gaps"))),
        ("windows measured, all within their bounds", str(total("windows"))),
        (
            "limits found, set, restored",
            f"{total('found')}, {total('sets')}, {total('restored')}; else never set, or another's stays",
        ),
        ("slowest restore after a kill", f"{slowest_s:.2f} s"),
    ], failed


def kills_by_process(killed: Counter[str]) -> Rows:
    return [
        ("SIGKILLs", str(killed.total())),
        *((f"SIGKILLs of the {kind}", str(killed[kind])) for kind in KINDS),
    ]


def besides(count: int, what: str) -> str:
    """Say that there is none, but for what a damaged log explains: all else has failed its seed."""
    return f"0, and {count} {what}" if count else "0"


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


def kills(where: Path, number: int, gpus: int, rng: random.Random, sessions: int = 0, rate: int = 0) -> Found:
    limits = Limits(where, gpus)
    begin = time.monotonic()
    try:
        with pipeline(where, gpus, EAGER) as setup:
            with session_load(where, gpus, sessions, rate):
                killed = setup.kill_in_turn(
                    number, rng, lambda name: one_killed(name, limits, rng), LONGEST_S
                )
                until(setup.welcome)
            account = settle(setup)
        limits.look_again()
        rows, wrong = report(killed, account, limits)
        of_load, lost = loaded(where, sessions)
        return [*rows, *of_load, ("time", f"{time.monotonic() - begin:.0f} s")], wrong + lost
    finally:
        limits.close()


@contextmanager
def session_load(where: Path, gpus: int, sessions: int, rate: int) -> Iterator[None]:
    """Send the steps of many sessions until the end of the block, and then what waits."""
    uuids = [spec.uuid(index) for index, spec in enumerate(parse(f"simulated:v100x{gpus}"))]
    running = []
    for number, count in enumerate(parts_of(sessions)):
        command = [sys.executable, "-m", "benchmarks.session_load", str(where), *uuids]
        flags = ["--name", f"p{number}-", "--sessions", str(count), "--rate", str(rate)]
        running.append(subprocess.Popen([*command, *flags], cwd=ROOT))
    try:
        yield
        (where / "stop-load").touch()
        for each in running:
            if code := each.wait(SENT_S):
                raise AssertionError(f"the load ended with {code}: not all of it was acknowledged")
    finally:
        for each in running:
            each.kill()


def parts_of(sessions: int) -> list[int]:
    """Return how many sessions each process of the load has."""
    whole, rest = divmod(sessions, OF_PROCESS)
    return [OF_PROCESS] * whole + [rest] * bool(rest)


def loaded(where: Path, sessions: int) -> Found:
    """Compare what the load knows to be acknowledged with what is archived."""
    if not sessions:
        return [], []
    known: dict[str, int] = {}
    for file in where.glob("load-*.json"):
        known |= json.loads(file.read_text(encoding="utf-8"))
    archive = Archive.open_read_only(where / "energy.duckdb", Settings())
    with archive.reading() as reader:
        stored = read_own(
            reader, "SELECT session, count(DISTINCT sequence) AS n FROM events GROUP BY session"
        )
    archive.close()
    found = {row["session"]: row["n"] for row in stored.to_pylist()}
    lost = sum(max(0, count - found.get(session, 0)) for session, count in known.items())
    rows: Rows = [(f"events of {sessions} more sessions", f"{sum(known.values())} acknowledged, {lost} lost")]
    return rows, [f"{lost} events of the load were lost."] if lost else []


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
    parser.add_argument(
        "--seed", type=int, default=0, help="of the moments of the kills, and of the messages"
    )
    options = parser.parse_args(arguments)
    parts: list[tuple[str, Found]] = []
    if options.seeds:
        parts.append(("simulated worlds", simulations(options.first_seed, options.seeds)))
    if options.kills:
        with directory() as where:
            rng = random.Random(options.seed)
            found = kills(where, options.kills, options.gpus, rng, options.sessions, options.rate)
        parts.append(("real processes", found))
    if options.messages:
        parts.append(("hostile messages", fire(options.messages, random.Random(options.seed))))
    rows = [(part, what, figure) for part, (found, _) in parts for what, figure in found]
    table("Soak", ("with", "what", "figure"), rows)
    wrong = [sentence for _, (_, sentences) in parts for sentence in sentences]
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
