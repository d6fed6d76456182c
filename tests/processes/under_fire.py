"""Live processes that are sent what nobody should send, and what becomes of them."""

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import zmq

from tests import hostile
from tests.environment import PATIENCE_S, ZEUS_STREAM, rows, run, start
from tests.patience import complaints
from tests.waiting import until

TRAINER = """
import sys, time
from zeus_stream import Publisher
with Publisher(job="honest", run=sys.argv[1], gpus=["index:0"]) as publisher:
    for step in publisher.steps(range(int(sys.argv[2]))):
        time.sleep(0.01)
"""


class Victim:
    """A process of ours that is not spared."""

    def __init__(self, directory: Path, *arguments: str, files: int | None = None) -> None:
        """``files``: as many as it may open."""
        self.directory = directory
        self.process = start(directory, *arguments)
        if files is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (files, files))

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def memory_mb(self) -> int:
        """Resident, without what it shares with files."""
        _, resident, shared = Path(f"/proc/{self.process.pid}/statm").read_text().split()[:3]
        return (int(resident) - int(shared)) * resource.getpagesize() >> 20

    def rows(self, of: str) -> dict[tuple[str, str], str]:
        """Return the status of this collector or analyzer."""
        return rows(self.directory, of, PATIENCE_S)


@contextmanager
def victim(directory: Path, *arguments: str, ready: str, files: int | None = None) -> Iterator[Victim]:
    """Run ``python ARGUMENTS`` until the end of the block, from when its socket ``ready`` is there."""
    running = Victim(directory, *arguments, files=files)
    try:
        until(lambda: (directory / ready).exists() or not running.alive)
        yield running
    finally:
        running.process.terminate()
        sys.stderr.write(running.process.communicate(timeout=PATIENCE_S)[1][-5_000:])


@contextmanager
def collector(directory: Path, *more: str, files: int | None = None) -> Iterator[Victim]:
    arguments = ("collect", "--device", "simulated:v100x1", *more)
    with victim(directory, *ZEUS_STREAM, *arguments, ready="feed", files=files) as running:
        running.rows("collector")
        yield running


@contextmanager
def analyzer(directory: Path, *more: str, files: int | None = None) -> Iterator[Victim]:
    with victim(directory, *ZEUS_STREAM, "analyze", *more, ready="query", files=files) as running:
        yield running


def train(directory: Path, name: str, steps: int = 20) -> "subprocess.CompletedProcess[str]":
    """Run an honest training of so many steps."""
    done = run(directory, "-c", TRAINER, name, steps)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout, complaints(done.stderr))


class Sender:
    """Somebody who sends to a socket whatever there is, and reads a reply now and then, or never."""

    def __init__(self, path: Path, *, identity: bytes = b"", reads: bool = True) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._reads = reads
        for option, value in ((zmq.SNDHWM, 100), (zmq.RCVHWM, 100), (zmq.SNDTIMEO, 1_000), (zmq.LINGER, 0)):
            self._socket.setsockopt(option, value)
        if identity:
            self._socket.setsockopt(zmq.IDENTITY, identity)
        self._socket.connect(f"ipc://{path}")
        self.sent = self.replies = 0

    def send(self, parts: list[bytes]) -> None:
        """Send a message; one for which there is no room within a second is let go."""
        try:
            self._socket.send_multipart(parts)
        except zmq.Again:
            return
        self.sent += 1
        while self._reads and self._socket.poll(0):
            self._socket.recv_multipart()
            self.replies += 1

    def wait(self, timeout_s: float = PATIENCE_S) -> bool:
        """Wait for a reply, and return whether there was one."""
        if not self._socket.poll(round(timeout_s * 1000)):
            return False
        self._socket.recv_multipart()
        self.replies += 1
        return True

    def close(self) -> None:
        self._context.destroy(linger=0)


def fire(path: Path, make: Callable[[Random], list[bytes]], seed: int, count: int) -> tuple[int, int]:
    """Send messages to a socket; return how many went out, and how many replies were seen."""
    sender, rng = Sender(path), Random(seed)
    try:
        for _ in range(count):
            sender.send(make(rng))
        return sender.sent, sender.replies
    finally:
        sender.close()


class Impostor:
    """Plays a collector towards whoever comes: nothing it says makes sense."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._rng = Random(seed)
        self._context = zmq.Context()
        self._routers = [self._bound(zmq.ROUTER, directory / name) for name in ("control", "publish")]
        self._feed = self._bound(zmq.PUB, directory / "feed")
        self.heard = self.sent = 0

    def _bound(self, kind: int, path: Path) -> "zmq.Socket[bytes]":
        opened = self._context.socket(kind)
        opened.setsockopt(zmq.SNDHWM, 1_000)
        opened.bind(f"ipc://{path}")
        return opened

    def turn(self) -> None:
        """Answer what was asked, a few times over, and say something on the feed."""
        for router in self._routers:
            while router.poll(0):
                sender, *asked = router.recv_multipart()
                self.heard += 1
                for _ in range(self._rng.randrange(4)):
                    known = [asked[0]] if len(asked) > 1 else []
                    router.send_multipart([sender, *known, *hostile.reply(self._rng)], zmq.NOBLOCK)
                    self.sent += 1
        for _ in range(20):
            self._feed.send_multipart(hostile.frame(self._rng), zmq.NOBLOCK)
            self.sent += 1

    def close(self) -> None:
        self._context.destroy(linger=0)
