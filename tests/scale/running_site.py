"""The processes of a site, and what may be killed of them."""

import signal
import sqlite3
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

from tests.directories import short_directory
from tests.scale.servers import Nats, spawn
from zeus_stream.broker.batches import PARTS
from zeus_stream.protocol import codec

T = TypeVar("T")
SITE, HOST = "site", "alpha"
TRAINER = """
import itertools, sys
import zeus_stream
job, gpu = sys.argv[1], int(sys.argv[2])
with zeus_stream.Publisher(job=job, run=job, gpus=[gpu]) as publisher:
    works = zeus_stream.simulated.attach("imagenet", gpus=[gpu])
    for _ in publisher.steps(itertools.count()):
        works.run(0.03)
"""


class RunningSite:
    """Services of one site with one host, each in a directory of its own."""

    def __init__(self, dsn: str, broker: Nats, processes: ExitStack) -> None:
        """Start nothing yet. What is started is killed at the end of ``processes``."""
        self.dsn, self._broker, self._processes = dsn, broker, processes
        self.host = processes.enter_context(short_directory())
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.where: dict[str, Path] = {}
        self._logged: dict[str, list[Any]] = {}

    def start(self, name: str, where: Path, *arguments: str, **environ: str) -> None:
        """Start a process of Python, again after a kill."""
        self.running[name] = spawn(self._processes, where / f"{name}.txt", where, *arguments, **environ)
        self.where[name] = where

    def _serve(self, name: str, where: Path, *command: str, parts: int = PARTS) -> None:
        own = ("--broker", self._broker.url, "--site", SITE)
        self.start(name, where, "-m", "zeus_stream", *command, *own, ZEUS_STREAM_BROKER_PARTS=str(parts))

    def collect(self, device: str = "simulated:a40x1") -> None:
        self._serve("collector", self.host, "collect", "--host", HOST, "--cpu", "off", "--device", device)

    def train(self, job: str, gpu: int = 0) -> None:
        """Start a training that runs until it is stopped; it is called as its job."""
        self.start(job, self.host, "-c", TRAINER, job, str(gpu))

    def archive(self, name: str = "archiver", parts: int = PARTS) -> None:
        where = self._processes.enter_context(short_directory())
        self._serve(name, where, "archive", "--database", self.dsn, parts=parts)

    def analyze(self, name: str, shards: int) -> None:
        where = self._processes.enter_context(short_directory())
        self._serve(name, where, "analyze", "--shards", str(shards), "--database", self.dsn)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].wait()

    def stop(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGTERM)
        self.running[name].wait(60)

    def printed(self, name: str) -> str:
        """Return what a process has printed."""
        return (self.where[name] / f"{name}.txt").read_text()

    def logged(self, topic: str, kind: type[T]) -> list[tuple[int, T]]:
        """Return offset and content of what the host has logged under a topic. Each is decoded once."""
        known = self._logged.setdefault(topic, [])
        fresh = """SELECT "offset", body FROM frames WHERE topic LIKE ? ORDER BY "offset" LIMIT -1 OFFSET ?"""
        with closing(sqlite3.connect(f"file:{self.host / 'log.sqlite'}?mode=ro", uri=True)) as database:
            rows = database.execute(fresh, (f"{topic}/%", len(known)))
            known += [(offset, codec.decode(body, kind)) for offset, body in rows]
        return known
