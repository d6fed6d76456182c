"""Measure the cost of a step in the training thread, with cold caches: p50 and p99, a step every few ms.

python -m benchmarks.cost.step_cost [--gpus 1 8] [--steps 1000] [--broken]

Measured is the time from the end of one turn's body to the beginning of the next one's, during which the
bare loop does next to nothing, and the floor reads a clock and appends to a list. Ours reads a clock twice,
since the wait for data is not the step's. Between two steps the body works through more memory than caches
hold, as training does. Zeus runs unmodified in an environment of its own, over a shared library that stands
in for NVML and takes 50 us a call, as drivers do; it is spared the synchronization of the GPU. ``--broken``:
ours on one GPU in each broken state of the collector (`tests/processes/training.py`).
"""

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from time import perf_counter_ns

import zmq

import zeus_stream
from benchmarks.harness import ROOT, options, peer_python, stand_in_gpus, table
from tests.directories import short_directory
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import Ack, Batch

Loop = Callable[[Iterable[int]], Iterable[int]]
"""Returns what it is given, for a loop each turn of which is a step."""
Peer = Callable[[list[str]], AbstractContextManager[Loop]]
"""Measures while entered; takes the GPUs' UUIDs."""
BODY_S = 0.004


@contextmanager
def bare(gpus: list[str]) -> Iterator[Loop]:  # noqa: ARG001  (a Peer receives the GPUs)
    yield iter


@contextmanager
def floor(gpus: list[str]) -> Iterator[Loop]:  # noqa: ARG001  (a Peer receives the GPUs)
    """Read a clock and append to a list: the least that records a step."""
    instants: list[int] = []

    def loop(items: Iterable[int]) -> Iterator[int]:
        for item in items:
            instants.append(perf_counter_ns())
            yield item

    yield loop


@contextmanager
def ours(gpus: list[str]) -> Iterator[Loop]:
    with zeus_stream.Publisher(job="step-cost", gpus=gpus) as publisher:
        yield publisher.steps


@contextmanager
def zeus(gpus: list[str]) -> Iterator[Loop]:
    from zeus.monitor import ZeusMonitor

    monitor = ZeusMonitor(gpu_indices=list(range(len(gpus))), cpu_indices=[])

    def loop(items: Iterable[int]) -> Iterator[int]:
        for item in items:
            monitor.begin_window("step", sync_execution=False)
            yield item
            monitor.end_window("step", sync_execution=False)

    yield loop


FLOOR, OURS = "clock and append", "zeus-stream"
PEERS: dict[str, Peer] = {"bare loop": bare, FLOOR: floor, OURS: ours, "Zeus 0.16": zeus}


def step_costs_us(loop: Loop, steps: int) -> list[float]:
    """Return the time between two bodies of each step, us."""
    cold = bytearray(64 * 1024 * 1024)
    costs, left_ns = [], None
    for _ in loop(range(steps)):
        if left_ns is not None:
            costs.append((perf_counter_ns() - left_ns) / 1000)
        end_ns = perf_counter_ns() + round(BODY_S * 1e9)
        cold[::64] = bytes(len(cold) // 64)
        time.sleep(max(0, end_ns - perf_counter_ns()) / 1e9)
        left_ns = perf_counter_ns()
    return costs


@contextmanager
def collector() -> Iterator[Path]:
    """Run a process that acknowledges what a publisher sends, and keeps nothing. Give its directory."""
    with short_directory() as where:
        spawn = multiprocessing.get_context("spawn")
        ready = spawn.Event()
        process = spawn.Process(target=_acknowledge, args=(where / "publish", ready), daemon=True)
        process.start()
        ready.wait(20)
        try:
            yield where
        finally:
            process.terminate()
            process.join()


def _acknowledge(path: Path, ready: Event) -> None:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.bind(f"ipc://{path}")
    ready.set()
    while True:
        sender, payload = socket.recv_multipart()
        batch = codec.decode(payload, Batch)
        ack = Ack(batch.session, batch.sequence + len(batch.events))
        socket.send_multipart((sender, codec.encode(ack)))


def quantiles_us(name: str, where: Path, gpus: int, steps: int) -> tuple[float, float]:
    """Return p50 and p99 of a step, measured in a process of its own. ``where``: of the collector."""
    with stand_in_gpus(gpus) as host:
        python = peer_python() if name.startswith("Zeus") else sys.executable
        command = [python, "-m", "benchmarks.cost.step_cost", "--one", name]
        numbers = ["--gpus", str(gpus), "--steps", str(steps)]
        environ = os.environ | host | {"ZEUS_STREAM_DIR": str(where), "PYTHONPATH": str(ROOT)}
        printed = subprocess.check_output([*command, *numbers], env=environ, text=True)
    p50, p99 = json.loads(printed.splitlines()[-1])
    return p50, p99


def print_peers(counts: Sequence[int], steps: int) -> None:
    """Print a step with each tool, by number of GPUs."""
    rows = []
    with collector() as where:
        for gpus in counts:
            found = {name: quantiles_us(name, where, gpus, steps) for name in PEERS}
            for name, both in found.items():
                of_floor = [f"{mine / least:.1f}" for mine, least in zip(both, found[FLOOR], strict=True)]
                rows.append([name, gpus, *(f"{us:.1f} us" for us in both), *of_floor])
    header = "tool | GPUs | p50 | p99 | p50, times the floor | p99, times the floor"
    table("A step in the training thread", header, rows)


def print_broken(steps: int) -> None:
    """Print a step with ours, by state of the collector."""
    from tests.processes import training  # the environment of the peers has not what it needs

    states: dict[str, training.State] = {
        "absent": training.absent,
        "stopped (SIGSTOP)": training.stopped_from_the_start,
        "wedged: takes all, answers nothing": training.wedged,
        "deaf: a socket that nobody reads": training.deaf,
        "its disk full": training.full,
        "its socket a file": training.unusable,
    }
    rows = []
    for name, state in states.items():
        with short_directory() as where, state(where):
            rows.append([name, *(f"{us:.1f} us" for us in quantiles_us(OURS, where, 1, steps))])
    table("A step while the collector is broken", "the collector is | p50 | p99", rows)


def main() -> None:
    given = options(__doc__, choices={"one": PEERS}, gpus=[1, 8], steps=1000, broken=False, one=str)
    if given.one:
        with PEERS[given.one]([f"GPU-{number:08x}" for number in range(given.gpus[0])]) as loop:
            cut = statistics.quantiles(step_costs_us(loop, given.steps), n=100)
        print(json.dumps([cut[49], cut[98]]))
    elif given.broken:
        print_broken(given.steps)
    else:
        print_peers(given.gpus, given.steps)


if __name__ == "__main__":
    main()
