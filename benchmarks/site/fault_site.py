"""Two hosts with trainings, analyzers, archivers, NATS and PostgreSQL, and faults that befall them.

For `benchmarks.site.faults`.
"""

import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import anyio
import psycopg

from analyzers.lake import catalog
from analyzers.leases.site_leases import SHARD, SiteLeases
from benchmarks.site.links import Link
from collectors.broker.relay import Relay
from collectors.log.sqlite import SqliteLog
from tests.directories import short_directory
from tests.scale.servers import Server, nats, postgres, spawn
from zeus_stream.broker.batches import part_of
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.clock import boot_id
from zeus_stream.errors import StorageError
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Events
from zeus_stream.protocol.notes import ControlApplied, Notes
from zeus_stream.protocol.readings import Readings
from zeus_stream.settings import Settings

SITE, SHARDS, GPUS = "site", 2, 2
HOSTS = ("north", "south")
READERS = ("archiver-1", "analyzer-1", "archiver-2", "analyzer-2")
TRAINER = """
import itertools, sys, time
import zeus_stream
from zeus_stream.errors import ZeusStreamError
for number in itertools.count():
    job = f"{sys.argv[1]}-{number}"
    try:
        with zeus_stream.Publisher(job=job, run=job, gpus=[0]) as publisher:
            end_s = time.monotonic() + 60
            with zeus_stream.simulated.attach("imagenet", gpus=[0]) as works:
                for _ in publisher.steps(itertools.count()):
                    works.run(0.05)
                    if time.monotonic() > end_s:
                        break
    except ZeusStreamError as wrong:  # the collector is away
        print(wrong, file=sys.stderr, flush=True)
        time.sleep(1)
"""
END_S = 600.0
LOOK_S = 0.05
"""Between two looks at who holds the shards."""


class TakeOvers:
    """The time from the loss of an analyzer to the next epoch of each of its shards. A thread."""

    def __init__(self, dsn: str) -> None:
        self._leases = SiteLeases(dsn, SITE, "benchmark")
        self._lost: dict[str, tuple[int, float, bool]] = {}
        """By shard, the epoch that was lost, when, and whether another analyzer could take it over then."""
        self.took_s: dict[bool, list[float]] = {True: [], False: []}
        """By whether another analyzer could. If not, one has to start first."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def lost(self, pid: int) -> None:
        """Note that an analyzer is killed now."""
        leases = SiteLeases(self._leases.dsn, SITE, "benchmark")
        with suppress(StorageError), leases.working() as connection:  # PostgreSQL may be away as well
            others = connection.execute(
                "SELECT count(*) FROM zs.analyzers WHERE until >= now() AND holder NOT LIKE %s", [f"%/{pid}"]
            ).fetchone()
            for state in leases.states():
                if state.name.startswith(SHARD) and state.holder.endswith(f"/{pid}"):
                    self._lost[state.name] = state.epoch, time.monotonic(), others != (0,)
        leases.close()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            with suppress(StorageError):
                for state in self._leases.states() if self._lost else ():
                    epoch, lost_s, another = self._lost.get(state.name, (state.epoch, 0.0, False))
                    if state.epoch > epoch:
                        self.took_s[another].append(time.monotonic() - lost_s)
                        del self._lost[state.name]
        self._leases.close()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()


class Site:
    """The processes of the site, the links between them, and what may happen to them."""

    def __init__(self, running: ExitStack, rng: random.Random) -> None:
        self._running, self._rng = running, rng
        self.postgres = running.enter_context(postgres())
        self.broker = running.enter_context(nats())
        self.dsn = self.postgres.make("lake")
        data = running.enter_context(short_directory()) / "files"
        catalog.create(self.dsn, str(data), Settings())
        self.links: dict[str, Link] = {}
        self.where: dict[str, Path] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.take_overs = TakeOvers(self.dsn)
        running.callback(self.take_overs.close)
        self.ended = 0
        """Services that ended by themselves and were started again, as a supervisor does."""
        broker = int(self.broker.url.rpartition(":")[2])
        database = Path(dict(each.split("=") for each in self.dsn.split())["host"]) / ".s.PGSQL.5432"
        for name in (*HOSTS, *READERS):
            where = self.where[name] = running.enter_context(short_directory())
            self._link(f"{name} to broker", broker)
            if name in READERS:
                self._link(f"{name} to PostgreSQL", database, where / database.name)
            self.start(name)

    def _link(self, name: str, target: int | Path, path: Path | None = None) -> None:
        self.links[name] = Link(target, path)
        self._running.callback(self.links[name].close)

    def start(self, name: str) -> None:
        """Start a process, again after a kill."""
        url = f"nats://127.0.0.1:{self.links[f'{name} to broker'].port}"
        dsn = f"host={self.where[name]} user=zs dbname=lake"
        if name in HOSTS:
            command = ["collect", "--host", name, "--device", f"simulated:a40x{GPUS}", "--cpu", "off"]
        elif name.startswith("archiver"):
            parts = ",".join(str(part_of(host)) for host in HOSTS)
            command = ["archive", "--database", dsn, "--parts", parts]
        else:
            command = ["analyze", "--shards", str(SHARDS), "--database", dsn]
        self._spawn(name, "-m", "zeus_stream", *command, "--broker", url, "--site", SITE)

    def supervise(self) -> None:
        """Start services again that ended by themselves."""
        for name, process in tuple(self.processes.items()):
            if not name.startswith("training") and process.poll() is not None:
                words = (self.where[name] / f"{name}.txt").read_text(errors="replace")[-2000:]
                print(f"{name} ended by itself with {process.returncode}: {words}", file=sys.stderr)
                self.ended += 1
                self.start(name)

    def train(self, host: str) -> None:
        """Start the training of a host."""
        self.where[f"training-{host}"] = self.where[host]
        self._spawn(f"training-{host}", "-c", TRAINER, f"job-{host}")

    def _spawn(self, name: str, *arguments: str) -> None:
        where = self.where[name]
        self.processes[name] = spawn(self._running, where / f"{name}.txt", where, *arguments)

    # ---- faults

    def fault(self) -> str:
        """Let one thing go wrong, and mend it. Return its name."""
        self.supervise()
        rng = self._rng
        name = rng.choice([name for name in self.processes if not name.startswith("training")])
        match rng.choices(("kill", "stop", "cut", "server"), (4, 3, 3, 2))[0]:
            case "kill":
                self.take_overs.lost(self.processes[name].pid)
                self.processes[name].kill()
                self.processes[name].wait()
                time.sleep(rng.uniform(0, 3))
                self.start(name)
                return f"SIGKILL of {_kind(name)}"
            case "stop":
                self._pause(self.processes[name])
                return f"stop and continue of {_kind(name)}"
            case "cut":
                name = rng.choice(list(self.links))
                self.links[name].cut(silent=rng.random() < 0.5)
                time.sleep(rng.uniform(0.5, 8))
                self.links[name].mend()
                return f"cut link of {_kind(name)}"
            case _:
                faults: dict[str, Callable[[], None]] = {
                    "SIGKILL of broker": lambda: _restart(self.broker),
                    "stop and continue of broker": lambda: self._pause(self.broker.process),
                    "broker that loses everything": self.broker.lose_everything,
                    "SIGKILL of PostgreSQL": lambda: _restart(self.postgres),
                }
                name = rng.choice(list(faults))
                faults[name]()
                return name

    def _pause(self, process: "subprocess.Popen[bytes]") -> None:
        process.send_signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(0.5, 8))
        process.send_signal(signal.SIGCONT)

    # ---- the end

    def finish(self, missing: Callable[[], int]) -> float:
        """End trainings, then hosts; archive what they have logged, and what was derived, to its end.

        ``missing``: returns how many steps that the hosts logged are not stored. Hosts are there until none
        is, or for END_S: analyzers that were replaced often have to catch up. Return when (monotonic).
        """
        self._stop(*(f"training-{host}" for host in HOSTS))
        with suppress(TimeoutError):  # the comparison shows it
            wait_for(lambda: not missing(), "the steps are stored", self.supervise)
        recovered_s = time.monotonic()
        for host in HOSTS:
            self._stop(host)
            log = SqliteLog(self.where[host] / "log.sqlite", host, boot_id())
            anyio.run(_relay_all, log, host, self.broker.url)
            log.close()
        ends = {host: max(self.frames(host)) for host in HOSTS}
        wait_for(lambda: all(self.stored(host) > end for host, end in ends.items()), "the logs are archived")
        self._stop("analyzer-1", "analyzer-2")
        wait_for(lambda: self._ask("SELECT count(*) FROM zs.outbox") == 0, "derived rows are archived")
        self._stop("archiver-1", "archiver-2")
        return recovered_s

    def _stop(self, *names: str) -> None:
        for name in names:
            self.processes[name].send_signal(signal.SIGTERM)
            self.processes[name].wait(60)

    def _ask(self, sql: str, *arguments: object) -> int:
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(sql.encode(), arguments).fetchone()
        return int(row[0] or 0) if row else 0

    def stored(self, host: str) -> int:
        """Return the offset after the last frame of a host that the lake has."""
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


def _restart(server: Server) -> None:
    server.kill()
    time.sleep(1)
    server.start()


async def _relay_all(log: SqliteLog, host: str, url: str) -> None:
    relay = Relay(log, host, SiteSettings(broker=url, site=SITE))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(relay.run)
        with anyio.fail_after(END_S):
            while relay.trouble is not None or relay.behind:  # noqa: ASYNC110  (a relay shows its state)
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()


def wait_for(condition: Callable[[], bool], what: str, between: Callable[[], None] = lambda: None) -> None:
    """Wait until a condition holds, and do something between two looks. Raises TimeoutError."""
    deadline_s = time.monotonic() + END_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not in time: {what}")
        between()
        time.sleep(1)
