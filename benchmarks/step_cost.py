"""What a step costs the training thread, with cold caches: p50 and p99 over one step every few milliseconds.

    python benchmarks/step_cost.py [--gpus 1 8] [--steps 1000]

Measured is the time from the end of one turn's body to the beginning of the next one's, during which the
bare loop does next to nothing. Between two steps the body works through more memory than caches hold, as
training does. Another tool is another entry of PEERS.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from time import perf_counter_ns

import zmq

import zeus_stream
from zeus_stream import wire
from zeus_stream.messages import Ack, Batch

Loop = Callable[[Iterable[int]], Iterable[int]]
"""Returns what it is given, for a loop each turn of which is a step."""
Peer = Callable[[list[str]], AbstractContextManager[Loop]]
"""Measures while entered; takes the GPUs' UUIDs."""
BODY_S = 0.004


@contextmanager
def bare(gpus: list[str]) -> Iterator[Loop]:  # noqa: ARG001  (a Peer is told of GPUs)
    yield iter


@contextmanager
def ours(gpus: list[str]) -> Iterator[Loop]:
    with zeus_stream.Publisher(job="step-cost", gpus=gpus) as publisher:
        yield publisher.steps


PEERS: dict[str, Peer] = {"bare loop": bare, "zeus-stream": ours}


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
        batch = wire.decode(payload, Batch)
        ack = Ack(batch.session, batch.sequence + len(batch.events))
        socket.send_multipart((sender, wire.encode(ack)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    with collector():
        print(f"{'per step':<14}{'GPUs':>5}{'p50 us':>9}{'p99 us':>9}")
        for count in options.gpus:
            for name, peer in PEERS.items():
                with peer([f"GPU-{number:08x}" for number in range(count)]) as loop:
                    cut = statistics.quantiles(step_costs_us(loop, options.steps), n=100)
                print(f"{name:<14}{count:>5}{cut[49]:>9.1f}{cut[98]:>9.1f}")


if __name__ == "__main__":
    main()
