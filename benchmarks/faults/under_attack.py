"""All attackers of a host together, beside a training and a search: what is lost, left in force, and delayed.

The attackers (`attackers`) are there before our services: connections without a byte by as many processes as
they like, connections without a key, sessions under our names, idle connections to the page, a FIFO and a
working directory of theirs. A training on one simulated GPU searches its power limit all the time, run after
run; one on a second GPU counts what it knows to be logged. Wrong is what was lost, stored twice, left in
force, imported or ended by them.
"""

import http.client
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
from msgspec import Struct, field

from benchmarks import harness
from benchmarks.faults import attackers
from benchmarks.faults.kills import Limits
from benchmarks.harness import Found, sentences
from benchmarks.load.latency import LATENCY
from benchmarks.screens.served import served
from tests.directories import QUICK_FILE
from tests.environment import PATIENCE_S, environment, start
from tests.processes.connection_flood import OTHER_USER, flood, quantile
from tests.processes.pipeline import Account, Setup, pipeline
from tests.processes.test_planted_modules import plant
from tests.waiting import until
from tests.zeus_stream.transport.test_access import free_port
from zeus_stream.transport.endpoints import PORTS

ZEUS_STREAM = Path(sys.executable).with_name("zeus-stream")
SEARCH = (
    *("--search", "exhaustive", "--stride-w", "2", "--profile-steps", "2", "--warmup-steps", "1"),
    *QUICK_FILE,
)
TRAINING = """
import json, sys, time
from pathlib import Path
from zeus_stream import Publisher
from zeus_stream.simulated_gpu.accelerator import attach
stop, out, costs_ns, runs = Path(sys.argv[1]), Path(sys.argv[2]), [], 0
gpu = attach("imagenet", [sys.argv[3]], Path(sys.argv[4]))
while not stop.exists():
    runs += 1
    with Publisher(job=f"search-{runs}", run=f"search-{runs}", gpus=[1]) as publisher:
        steps = iter(publisher.steps(range(2_400)))
        while not stop.exists():
            began_ns = time.perf_counter_ns()
            if next(steps, None) is None:
                break
            costs_ns.append(time.perf_counter_ns() - began_ns)
            gpu.run(0.02)
out.write_text(json.dumps(costs_ns))
"""
"""Trains on GPU 1, one run after the other, and writes what each step cost in the training's thread, ns."""
MEASURED = """
SELECT count(*) AS n FROM runs
WHERE (starts_with(run, 'run-') OR starts_with(run, 'search-')) AND len(gpus) > 0
    AND session NOT IN (SELECT session FROM windows WHERE kind = 'run')
"""
NICE = -5
"""Of the services, as in packaging/systemd."""
EXPECTED = ("no collector ran", f"of user {OTHER_USER}")
"""In gaps that say that the collector was started again at the end, or that others were refused."""
EVERY_S = 10.0
"""Between two looks of the owner at the page and into the planted directory."""


class Seen(Struct):
    """Answers that the owner got while the attackers were there."""

    page_ms: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Owner:
    """Uses the page and a command beside the attackers."""

    def __init__(self, where: Path, scratch: Path, page: str) -> None:
        self.seen = Seen()
        self._where = where
        begin, _, self._token = page.partition("/?token=")
        self._host, _, port = begin.removeprefix("http://").partition(":")
        self._port = int(port)
        self._planted, self._trace = scratch / "planted", scratch / "trace"
        plant(self._planted, self._trace)

    def look(self) -> None:
        """Ask the page, and run a command where others put modules."""
        began_s = time.monotonic()
        page = http.client.HTTPConnection(self._host, self._port, timeout=PATIENCE_S)
        try:
            page.request("GET", "/nowhere", headers={"Authorization": f"Bearer {self._token}"})
            if (status := page.getresponse().status) != 404:
                self.seen.wrong.append(f"the page answered {status} to its owner.")
        except OSError as wrong:
            self.seen.wrong.append(f"the page did not answer its owner: {wrong}.")
        finally:
            page.close()
        self.seen.page_ms.append((time.monotonic() - began_s) * 1e3)
        environ = environment(self._where)
        del environ["PYTHONPATH"]
        done = subprocess.run(
            [ZEUS_STREAM, "status"], cwd=self._planted, env=environ, capture_output=True, text=True,
            check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        if "Traceback" in done.stderr or done.returncode < 0:
            self.seen.wrong.append(f"status ended with {done.returncode}: {done.stderr[-300:]}")
        if self._trace.exists():
            self.seen.wrong.append(f"a command imported {self._trace.read_text()}from its directory.")


def finish(setup: Setup) -> tuple[Account, dict[str, Any]]:
    """End all services once everything is archived: the account, and the latency."""
    account = setup.finish(settled=MEASURED)
    with duckdb.connect(setup.directory / "energy.duckdb", read_only=True) as connection:
        [(commands, latency_ms)] = connection.execute(LATENCY).fetchall()
        [(runs,)] = connection.execute(
            "SELECT count(*) FROM runs WHERE starts_with(run, 'search-')"
        ).fetchall()
    return account, {"commands": commands, "latency_ms": latency_ms or (0.0, 0.0, 0.0), "runs": runs}


def under_attack(minutes: float) -> Found:
    """Run all of it; return rows for people, and what is wrong."""
    with harness.directory() as where, harness.directory() as scratch, ExitStack() as ends:
        where.chmod(0o755)
        port = free_port()
        limits = Limits(where, 2)
        ends.callback(limits.close)
        with ExitStack() as attack:
            for each in (
                attackers.fifo_in_place_of_a_mark(where / "log.sqlite"),
                flood(where / "publish", where / "position"),
                flood(*(port + door for door in PORTS.values()), attackers=2),
                attackers.attacker(attackers.SESSIONS, where / "publish"),
            ):
                attack.enter_context(each)
            nice = ("--nice", str(NICE)) if os.geteuid() == 0 else ()
            collect = ("--listen", f"127.0.0.1:{port}", *nice)
            setup = ends.enter_context(pipeline(where, 1, (*SEARCH, *nice), collect, gpus=2))
            until(setup.welcome)
            page = attack.enter_context(served(where))
            page_port = int(page.partition("/?")[0].rpartition(":")[2])
            attack.enter_context(attackers.attacker(attackers.IDLE, page_port))
            costs, stop = scratch / "costs.json", where / "told" / "stop"
            training = start(where, "-c", TRAINING, stop, costs, setup.gpus[1], where, stderr=None)
            ends.callback(training.wait)
            ends.callback(training.kill)
            owner = Owner(where, scratch, page)
            until_s = time.monotonic() + minutes * 60
            while time.monotonic() < until_s:
                owner.look()
                time.sleep(min(EVERY_S, max(0.0, until_s - time.monotonic())))
            refused = setup.status("collector", "sockets", "connections refused or closed for others")
            stop.touch()
            if training.wait(PATIENCE_S):
                owner.seen.wrong.append(f"the training ended with {training.returncode}.")
        account, search = finish(setup)
        limits.look_again()
        return report(account, search, limits, owner.seen, json.loads(costs.read_text()), refused)


def report(
    account: Account, search: dict[str, Any], limits: Limits, seen: Seen, costs_ns: list[int], refused: str
) -> Found:
    costs_us = [cost / 1e3 for cost in costs_ns]
    gaps = [gap for gap in account.gaps if not any(words in gap for words in EXPECTED)]
    p50_ms, p99_ms, worst_ms = search["latency_ms"]
    rows = [
        ("connections refused or closed for others", refused),
        ("runs with a search, limits applied", f"{search['runs']}, {search['commands']}"),
        (
            "cost of a step: p50, p99, most",
            ", ".join(f"{quantile(costs_us, q):.1f} us" for q in (0.5, 0.99, 1)),
        ),
        ("steps", str(len(costs_us))),
        ("step to limit: p50, p99, most", f"{p50_ms:.0f}, {p99_ms:.0f}, {worst_ms:.0f} ms"),
        ("page of its owner: p50, most", f"{quantile(seen.page_ms, 0.5):.0f}, {max(seen.page_ms):.0f} ms"),
        ("items acknowledged, archived", f"{account.acknowledged}, {account.archived}"),
        ("lost, twice", f"{account.lost}, {account.twice}"),
        ("rows in gaps, of them ours", f"{len(account.gaps)}, {len(gaps)}"),
        ("limits left in force", str(limits.left_in_force())),
        ("load of the machine, 15 min", f"{os.getloadavg()[2]:.1f}"),
    ]
    wrong = sentences(
        (f"{account.lost} items were lost.", account.lost),
        (f"{account.twice} items are stored twice.", account.twice),
        (f"{limits.left_in_force()} limits are left in force.", limits.left_in_force()),
        ("no limit was applied.", not search["commands"]),
        *((f"a gap: {gap}.", gap) for gap in gaps),
    )
    return rows, wrong + seen.wrong
