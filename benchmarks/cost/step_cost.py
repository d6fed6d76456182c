"""Measure the cost of a step in the training thread, with cold caches: p50 and p99, a step every few ms.

python -m benchmarks.cost.step_cost [--gpus 1 8] [--steps 1000]

Measured is the time from the end of one turn's body to the beginning of the next one's, during which the
bare loop does next to nothing, and the floor reads a clock and appends to a list. Ours reads a clock twice,
since the wait for data is not the step's. Between two steps the body works through more memory than caches
hold, as training does. Zeus runs unmodified in an environment of its own, over a shared library that stands
in for NVML and takes 50 us a call, as drivers do; it is spared the synchronization of the GPU.
"""

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from time import perf_counter_ns

import zmq

import zeus_stream
from benchmarks.harness import ROOT, options, peer_python, stand_in_gpus, table
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


FLOOR = "clock and append"
PEERS: dict[str, Peer] = {"bare loop": bare, FLOOR: floor, "zeus-stream": ours, "Zeus 0.16": zeus}


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
def collector() -> Iterator[None]:
    """Run a process that acknowledges what a publisher sends, and keeps nothing."""
    with tempfile.TemporaryDirectory(prefix="zs-") as directory:
        os.environ["ZEUS_STREAM_DIR"] = directory
        spawn = multiprocessing.get_context("spawn")
        ready = spawn.Event()
        process = spawn.Process(target=_acknowledge, args=(Path(directory) / "publish", ready), daemon=True)
        process.start()
        ready.wait(20)
        try:
            yield
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


def quantiles_us(name: str, gpus: int, steps: int) -> tuple[float, float]:
    """Return p50 and p99 of a step, measured in a process of its own."""
    with stand_in_gpus(gpus) as host:
        python = peer_python() if name.startswith("Zeus") else sys.executable
        command = [python, "-m", "benchmarks.cost.step_cost", "--one", name]
        numbers = ["--gpus", str(gpus), "--steps", str(steps)]
        environ = os.environ | host | {"PYTHONPATH": str(ROOT)}
        printed = subprocess.check_output([*command, *numbers], env=environ, text=True)
    p50, p99 = json.loads(printed.splitlines()[-1])
    return p50, p99


def main() -> None:
    given = options(__doc__, choices={"one": PEERS}, gpus=[1, 8], steps=1000, one=str)
    if given.one:
        with PEERS[given.one]([f"GPU-{number:08x}" for number in range(given.gpus[0])]) as loop:
            cut = statistics.quantiles(step_costs_us(loop, given.steps), n=100)
        print(json.dumps([cut[49], cut[98]]))
        return
    rows = []
    with collector():
        for gpus in given.gpus:
            found = {name: quantiles_us(name, gpus, given.steps) for name in PEERS}
            for name, (p50, p99) in found.items():
                of_floor = [
                    f"{mine / least:.1f}" for mine, least in zip((p50, p99), found[FLOOR], strict=True)
                ]
                rows.append([name, gpus, f"{p50:.1f} us", f"{p99:.1f} us", *of_floor])
    header = "tool | GPUs | p50 | p99 | p50, times the floor | p99, times the floor"
    table("A step in the training thread", header, rows)


if __name__ == "__main__":
    main()
