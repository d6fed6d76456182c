"""Many hosts on one machine: a broker, PostgreSQL, three collectors, archivers, analyzers, SQL on a lake.

    make demo-cluster

Nothing is left behind. The collectors have 16 simulated GPUs each, or as many as the argument says. An
archiver is killed, and an analyzer while it searches for a power limit: the other takes over, and comes to a
decision.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from analyzers.lake import catalog
from analyzers.leases.site_leases import SiteLeases
from tests.directories import short_directory
from tests.scale.servers import nats, postgres
from zeus_stream import connect
from zeus_stream.errors import UnreachableError
from zeus_stream.settings import Settings

T = TypeVar("T")
SITE = "demo"
HOSTS = ("north", "east", "south")
SHARDS = 2
SEARCH = ("--search", "exhaustive", "--stride-w", "75", "--profile-steps", "20", "--warmup-steps", "2")
"""Four power limits with few steps each: the demo takes a minute."""
WAIT_S = 600.0
BY_HOST = """
SELECT host, count(*) AS gpus, sum(energy_j) AS energy_j, sum(power_w) AS power_w
FROM (
    SELECT host, gpu, sum(energy_j) AS energy_j, sum(energy_j) / sum(covered_s) AS power_w
    FROM power GROUP BY ALL
) GROUP BY host ORDER BY host
"""
COUNT = "SELECT count(DISTINCT host) FROM seconds"
ONCE = """
SELECT count(*) AS readings, count(DISTINCT (log_id, "offset", gpu, t_hi_ns)) AS different FROM readings
"""
DECISIONS = "SELECT run, power_limit_w, reason FROM decisions ORDER BY run"
STEPS = """
SELECT run, count(*) AS steps, sum(energy_j) AS energy_j, count(DISTINCT index) = count(*) AS once,
    max(index) - min(index) + 1 = count(*) AS none_missing
FROM windows WHERE kind = 'step' GROUP BY run ORDER BY run
"""
TRAINER = """
import itertools, sys
import zeus_stream
with zeus_stream.Publisher(job=sys.argv[1], run=f"{sys.argv[1]}-1", gpus=[0]) as publisher:
    works = zeus_stream.simulated.attach("imagenet", gpus=[0])
    for _ in publisher.steps(itertools.count()):
        works.run(0.05)
"""


def zeus_stream(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "zeus_stream", *arguments]


def quoted(word: str) -> str:
    """Return a word as a shell takes it; queries have neither `$` nor a backslash."""
    return '"' + word.strip().replace('"', '\\"') + '"'


def show(what: str, *arguments: str) -> None:
    """Run a command, and show it with its output."""
    words = [quoted(word) if " " in word else word for word in arguments]
    print(f"\n{what}\n$ zeus-stream {' '.join(words)}", flush=True)
    subprocess.run(zeus_stream(*arguments), check=True)  # noqa: S603  (our own commands)


def wait_for(condition: Callable[[], T]) -> T:
    """Wait until a condition holds, and return it. Raises TimeoutError."""
    asked_s = time.monotonic()
    deadline_s = asked_s + WAIT_S
    while not (held := condition()):
        if time.monotonic() > deadline_s:
            raise TimeoutError("demo-cluster: could not go on: this machine is too busy. Run it again.")
        time.sleep(max(0.5, 5 * (time.monotonic() - asked_s)))  # what is asked needs the processor as well
        asked_s = time.monotonic()
    return held


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put off an interrupt until the end of the block: a process that has begun is known by then."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _: came.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def start(running: ExitStack, *arguments: str, where: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a process that ends with the demo."""
    environment = os.environ | ({} if where is None else {"ZEUS_STREAM_DIR": str(where)})
    with undisturbed():
        process = subprocess.Popen(  # noqa: S603  (our own commands)
            [sys.executable, *arguments], stderr=subprocess.DEVNULL, env=environment
        )
        running.callback(process.wait)
        running.callback(process.terminate)
    return process


class Cluster:
    """The processes of the demo."""

    def __init__(self, running: ExitStack) -> None:
        self._running = running
        print("Starts PostgreSQL and NATS.", flush=True)
        self.dsn = os.environ["ZEUS_STREAM_DATABASE"] = running.enter_context(postgres()).make("lake")
        print(f'\n$ export ZEUS_STREAM_DATABASE="{self.dsn}"', flush=True)
        self.feed = ("--broker", running.enter_context(nats()).url, "--site", SITE)
        self.archivers: list[subprocess.Popen[bytes]] = []
        self.analyzers: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, *arguments: str, where: Path | None = None) -> subprocess.Popen[bytes]:
        return start(self._running, *arguments, where=where)

    def directory(self) -> Path:
        """Return a directory of a process."""
        return self._running.enter_context(short_directory())

    def answer(self, query: str) -> list[tuple[Any, ...]]:
        """Return rows of the lake."""
        with closing(catalog.attach(self.dsn, Settings(), read_only=True)) as lake:
            return lake.execute(query).fetchall()

    def archiving(self) -> list[subprocess.Popen[bytes]]:
        """Return the archivers that hold parts of the site."""
        with closing(SiteLeases(self.dsn, SITE, "demo")) as leases:
            holders = {int(held.holder.rpartition("/")[2]) for held in leases.states() if held.left_s > 0}
        return [each for each in self.archivers if each.pid in holders]

    def analyze(self) -> None:
        """Start an analyzer."""
        where = self.directory()
        service = ("-m", "zeus_stream", "analyze", "--shards", str(SHARDS), "--database", self.dsn)
        self.analyzers.append((self.start(*service, *SEARCH, *self.feed, where=where), where))

    def searching(self) -> subprocess.Popen[bytes] | None:
        """Return an analyzer that has commanded a limit."""
        for process, where in self.analyzers:
            for shard in range(SHARDS):
                with suppress(UnreachableError):  # the other analyzer has this shard
                    asked = connect({"ZEUS_STREAM_DIR": str(where / f"shard-{shard}")})
                    if asked.sql("SELECT command FROM commands").num_rows:
                        return process
        return None


def main(gpus: int = 16) -> None:
    with ExitStack() as running:
        cluster = Cluster(running)
        data = running.enter_context(tempfile.TemporaryDirectory())
        dsn, feed = cluster.dsn, cluster.feed
        show("Makes the lake.", "lake", "create", "--data", data)
        hosts = {host: cluster.directory() for host in HOSTS}
        for host, where in hosts.items():
            cluster.start("-m", "zeus_stream", "collect", "--host", host, "--device", f"simulated:a40x{gpus}",
                          "--cpu", "off", *feed, where=where)  # fmt: skip
        cluster.archivers = [cluster.start("-m", "zeus_stream", "archive", *feed) for _ in range(2)]
        print(f"\n{len(HOSTS)} collectors with {gpus} GPUs each, and 2 archivers, are running.", flush=True)
        wait_for(lambda: cluster.answer(COUNT) == [(len(HOSTS),)])

        for _ in range(2):
            cluster.analyze()
        for host, where in hosts.items():
            cluster.start("-c", TRAINER, f"training-{host}", where=where)
        print("\n2 analyzers share the jobs of 3 trainings, one on each host.", flush=True)
        searching = wait_for(cluster.searching)
        site = ("status", "--whole-site", "--database", dsn, *feed)
        show("Who archives and who decides:", *site)
        print("\nKills an analyzer while it searches, and an archiver. The others take over.", flush=True)
        searching.kill()
        wait_for(cluster.archiving)[0].kill()
        wait_for(lambda: len(cluster.answer(DECISIONS)) >= len(HOSTS))
        show("Who archives and who decides now:", *site)
        show("Decisions of all analyzers, before and after the take-over:", "lake", "sql", DECISIONS)
        show("Steps, each once:", "lake", "sql", STEPS)
        show("Energy by host:", "lake", "sql", BY_HOST)
        show("Each reading once:", "lake", "sql", ONCE)
        print(
            "\nEnds, and removes all of it. docs/how-to/cluster.md has the commands for real hosts.",
            flush=True,
        )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main(*map(int, sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except TimeoutError as wrong:
        sys.exit(str(wrong))
