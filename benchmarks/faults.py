"""A site in real processes, and random faults: what is lost, stored twice, or carried out wrongly.

    PYTHONPATH=. .venv-scale/bin/python -m benchmarks.faults --faults 300 --minutes 40 --seed 1

Two hosts with two simulated GPUs, a training on each that begins a new job every minute, two analyzers,
two archivers, NATS, PostgreSQL. A fault is a SIGKILL, a stop of some seconds that is continued, a link
that is cut for some seconds (closed, or silent and late), or a broker that loses all it has. At the end
everything runs again, the logs are archived to their ends, and the lake is compared with the hosts' logs.
"""

import argparse
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import anyio
import psycopg

from analyzers.lake import catalog
from benchmarks.common import table
from benchmarks.links import Link, Network
from collectors.broker.relay import Relay
from collectors.log.sqlite import Log
from tests.directories import short_directory
from tests.scale.servers import nats, postgres
from zeus_stream.broker.batches import part_of
from zeus_stream.clock import boot_id
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Events
from zeus_stream.protocol.notes import ControlApplied, ControlRefused, DeviceFound, Notes
from zeus_stream.protocol.readings import READING_BYTES, Readings
from zeus_stream.settings import Settings

SITE, SHARDS, GPUS = "site", 2, 2
HOSTS = ("north", "south")
TRAINER = """
import itertools, sys, time
import zeus_stream
from zeus_stream.errors import ZeusStreamError
for number in itertools.count():
    job = f"{sys.argv[1]}-{number}"
    try:
        with zeus_stream.Publisher(job=job, run=job, gpus=[0]) as publisher:
            works = zeus_stream.simulated.attach("imagenet", gpus=[0])
            end_s = time.monotonic() + 60
            for _ in publisher.steps(itertools.count()):
                works.run(0.05)
                if time.monotonic() > end_s:
                    break
    except ZeusStreamError as wrong:  # the collector is away
        print(wrong, file=sys.stderr, flush=True)
        time.sleep(1)
"""
END_S = 600.0
QUESTIONS = (
    ("rows of gaps for frames", "SELECT count(*) FROM gaps WHERE what = 'frames'", 0),
    ("runs in the lake", "SELECT count(*) FROM runs", ""),
    ("decisions in the lake", "SELECT count(*) FROM decisions", ""),
    ("windows in the lake", "SELECT count(*) FROM windows", ""),
    ("windows twice", "SELECT count(*) - count(DISTINCT (session, kind, index, gpu)) FROM windows", 0),
    (
        "steps missing between the first and the last of a run",
        (
            "SELECT coalesce(sum(missing), 0) FROM (SELECT max(index) - min(index) + 1 - count(*) AS missing"
            " FROM windows WHERE kind = 'step' GROUP BY session, gpu)"
        ),
        0,
    ),
    (
        "trials and commands twice",
        (
            "SELECT (SELECT count(*) - count(DISTINCT (run, number)) FROM trials)"
            " + (SELECT count(*) - count(DISTINCT command) FROM commands)"
        ),
        0,
    ),
)
"""Of the derived rows in the lake: name, query, goal."""


class Site:
    """The processes of the site, the links between them, and what may happen to them."""

    def __init__(self, running: ExitStack, rng: random.Random) -> None:
        self._running, self._rng = running, rng
        self.postgres = running.enter_context(postgres())
        self.broker = running.enter_context(nats())
        self.dsn = self.postgres.make("lake")
        data = running.enter_context(short_directory()) / "files"
        catalog.create(self.dsn, str(data), Settings())
        self._network = Network()
        running.callback(self._network.close)
        self.links: dict[str, Link] = {}
        self.where: dict[str, Path] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for host in HOSTS:
            self._host(host)
        for number in (1, 2):
            self._reader(f"archiver-{number}")
            self._reader(f"analyzer-{number}")

    def _host(self, host: str) -> None:
        self.where[host] = self._running.enter_context(short_directory())
        self._link_broker(host)
        self.start(host)

    def _reader(self, name: str) -> None:
        where = self.where[name] = self._running.enter_context(short_directory())
        self._link_broker(name)
        socket = Path(dict(each.split("=") for each in self.dsn.split())["host"]) / ".s.PGSQL.5432"
        self.links[f"{name} to PostgreSQL"] = self._network.unix(where, socket)
        self.start(name)

    def _link_broker(self, name: str) -> None:
        port = int(self.broker.url.rpartition(":")[2])
        self.links[f"{name} to broker"] = self._network.tcp(port)

    def start(self, name: str) -> None:
        """Start a process, again after a kill."""
        where = self.where[name]
        url = f"nats://127.0.0.1:{self.links[f'{name} to broker'].port}"
        feed = ["--broker", url, "--site", SITE]
        dsn = f"host={where} user=zs dbname=lake"
        if name in HOSTS:
            command = ["collect", "--host", name, "--device", f"simulated:a40x{GPUS}", "--cpu", "off", *feed]
        elif name.startswith("archiver"):
            parts = ",".join(str(part_of(host)) for host in HOSTS)
            command = ["archive", "--lake", dsn, "--parts", parts, *feed]
        else:
            command = ["analyze", "--shards", str(SHARDS), "--lease-database", dsn, *feed]
        self._spawn(name, "-m", "zeus_stream", *command)

    def train(self, host: str) -> None:
        """Start the training of a host."""
        self.where[f"training-{host}"] = self.where[host]
        self._spawn(f"training-{host}", "-c", TRAINER, f"job-{host}")

    def _spawn(self, name: str, *arguments: str) -> None:
        where = self.where[name]
        with (where / f"{name}.txt").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=log,
                stderr=log,
                env=os.environ | {"ZEUS_STREAM_DIR": str(where)},
            )
        self.processes[name] = process
        self._running.callback(process.wait)
        self._running.callback(process.kill)

    # ---- faults

    def fault(self) -> str:
        """Let one thing go wrong, and mend it. Return its name."""
        rng = self._rng
        victims = [name for name in self.processes if not name.startswith("training")]
        match rng.choices(("kill", "stop", "cut", "servers"), (4, 3, 3, 2))[0]:
            case "kill":
                name = rng.choice(victims)
                self.processes[name].kill()
                self.processes[name].wait()
                time.sleep(rng.uniform(0, 3))
                self.start(name)
                return f"SIGKILL of {_kind(name)}"
            case "stop":
                name = rng.choice(victims)
                self.processes[name].send_signal(signal.SIGSTOP)
                time.sleep(rng.uniform(0.5, 8))
                self.processes[name].send_signal(signal.SIGCONT)
                return f"stop and continue of {_kind(name)}"
            case "cut":
                name = rng.choice(list(self.links))
                self.links[name].cut(silent=rng.random() < 0.5)
                time.sleep(rng.uniform(0.5, 8))
                self.links[name].mend()
                return f"cut link of {_kind(name)}"
            case _:
                return self._server_fault()

    def _server_fault(self) -> str:
        name = self._rng.choice(
            ("SIGKILL of broker", "stop and continue of broker", "broker that loses everything",
             "SIGKILL of PostgreSQL")
        )  # fmt: skip
        match name:
            case "SIGKILL of broker":
                self.broker.kill()
                self.broker.start()
            case "stop and continue of broker":
                self.broker.process.send_signal(signal.SIGSTOP)
                time.sleep(self._rng.uniform(0.5, 8))
                self.broker.process.send_signal(signal.SIGCONT)
            case "broker that loses everything":
                self.broker.lose_everything()
            case _:
                self.postgres.kill()
                time.sleep(1)
                self.postgres.start()
        return name

    # ---- the end

    def finish(self) -> None:
        """End trainings, then hosts; archive what they have logged, and what was derived, to its end."""
        for host in HOSTS:
            self._stop(f"training-{host}")
        time.sleep(15)
        for host in HOSTS:
            self._stop(host)
            log = Log(self.where[host] / "log.sqlite", host, boot_id())
            anyio.run(_relay_all, log, host, self.broker.url)
            log.close()
        ends = {host: max(self.frames(host)) for host in HOSTS}
        _wait_for(
            lambda: all(self._stored(host) > end for host, end in ends.items()), "the logs are archived"
        )
        for number in (1, 2):
            self._stop(f"analyzer-{number}")
        _wait_for(lambda: self._ask("SELECT count(*) FROM zs.outbox") == 0, "derived rows are archived")
        for number in (1, 2):
            self._stop(f"archiver-{number}")

    def _stop(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGTERM)
        self.processes[name].wait(60)

    def _ask(self, sql: str, *arguments: object) -> int:
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(sql.encode(), arguments).fetchone()
        return int(row[0] or 0) if row else 0

    def _stored(self, host: str) -> int:
        return self._ask("SELECT max(next_offset) FROM zs.logs WHERE host = %s", host)

    def carried_out(self) -> list[ControlApplied]:
        """Return the commands that the hosts have carried out so far, in order for each host."""
        bodies = [body for host in HOSTS for body in self.frames(host).values()]
        notes = [note for body in bodies if isinstance(body, Notes) for note in body.notes]
        return [note for note in notes if isinstance(note, ControlApplied)]

    def frames(self, host: str) -> dict[int, Readings | Events | Notes]:
        """Return the frames of a host's log, by offset."""
        file = self.where[host] / "log.sqlite"
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            rows = database.execute('SELECT "offset", body FROM frames ORDER BY "offset"').fetchall()
        return {offset: codec.decode(body, Readings, Events, Notes) for offset, body in rows}


def _kind(name: str) -> str:
    for host in HOSTS:
        name = name.replace(host, "collector with relay")
    return name.replace("-1", "").replace("-2", "")


async def _relay_all(log: Log, host: str, url: str) -> None:
    relay = Relay(log, host, url, SITE, 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(relay.run)
        with anyio.fail_after(END_S):
            while relay.trouble is not None or relay.behind:  # noqa: ASYNC110  (a relay shows its state)
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + END_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not in time: {what}")
        time.sleep(1)


# ---- what became of it


def compared(site: Site) -> list[tuple[str, object, object]]:
    """Return what is in the logs of the hosts and in the lake: name, figure, goal."""
    connection = catalog.attach(site.dsn, Settings(), read_only=True)
    lost = twice = logged = frames_lost = frames_twice = 0
    for host in HOSTS:
        counts = Counter[int]()
        others = set()
        for offset, body in site.frames(host).items():
            if isinstance(body, Readings):
                counts[offset] = len(body.rows) // READING_BYTES
            else:
                others.add(offset)
        stored = Counter(dict(connection.execute(
            'SELECT "offset", count(*) FROM readings WHERE host = $1 GROUP BY "offset"', [host]
        ).fetchall()))  # fmt: skip
        logged += counts.total()
        lost += (counts - stored).total()
        twice += (stored - counts).total()
        kept = [each for (each,) in connection.execute(
            'SELECT "offset" FROM frames WHERE host = $1', [host]
        ).fetchall()]  # fmt: skip
        frames_lost += len(others - set(kept))
        frames_twice += len(kept) - len(set(kept))

    def one(sql: str) -> object:
        [(value,)] = connection.execute(sql).fetchall()
        return value

    return [
        ("readings in the logs of the hosts", logged, ""),
        ("readings lost, twice in the lake", f"{lost}, {twice}", "0, 0"),
        ("frames of events and notes lost, twice", f"{frames_lost}, {frames_twice}", "0, 0"),
        *((what, one(sql), goal) for what, sql, goal in QUESTIONS),
    ]


def commanded(site: Site) -> list[tuple[str, object, object]]:
    """Return what was carried out on the hosts: name, figure, goal."""
    applied: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    names = Counter[str]()
    refused = Counter[str]()
    found_mw = 0
    above = 0
    for host in HOSTS:
        for body in site.frames(host).values():
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    faults = Counter[str]()
    with ExitStack() as running:
        site = Site(running, rng)
        for host in HOSTS:
            _wait_for((site.where[host] / "publish").exists, f"the collector of {host} runs")
            site.train(host)
        _wait_for(lambda: bool(site.carried_out()), "a search has begun")
        begin_s = time.monotonic()
        while faults.total() < given.faults and time.monotonic() - begin_s < 60 * given.minutes:
            faults[site.fault()] += 1
            print(
                f"{faults.total()} faults in {time.monotonic() - begin_s:.0f} s", file=sys.stderr, flush=True
            )
            time.sleep(rng.uniform(0.2, 5))
        took_s = time.monotonic() - begin_s
        site.finish()
        table(f"{faults.total()} faults in {took_s:.0f} s, seed {given.seed}", ("fault", "times"),
              sorted(faults.items()))  # fmt: skip
        rows = [*compared(site), *commanded(site)]
        table("What became of it", ("what", "figure", "goal"), rows)


if __name__ == "__main__":
    main()
