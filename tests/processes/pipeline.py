"""A whole setup as processes: collector, analyzer, publishers. Any may be killed at any moment; what was
archived in the end is compared with what the publishers know to have been logged.
"""

import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Self

import duckdb
from msgspec import Struct

from collectors.devices.simulated_spec import parse
from collectors.publish_server import UNHEARD
from tests.empty_archive import archive_at
from tests.environment import PATIENCE_S, ZEUS_STREAM, rows, start
from tests.waiting import until
from zeus_stream.errors import UnreachableError
from zeus_stream.paths import Places, places
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import Hello, Welcome
from zeus_stream.transport import sockets
from zeus_stream.transport.client import Connection

PUBLISHER = """
import itertools, sys, time
from pathlib import Path
from zeus_stream import Publisher
from zeus_stream.errors import ZeusStreamError
from zeus_stream.simulated_gpu.accelerator import attach

run, gpu, index, directory = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
told, stop, works = directory / "told" / run, directory / "told" / "stop", None

def tell(now):
    told.with_suffix(".new").write_text(f"{now.acknowledged + now.waiting} {now.acknowledged}")
    told.with_suffix(".new").rename(told)

with Publisher(job="soak", run=run, gpus=[index]) as publisher:
    for number in publisher.steps(itertools.count()):
        if stop.exists():
            break
        for part in range(4):
            publisher.metric("number", 4 * number + part)
        tell(publisher.statistics())
        try:
            works = works or attach("imagenet", [gpu], directory)
            works.run(0.02)
        except ZeusStreamError:
            time.sleep(0.02)
    until = time.monotonic() + 20
    while publisher.statistics().waiting and time.monotonic() < until:
        time.sleep(0.01)
    tell(publisher.statistics())
"""


UNMEASURED = """
SELECT count(DISTINCT session) AS n FROM events
WHERE kind = 'run_started' AND session NOT IN (SELECT session FROM windows WHERE kind = 'run')
"""
"""Runs that are not measured to their end."""
RUNS = """
WITH named AS (SELECT DISTINCT session, name AS run FROM events WHERE kind = 'run_started'),
sessions AS (
    SELECT run, count(*) AS n, count(DISTINCT sequence) AS once, max(sequence) + 1 AS "all",
        count(*) FILTER (kind = 'metric') - count(DISTINCT value) FILTER (kind = 'metric') AS again
    FROM events JOIN named USING (session) GROUP BY run, session
)
SELECT run, CAST(sum(once) AS BIGINT) AS once, CAST(sum(n - once + again) AS BIGINT) AS twice,
    CAST(sum("all" - once) AS BIGINT) AS missing
FROM sessions GROUP BY run
"""
"""Of each run: events that are archived once, that are there again, and that are missing before others."""
STORED = """
WITH stored AS (SELECT log_id, "offset" FROM frames UNION SELECT log_id, "offset" FROM readings),
counted AS (SELECT log_id, count(*) AS n FROM stored GROUP BY log_id),
named AS (SELECT log_id, sum(count) AS n FROM gaps WHERE what = 'frames' GROUP BY log_id)
SELECT CAST(sum(next_offset - counted.n - coalesce(named.n, 0)) AS BIGINT) AS missing,
    CAST(sum(counted.n) AS BIGINT) AS frames,
    (SELECT count(*) FROM readings) AS readings,
    (SELECT count(*) - count(DISTINCT (log_id, "offset")) FROM frames)
        + (SELECT count(*) - count(DISTINCT (gpu, t_hi_ns)) FROM readings)
        + (SELECT count(*) - count(DISTINCT (session, kind, index, gpu)) FROM windows) AS twice,
    (SELECT count(*) FROM events ANTI JOIN windows ON events.session = windows.session
        AND windows.kind = 'step' AND windows.index = events.index - 1
        WHERE events.kind = 'step_boundary' AND ended_ns IS NOT NULL) AS unmeasured
FROM logs JOIN counted USING (log_id) LEFT JOIN named USING (log_id)
"""
GAPS = "SELECT count || ' ' || what || ': ' || reason AS gap FROM gaps ORDER BY what, count, reason"


def ask(where: Places, query: str) -> list[dict[str, Any]]:
    """Return the answer of the analyzer there; nothing while it does not answer."""
    try:
        rows: list[dict[str, Any]] = Connection(where).sql(query).to_pylist()
    except UnreachableError:
        return []
    return rows


class Account(Struct, frozen=True):
    """What became of everything, counted in the archive and by the publishers."""

    emitted: int
    """Events that publishers have put, as far as those that were killed could tell."""
    acknowledged: int
    """Of those, what publishers knew to be in a log."""
    archived: int
    twice: int
    """Events, readings, frames or windows stored more than once."""
    lost: int
    """Acknowledged events, or frames of a log, that are neither archived nor in ``gaps``."""
    unmeasured: int
    """Steps that are archived and have no row in ``windows``."""
    gaps: tuple[str, ...]
    """What ``gaps`` says, a sentence each."""
    frames: int
    readings: int

    @property
    def other_gaps(self) -> list[str]:
        """Return the gaps but those of a time without a collector, and of a publisher killed in it."""
        return [gap for gap in self.gaps if not gap.endswith(UNHEARD) and " collector: " not in gap]


class Setup:
    """Processes over one directory. Names: ``collector``, ``analyzer``, and ``publisher`` and a number."""

    def __init__(
        self, directory: Path, gpus: int = 1, analyze: tuple[str, ...] = (), collect: tuple[str, ...] = ()
    ) -> None:
        """``analyze``, ``collect``: flags of the analyzer and of the collector."""
        self.directory = directory
        self._where = places({"ZEUS_STREAM_DIR": str(directory)})
        self._device = f"simulated:v100x{gpus}"
        self.gpus = [spec.uuid(index, socket.gethostname()) for index, spec in enumerate(parse(self._device))]
        self.analyze, self._collect = analyze, collect
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._runs = 0
        self._run_of: dict[str, str] = {}
        (directory / "told").mkdir(exist_ok=True)

    def start(self, name: str) -> "subprocess.Popen[str]":
        """Start a process; it need not be ready when this returns."""
        match name:
            case "collector":
                command = [*ZEUS_STREAM, "collect", "--device", self._device, *self._collect]
            case "analyzer":
                archive_at(self.directory / "energy.duckdb")
                command = [*ZEUS_STREAM, "analyze", *self.analyze]
            case _:
                self._runs += 1
                self._run_of[name] = run = f"run-{self._runs}"
                index = int(name.split()[1])
                command = ["-c", PUBLISHER, run, self.gpus[index], str(index), str(self.directory)]
        with (self.directory / f"{name}.err").open("a") as errors:
            process = start(self.directory, *command, stderr=errors)
        self._running[name] = process
        return process

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        assert process.poll() is None, f"{name} ended by itself: {self.output(name)}"
        process.kill()
        process.wait()

    def stop(self, name: str) -> int:
        """End a process in order and return its exit code."""
        self._running[name].terminate()
        return self.wait(name)

    def wait(self, name: str) -> int:
        """Wait for a process to end by itself and return its exit code."""
        return self._running.pop(name).wait(PATIENCE_S)

    @property
    def running(self) -> tuple[str, ...]:
        """Return the names of processes that were started and not stopped or killed."""
        return tuple(self._running)

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def output(self, name: str) -> str:
        """Return what a process of this name has written to stderr."""
        return (self.directory / f"{name}.err").read_text(errors="replace")

    def kill_in_turn(
        self,
        kills: int,
        rng: Random,
        killed_one: Callable[[str], None] = lambda _: None,
        longest_s: float = 1.2,
    ) -> dict[str, int]:
        """Kill one after the other, and start it again sooner or later: return how often each was killed.

        ``longest_s`` is between two kills at most.
        """
        killed = dict.fromkeys(self._running, 0)
        for number in range(kills):
            name = list(killed)[number % len(killed)]
            if name not in self._running:
                self.start(name)
            time.sleep(rng.uniform(0.0, longest_s))
            self.kill(name)
            killed[name] += 1
            killed_one(name)
            for other in rng.sample(list(killed), len(killed)):
                if other not in self._running and rng.random() < 0.8:
                    self.start(other)
        for name in killed:
            if name not in self._running:
                self.start(name)
        return killed

    def welcome(self) -> Welcome | None:
        """Return how far the collector's log goes; None: it does not answer."""
        hello = codec.encode(Hello("watcher", "test"))
        reply = sockets.exchange(self._where.control, hello, 1)
        return None if reply is None else codec.decode(reply[0], Welcome)

    def status(self, process: str, section: str, name: str) -> str:
        """Return a value of a process's status; nothing while it does not answer."""
        return rows(self.directory, process).get((section, name), "")

    def has_found_gpus(self) -> bool:
        """Whether the collector has found its GPUs, which takes longer than to answer."""
        found = rows(self.directory, "collector")
        return [value for (_, name), value in found.items() if name == "state"] == ["there"] * len(self.gpus)

    def told(self, run: str) -> tuple[int, int]:
        """Return how many events a publisher has put, and how many it knows to be in a log."""
        try:
            emitted, acknowledged = (self.directory / "told" / run).read_text().split()
        except FileNotFoundError:
            return 0, 0
        return int(emitted), int(acknowledged)

    def sql(self, query: str) -> list[dict[str, Any]]:
        """Return the analyzer's answer; nothing while it does not answer."""
        return ask(self._where, query)

    def finish(self, archive: Path | None = None, settled: str = UNMEASURED) -> Account:
        """Let publishers hand over what they have, the analyzer archive it, and stop all: the account.

        ``settled``: a query for ``n``, which is 0 once all runs are measured to their end.
        """
        until(self.welcome)
        publishers = [name for name in self._running if name.startswith("publisher")]
        for name in publishers:
            until(lambda run=self._run_of[name]: self.told(run)[1] > 100)  # type: ignore[misc]  # mypy cannot type a lambda's default
        (self.directory / "told" / "stop").touch()
        for name in publishers:
            assert self.wait(name) == 0, self.output(name)
        assert self.stop("collector") == 0, self.output("collector")
        # One that starts again has everything in its log, and an end that cannot move while it is reached.
        end = self._end_of_log()
        self.start("collector")
        until(self.welcome)
        self._wait_archived(*end)
        until(lambda: self.sql(settled) == [{"n": 0}])
        assert self.stop("analyzer") == 0, self.output("analyzer")
        assert self.stop("collector") == 0, self.output("collector")
        return self.account(archive or self.directory / "energy.duckdb")

    def _end_of_log(self) -> tuple[str, int]:
        log = sqlite3.connect(self.directory / "log.sqlite")
        try:
            [(log_id,)] = log.execute("SELECT value FROM meta WHERE key = 'log_id'").fetchall()
            [(last,)] = log.execute('SELECT max("offset") FROM frames').fetchall()
        finally:
            log.close()
        return log_id, last + 1

    def archived(self, log_id: str, end: int) -> bool:
        """Whether the analyzer has a log up to an offset."""
        return self._next_offset(log_id) >= end

    def _next_offset(self, log_id: str) -> int:
        logs = self.sql("SELECT log_id, next_offset FROM logs")
        return next((int(log["next_offset"]) for log in logs if log["log_id"] == log_id), 0)

    def _wait_archived(self, log_id: str, end: int) -> None:
        """Wait as long as the analyzer gets on: what is left of a large load may take any time."""
        at = -1

        def further() -> bool:
            nonlocal at
            before, at = at, self._next_offset(log_id)
            return at > before

        while at < end:
            until(further)

    def account(self, path: Path) -> Account:
        """Compare an archive, which nobody may have open, with what the publishers told."""
        with duckdb.connect(path, read_only=True) as archive:
            runs, [stored], gaps = (
                archive.sql(query).to_arrow_table().to_pylist() for query in (RUNS, STORED, GAPS)
            )
        once = {row["run"]: row["once"] for row in runs}
        told = {run: self.told(run) for run in (f"run-{number + 1}" for number in range(self._runs))}
        # What is archived of a session are its first events, at least those acknowledged.
        unknown = sum(max(0, known - once.get(run, 0)) for run, (_, known) in told.items())
        return Account(
            emitted=sum(emitted for emitted, _ in told.values()),
            acknowledged=sum(known for _, known in told.values()),
            archived=sum(once.values()),
            twice=stored["twice"] + sum(row["twice"] for row in runs),
            lost=stored["missing"] + unknown + sum(row["missing"] for row in runs),
            unmeasured=stored["unmeasured"],
            gaps=tuple(row["gap"] for row in gaps),
            frames=stored["frames"],
            readings=stored["readings"],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill what still runs."""
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


@contextmanager
def pipeline(
    directory: Path,
    publishers: int = 1,
    analyze: tuple[str, ...] = ("--select", "none"),
    collect: tuple[str, ...] = (),
    gpus: int = 0,
) -> Iterator[Setup]:
    """Run a collector, an analyzer and publishers, one a GPU; at the end kill what is left of them.

    ``gpus``: as many as there are, if more than publishers.
    """
    with Setup(directory, max(publishers, gpus, 1), analyze, collect) as setup:
        for name in ("collector", "analyzer", *(f"publisher {i}" for i in range(publishers))):
            setup.start(name)
        yield setup
