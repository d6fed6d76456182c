"""Between hosts: a network that delays, falls silent and cuts loses nothing and repeats nothing."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tests.environment import ZEUS_STREAM, free_port, run
from tests.processes.pipeline import pipeline
from tests.waiting import until


class Network:
    """Carries TCP connections from two ports in a row to two others, as fast and as long as it likes."""

    def __init__(self, to_port: int, rng: Random) -> None:
        self._rng = rng
        self.port = free_port()
        self.cuts = 0
        self._ends: list[socket.socket] = []
        self._flows = threading.Event()
        self._flows.set()
        self._threads: list[threading.Thread] = []
        self._listeners = [socket.create_server(("127.0.0.1", self.port + door)) for door in range(2)]
        for door, listener in enumerate(self._listeners):
            self._begin(self._accept, listener, to_port + door)

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments))
        self._threads[-1].start()

    def _accept(self, listener: socket.socket, to_port: int) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return  # closed
            try:
                far = socket.create_connection(("127.0.0.1", to_port))
            except OSError:
                near.close()  # nobody listens there now
                continue
            self._ends += near, far
            self._begin(self._carry, near, far)
            self._begin(self._carry, far, near)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while content := source.recv(4096):
                time.sleep(self._rng.uniform(0, 0.005))
                self._flows.wait()
                sink.sendall(content)
        except OSError:
            return  # cut: that is what this network is for
        finally:
            source.close()
            sink.close()

    @property
    def connected(self) -> bool:
        """Whether there is anything to cut."""
        return len(self._ends) > 0

    def cut(self) -> None:
        """End every connection; new ones can be made."""
        self.cuts += self.connected
        for end in self._ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # cut before
        self._ends.clear()

    def be_silent(self, seconds: float) -> None:
        """Carry nothing for a time, without a word."""
        self._flows.clear()
        time.sleep(seconds)
        self._flows.set()

    def close(self) -> None:
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in self._threads[:2]:
            thread.join()
        self.cut()
        for thread in self._threads:
            thread.join()


@contextmanager
def network(to_port: int, rng: Random) -> Iterator[Network]:
    made = Network(to_port, rng)
    try:
        yield made
    finally:
        made.close()


def let_in(directory: Path, address: str) -> None:
    """Make a key for an analyzer, and put it where it looks for one for this address."""
    made = run(directory, *ZEUS_STREAM, "keys", "create", "desk", "--roles", "follow,command")
    there = directory / "keys" / "servers" / f"{address}.key"
    there.parent.mkdir(parents=True, exist_ok=True)
    Path(made.stdout.strip()).replace(there)


def test_through_a_network_that_delays_falls_silent_and_cuts_everything_arrives_once(zeus_dir: Path) -> None:
    rng, port = Random(1), free_port()
    with network(port, rng) as between:
        let_in(zeus_dir, f"127.0.0.1:{between.port}")
        analyze = ("--select", "none", "--follow", f"127.0.0.1:{between.port}")
        with pipeline(zeus_dir, analyze=analyze, collect=("--listen", f"127.0.0.1:{port}")) as setup:
            until(lambda: setup.sql("SELECT 1 FROM events LIMIT 1"))
            for trouble in rng.sample(["cut"] * 6 + ["silence"] * 2, 8):
                time.sleep(rng.uniform(0, 0.6))
                if trouble == "cut":
                    until(lambda: between.connected)
                    between.cut()
                else:
                    between.be_silent(rng.uniform(0.5, 1.5))
            account = setup.finish()
    assert between.cuts >= 6
    assert (account.lost, account.twice, account.unmeasured, account.gaps) == (0, 0, 0, ())
    assert account.archived >= account.emitted
