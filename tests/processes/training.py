"""Trainings, and the states in which the collector they report to may be: none is the training's concern."""

import json
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import zmq

from tests.environment import start
from tests.processes.pipeline import Setup
from tests.waiting import until
from zeus_stream.paths import endpoint

TRAINING = '''
import json, multiprocessing, os, sys, threading, time
import numpy as np
import zeus_stream

kind, steps, gate = sys.argv[1], int(sys.argv[2]), sys.argv[3]
context = multiprocessing.get_context("fork")


def batches(rng):
    for _ in range(steps):
        x = rng.normal(size=(32, 8))
        yield x, x @ np.arange(8) + rng.normal(size=32)


def loaded(rng):
    """The same batches, each touched by a forked worker that also uses the library, as loaders may."""
    with context.Pool(2, initializer=np.random.seed, initargs=(0,)) as pool:
        yield from pool.imap(touch, batches(rng))


def touch(batch):
    zeus_stream.metric("loaded", 1.0)
    with zeus_stream.window("loading"):
        return batch


def train(rng, source):
    weights, losses, longest, ended = np.zeros(8), [], 0.0, time.monotonic()
    for epoch in zeus_stream.epochs(2):
        for x, y in zeus_stream.steps(source(rng)):
            error = x @ weights - y
            weights -= 0.01 * x.T @ error / len(y)
            losses.append(float(error @ error))
            with zeus_stream.window("logging"):
                zeus_stream.metric("loss", losses[-1])
            if len(losses) == steps // 2 and gate != "-":
                open(gate, "w").close()
                while os.path.exists(gate):
                    time.sleep(0.001)
                ended = time.monotonic()
            time.sleep(0.002)
            longest, ended = max(longest, time.monotonic() - ended), time.monotonic()
    return losses, weights.tolist(), longest


def rank(number, connection):
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2", MASTER_PORT="1")
    connection.send(train(np.random.default_rng(number), batches))


def in_ranks():
    pipes, ranks = [], []
    for number in range(2):
        mine, theirs = context.Pipe()
        ranks.append(context.Process(target=rank, args=(number, theirs)))
        pipes.append(mine)
        ranks[-1].start()
    told = [pipe.recv() for pipe in pipes]
    for process in ranks:
        process.join()
    return [t[0] for t in told], [t[1] for t in told], max(t[2] for t in told)


def in_threads():
    def watch():
        while not over.is_set():
            with zeus_stream.window("watched"):
                zeus_stream.metric("alive", 1.0)
            over.wait(0.001)
    over = threading.Event()
    threads = [threading.Thread(target=watch) for _ in range(3)]
    for thread in threads:
        thread.start()
    result = train(np.random.default_rng(0), batches)
    over.set()
    for thread in threads:
        thread.join()
    return result


match kind:
    case "workers":
        losses, weights, longest = train(np.random.default_rng(0), loaded)
    case "ranks":
        losses, weights, longest = in_ranks()
    case "threads":
        losses, weights, longest = in_threads()
    case _:
        losses, weights, longest = train(np.random.default_rng(0), batches)
json.dump({"losses": losses, "weights": weights, "longest_s": longest}, sys.stdout)
sys.stdout.flush()
if kind == "fails":
    raise ValueError("the script's own mistake")
if kind == "exits":
    sys.exit(7)
'''
State = Callable[[Path], AbstractContextManager[Callable[[], None]]]
"""Brings a setup into a state; gives what is to be done when half of the training is."""


def run(
    kind: str,
    directory: Path,
    halfway: Callable[[], None] | None = None,
    steps: int = 60,
    **more: str,
) -> tuple[int, dict[str, Any], str]:
    """Train, and have something done when half of the steps are: exit code, what it printed, stderr."""
    gate = directory / "gate"
    arguments = ("-c", TRAINING, kind, steps, "-" if halfway is None else gate)
    variables = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ZEUS_STREAM_FLUSH_S": "", **more}
    with start(directory, *arguments, stdout=subprocess.PIPE, env=variables) as process:
        try:
            if halfway is not None:
                until(gate.exists)
                halfway()
                gate.unlink()
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
    return process.returncode, json.loads(out or "{}"), err


def nothing() -> None:
    """Half of the steps are done, and all stays as it is."""


@contextmanager
def collecting(directory: Path, *, limit_bytes: int | None = None) -> Iterator[Setup]:
    """Run a collector; ``limit_bytes``: none of its files may grow past it, as on a full disk."""
    setup = Setup(directory)
    try:
        process = setup.start("collector")
        until(setup.has_found_gpus)
        if limit_bytes is not None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        yield setup
    finally:
        setup.close()


@contextmanager
def absent(_: Path) -> Iterator[Callable[[], None]]:
    yield nothing


@contextmanager
def healthy(directory: Path) -> Iterator[Callable[[], None]]:
    with collecting(directory):
        yield nothing


@contextmanager
def stopped_from_the_start(directory: Path) -> Iterator[Callable[[], None]]:
    with collecting(directory) as setup:
        os.kill(setup.pid("collector"), signal.SIGSTOP)
        yield nothing


@contextmanager
def stopped_halfway(directory: Path) -> Iterator[Callable[[], None]]:
    with collecting(directory) as setup:
        yield lambda: os.kill(setup.pid("collector"), signal.SIGSTOP)


@contextmanager
def killed_halfway(directory: Path) -> Iterator[Callable[[], None]]:
    with collecting(directory) as setup:
        yield lambda: setup.kill("collector")


@contextmanager
def replaced_halfway(directory: Path) -> Iterator[Callable[[], None]]:
    with collecting(directory) as setup:

        def replace() -> None:
            setup.kill("collector")
            setup.start("collector")

        yield replace


@contextmanager
def wedged(directory: Path) -> Iterator[Callable[[], None]]:
    """Somebody listens, takes everything, and says nothing."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listener:
        listener.bind(endpoint(directory / "publish"))
        yield nothing


@contextmanager
def deaf(directory: Path) -> Iterator[Callable[[], None]]:
    """A socket is open that nobody reads."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "publish"))
        listener.listen(1)
        yield nothing


@contextmanager
def full(directory: Path) -> Iterator[Callable[[], None]]:
    with collecting(directory, limit_bytes=4096) as setup:

        def said() -> bool:
            return "could not be written" in setup.status("collector", "log", "trouble")

        until(said)
        yield nothing
        until(said)


@contextmanager
def unusable(directory: Path) -> Iterator[Callable[[], None]]:
    """What should be a socket is a file."""
    (directory / "publish").write_text("not a socket")
    yield nothing
