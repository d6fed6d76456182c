"""A collector as a process, over a GPU whose limit and clock are seen from outside, as administrators do."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from collectors.devices.simulated import SimulatedBus
from tests.environment import PATIENCE_S, ZEUS_STREAM, rows, run, running, start
from tests.messages import SET_CONTROL
from tests.waiting import until
from zeus_stream.paths import Places, places
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import Hello, RenewLeases, SetControl, Welcome
from zeus_stream.protocol.fields import UNLOCKED, Control
from zeus_stream.protocol.notes import ControlApplied, ControlRefused
from zeus_stream.protocol.pipelines import SetPlan
from zeus_stream.transport import sockets

FOUND_MW = 220_000
"""Neither the default nor the maximum of the GPUs: what an administrator chose."""
OURS_MW = 150_000
OURS_MHZ = 1380
OURS_MEMORY_MHZ = 877
OTHERS_MW = 180_000
Outcome = ControlApplied | ControlRefused | None
LEASE_MS = 600_000
"""What returns while a test waits for it does not return because this is over."""
TRAINER = """
import sys, time
from zeus_stream import Publisher
with Publisher(job="guarded", run="r", gpus=[sys.argv[1]]):
    print("runs", flush=True)
    time.sleep(600)
"""


@dataclass(frozen=True)
class Host:
    """One GPU, the ``device`` setting by which a collector finds it, and what its environment needs."""

    device: str
    gpu: str
    read_mw: Callable[[], int]
    write_mw: Callable[[int], None]
    read_locked_mhz: Callable[[Control], int]
    """At what a clock is locked, or UNLOCKED. (The collector cannot ask that.)"""
    environment: Mapping[str, str] = field(default_factory=dict)

    def as_found(self) -> bool:
        """Whether nothing of ours is in force."""
        return self.in_force() == (FOUND_MW, UNLOCKED, UNLOCKED)

    def in_force(self) -> tuple[int, int, int]:
        """Return power limit, graphics clock and memory clock."""
        return self.read_mw(), self.read_locked_mhz("graphics_clock"), self.read_locked_mhz("memory_clock")


class Collector:
    """A collector, ready to be commanded by an analyzer that is played here."""

    def __init__(self, host: Host, directory: Path, *arguments: str, python: str = sys.executable) -> None:
        self.host = host
        self.where: Places = places({"ZEUS_STREAM_DIR": str(directory)})
        self._commands = count(1)
        self._last = b""
        command = (*ZEUS_STREAM, "collect", "--device", host.device, *arguments)
        self.process = start(directory, *command, python=python, env=host.environment)
        try:
            until(lambda: self.rows(1).get("state") == "there")
        except TimeoutError:
            self.process.kill()
            _, err = self.process.communicate()
            sys.stderr.write(err)
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def guard(self) -> int | None:
        """Process id of its guard, while there is one."""
        rows = self.rows()
        word, _, pid = rows.get("watchdog", rows.get("guard", "")).partition(" ")  # "guard": the first 0.1.0
        return int(pid) if word == "process" else None

    def rows(self, timeout_s: float = PATIENCE_S) -> dict[str, str]:
        """Return its status and that of its GPU, by name; nothing if it does not answer in time."""
        found = rows(self.where.run, "collector", timeout_s)
        return {name: value for (of, name), value in found.items() if "GPU-" not in of or self.host.gpu in of}

    def ask(self, limit_mw: int, lease_ms: int = LEASE_MS) -> Outcome:
        """Ask for a limit and return the outcome; None: nobody answers."""
        return self.lock(limit_mw, lease_ms, "power_limit")

    def lock(self, value: int, lease_ms: int = LEASE_MS, control: Control = "graphics_clock") -> Outcome:
        """Ask for a locked clock and return the outcome; None: nobody answers."""
        wanted = replace(SET_CONTROL, owner="test", run="r", control=control, value=value, lease_ms=lease_ms)
        return self.plan(wanted)

    def plan(self, wanted: SetControl | SetPlan) -> Outcome:
        """Ask for a plan of clocks on the GPU and return the outcome; None: nobody answers."""
        if (incarnation := self._incarnation()) is None:
            return None
        number = next(self._commands)
        request = replace(
            wanted, command=f"c{number}", incarnation=incarnation, fence=number, gpu=self.host.gpu
        )
        self._last = codec.encode(request)
        return self.repeat()

    def repeat(self) -> Outcome:
        """Send the last command again, as an analyzer without a reply does, and return the outcome."""
        reply = self._exchange(self._last)
        return None if reply is None else codec.decode(reply, ControlApplied, ControlRefused)

    def send(self, limit_mw: int) -> bool:
        """Ask for a limit without waiting for the outcome. False: nobody answers."""
        threading.Thread(target=self.ask, args=(limit_mw,), daemon=True).start()
        return self.process.poll() is None

    def lapse(self) -> None:
        """Let the lease of what is held end soon, unless the request gets lost: then ask again."""
        if (incarnation := self._incarnation()) is not None:
            renewal = RenewLeases("test", incarnation, (self.host.gpu,), 300)
            sockets.exchange(self.where.control, codec.encode(renewal), 1)  # it has no reply

    def _incarnation(self) -> str | None:
        greeting = self._exchange(codec.encode(Hello("analyzer", "test")))
        return None if greeting is None else codec.decode(greeting, Welcome).incarnation

    def _exchange(self, request: bytes) -> bytes | None:
        """Return the reply; None: there is none, and the collector has died or is wedged."""
        for _ in range(round(PATIENCE_S)):
            if (reply := sockets.exchange(self.where.control, request, 1)) is not None:
                return reply[0]
            if self.process.poll() is not None:
                break
        return None

    def hold(self, limit_mw: int = OURS_MW, lease_ms: int = LEASE_MS) -> None:
        """Set a limit and lock both clocks, as soon as the run may be commanded for."""
        until(lambda: isinstance(self.ask(limit_mw, lease_ms), ControlApplied))
        until(lambda: isinstance(self.lock(OURS_MHZ, lease_ms), ControlApplied))
        until(lambda: isinstance(self.lock(OURS_MEMORY_MHZ, lease_ms, "memory_clock"), ControlApplied))
        assert self.host.in_force() == (limit_mw, OURS_MHZ, OURS_MEMORY_MHZ)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill_with_guard(self) -> None:
        """Kill both before either can see that the other is dead."""
        guard = self.guard
        assert guard is not None
        self.process.send_signal(signal.SIGSTOP)
        os.kill(guard, signal.SIGKILL)
        self.kill()


@contextmanager
def collector(
    host: Host, directory: Path, *arguments: str, python: str = sys.executable
) -> Iterator[Collector]:
    """Run a collector until the end of the block, if it lives so long; its guard ends before this returns."""
    collects = Collector(host, directory, *arguments, python=python)
    try:
        yield collects
    finally:
        collects.process.terminate()
        # The guard has the same stderr: at its end, both have ended.
        collects.process.communicate(timeout=PATIENCE_S)


@contextmanager
def trainer(host: Host, directory: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a process that is the run ``r`` on the GPU."""
    with running(directory, "-c", TRAINER, host.gpu, stderr=None, env=host.environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        yield process


def restore(host: Host, directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run ``zeus-stream restore``."""
    return run(directory, *ZEUS_STREAM, "restore", "--device", host.device, *arguments, env=host.environment)


@contextmanager
def simulated(directory: Path) -> Iterator[Host]:
    """Give a simulated V100 at FOUND_MW."""
    device = "simulated:v100x1"
    bus = SimulatedBus.parse(device, directory)
    (gpu,) = bus.discover()
    gpu.set_control("power_limit", FOUND_MW)
    yield Host(
        device,
        gpu.gpu,
        lambda: gpu.read_control("power_limit") or 0,
        lambda limit_mw: gpu.set_control("power_limit", limit_mw),
        gpu.locked_mhz,
    )
    bus.close()
