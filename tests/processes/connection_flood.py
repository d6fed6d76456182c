"""Programs of another user that connect to a collector as fast as they can, and never send a byte.

They are there before the collector starts. Beside them, a bystander sends events and waits for each
acknowledgement, over the connection that it has and over a new one each second.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq
from msgspec.structs import replace

from tests.environment import run
from tests.messages import RUN_STARTED
from zeus_stream.clock import anchor, boot_id, monotonic_ns
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import Ack, Batch, Event, StepBoundary

OTHER_USER = 65_534
ATTACKERS = 8
PAUSE_S = 0.01
NEW_S = 1.0
"""Between two new connections of the bystander."""
_ATTACK = """
import encodings.idna, errno, os, socket, sys
if os.geteuid() == 0:
    os.setgroups([])
    os.setuid(int(sys.argv[1]))
held, parent = [], os.getppid()
while os.getppid() == parent:  # the kernel tells no process that changed its user that its parent has ended
    for place in sys.argv[2:]:
        family, address = socket.AF_UNIX, place
        if place.isdigit():
            family, address = socket.AF_INET, ("127.0.0.1", int(place))
        try:
            connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            if connection.connect_ex(address) in (0, errno.EINPROGRESS):
                held.append(connection)
        except OSError:
            for each in held:
                each.close()
            held.clear()
"""


@contextmanager
def flood(*places: Path | int, attackers: int = ATTACKERS) -> Iterator[None]:
    """Connect to these sockets and ports, also before they are there, until the end of the block."""
    command = [sys.executable, "-c", _ATTACK, str(OTHER_USER), *map(str, places)]
    running = [subprocess.Popen(command, env={}, stdin=subprocess.DEVNULL) for _ in range(attackers)]
    try:
        yield
        assert all(each.poll() is None for each in running)
    finally:
        for each in running:
            each.send_signal(signal.SIGKILL)
            each.wait()


class Bystander:
    """One session that sends a step at a time, and waits until it is acknowledged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._session, self._sequence = f"bystander-{os.getpid()}", 0
        self._socket = self._connected()

    def _connected(self) -> "zmq.Socket[bytes]":
        opened: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        for option, value in ((zmq.IMMEDIATE, 1), (zmq.RECONNECT_IVL, 50), (zmq.LINGER, 0)):
            opened.setsockopt(option, value)
        opened.connect(f"ipc://{self._path}")
        return opened

    def _event(self) -> Event:
        now = anchor()
        if self._sequence:
            return StepBoundary(self._sequence, now.monotonic_ns, now.monotonic_ns)
        return replace(
            RUN_STARTED, t_ns=now.monotonic_ns, job="bystander", run="bystander", pid=os.getpid(),
            boot_id=boot_id(), wall_ns=now.wall_ns, wall_error_ns=now.error_ns,
        )  # fmt: skip

    def step(self, patience_s: float) -> float:
        """Send one event, and return the ms until it was acknowledged. Raises TimeoutError."""
        message = codec.encode(Batch(self._session, self._sequence, (self._event(),)))
        began_ns, again_ns = monotonic_ns(), 0
        while (now_ns := monotonic_ns()) < began_ns + patience_s * 1e9:
            if now_ns > again_ns and self._socket.poll(1, zmq.POLLOUT):
                self._socket.send(message)
                again_ns = now_ns + 1_000_000_000
            if self._socket.poll(20):
                ack = codec.decode(self._socket.recv(), Ack)
                if ack.next_sequence > self._sequence:
                    self._sequence = ack.next_sequence
                    return (monotonic_ns() - began_ns) / 1e6
        raise TimeoutError(f"event {self._sequence} was not acknowledged within {patience_s:g} s")

    def reconnect(self) -> None:
        self._socket.close()
        self._socket = self._connected()

    def close(self) -> None:
        self._context.destroy(linger=0)


def stand_by(path: Path, seconds: float, patience_s: float) -> tuple[list[float], list[float]]:
    """Send events for a time; return the ms that each took, and those over a new connection."""
    bystander = Bystander(path)
    known_ms, new_ms = list[float](), [bystander.step(patience_s)]
    try:
        until_s = time.monotonic() + seconds
        renew_s = time.monotonic() + NEW_S
        while time.monotonic() < until_s:
            if time.monotonic() > renew_s:
                bystander.reconnect()
                new_ms.append(bystander.step(patience_s))
                renew_s = time.monotonic() + NEW_S
            known_ms.append(bystander.step(patience_s))
            time.sleep(PAUSE_S)
    finally:
        bystander.close()
    return known_ms, new_ms


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, round(share * len(values)))]


def described(ms: list[float]) -> str:
    return (
        f"p50 {quantile(ms, 0.5):.1f} ms, p99 {quantile(ms, 0.99):.1f} ms, most {max(ms):.1f} ms of {len(ms)}"
    )


def stand_by_apart(path: Path, seconds: float, patience_s: float) -> tuple[list[float], list[float]]:
    """`stand_by` in a process of its own."""
    done = run(path.parent, "-m", "tests.processes.connection_flood", path, seconds, patience_s)
    known_ms, new_ms = json.loads(done.stdout)
    return known_ms, new_ms


if __name__ == "__main__":
    print(json.dumps(stand_by(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))))
