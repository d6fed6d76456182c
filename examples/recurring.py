"""Train the same network again and again, and see its batch size found: each training is a process.

    python examples/recurring.py                        20 trainings, two at a time on two simulated V100s
    python examples/recurring.py --once                 one training, as cron would start it

The network and its digits are those of `train_digits.py`; a larger batch makes fewer steps of an epoch, and
more epochs until the target. A simulated GPU works as long for a step as a real one might. Some trainings are
killed: their next try starts from the beginning. A collector and an analyzer are started if none run.
"""

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
from sklearn.datasets import load_digits
from train_digits import TRAINED_ON, Floats, Ints, Network

import zeus_stream
from zeus_stream.cli.run_training import as_environment
from zeus_stream.cli.running.child_services import services
from zeus_stream.cli.running.signals import Signals
from zeus_stream.cli.running.waits import until
from zeus_stream.paths import Places, places
from zeus_stream.settings import Settings
from zeus_stream.simulated_gpu.accelerator import attach
from zeus_stream.transport.client import ask_now

JOB = "digits"
SIZES, DEFAULT = (16, 32, 64, 128, 256, 512), 32
TARGET = 0.92
KNOWN_S = 20.0
"""Longest wait for a GPU."""
IMAGES = 128
"""A step of so many takes twice as long as one of none."""


def train(
    pixels: Floats, digits: Ints, seed: int, gpu: str | None, step_ms: float, *, killed: bool = False
) -> bool:
    """Train once, until the target is reached; return whether it was. ``killed``: within the first epoch."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(digits))
    pixels, digits = pixels[order], digits[order]
    job = zeus_stream.recurring(
        JOB, batch_sizes=SIZES, default=DEFAULT, target=TARGET, metric="accuracy", max_epochs=30
    )
    with attach("imagenet", None if gpu is None else [gpu]) as works:
        while not job.over:  # a try that was stopped is followed by one with another batch size
            network, rate = Network(32, rng), job.scale_lr(0.14)
            for _ in job.epochs():
                for batch in zeus_stream.steps(batches(job.batch_size, rng)):
                    network.train(pixels[batch], digits[batch], rate)
                    works.run(step_ms * (1 + len(batch) / IMAGES) / 1000)
                    if killed:
                        os.kill(os.getpid(), signal.SIGKILL)
                job.report(network.accuracy(pixels[TRAINED_ON:], digits[TRAINED_ON:]))
    print(job.reason, flush=True)
    return job.converged


def batches(size: int, rng: np.random.Generator) -> list[Ints]:
    """Return the images of an epoch, shuffled."""
    order = rng.permutation(TRAINED_ON)
    return [order[first : first + size] for first in range(0, TRAINED_ON, size)]


def recurrence(pixels: Floats, digits: Ints, number: int, gpu: str, step_ms: float, *, killed: bool) -> None:
    """Train once, as a process that a scheduler started for one GPU."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)  # in place of the handlers of its parent
    os.environ.update(ZEUS_STREAM_RUN=f"{JOB}-{os.getpid()}", ZEUS_STREAM_GPUS=gpu)
    sys.exit(not train(pixels, digits, number, gpu, step_ms, killed=killed))


def recur(
    pixels: Floats,
    digits: Ints,
    recurrences: int,
    kills: int,
    gpus: list[str],
    step_ms: float,
    signals: Signals,
) -> None:
    """Have the job recur, on each GPU one training at a time; what was killed is started again.

    A signal ends it, and the trainings that run.
    """
    context = multiprocessing.get_context("fork")
    waiting = [(number, False) for number in range(recurrences, 0, -1)]
    every = recurrences // kills if kills else 0
    for number in range(1, kills + 1):
        waiting[-number * every] = (waiting[-number * every][0], True)
    running: dict[str, tuple[multiprocessing.process.BaseProcess, int]] = {}
    while (waiting or running) and signals.told is None:
        for gpu in gpus:
            if gpu in running and running[gpu][0].exitcode is not None:
                process, number = running.pop(gpu)
                if process.exitcode == -signal.SIGKILL:
                    print(f"training {number} was killed", flush=True)
                    waiting.append((number, False))
            if gpu not in running and waiting:
                number, killed = waiting.pop()
                started = context.Process(
                    target=partial(recurrence, pixels, digits, number, gpu, step_ms, killed=killed),
                    daemon=True,
                )
                started.start()
                running[gpu] = started, number
        time.sleep(0.02)


def gpus_known(where: Places, signals: Signals) -> list[str]:
    """Return the GPUs that are there now, once the analyzer knows them: an archive has earlier ones too."""
    found: list[str] = []

    def known() -> bool:
        found[:] = [each.gpu for each in ask_now(where).gpus if each.age_ms is not None]
        return bool(found)

    if not until(known, KNOWN_S, signals, "the analyzer to know a GPU") and signals.told is None:
        sys.exit(f"recurring.py: could not begin: the analyzer knows no GPU after {KNOWN_S:g} s.")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the same network again and again.")
    parser.add_argument("--once", action="store_true", help="one training, with services that run already")
    parser.add_argument("--recurrences", type=int, default=20)
    parser.add_argument("--kills", type=int, default=3, help="so many trainings are killed")
    parser.add_argument("--device", default="simulated:v100x2", help="for a collector that is started")
    parser.add_argument("--step-ms", type=float, default=4.0, help="of the GPU, and more for its images")
    options = parser.parse_args()
    data = load_digits()
    pixels, digits = data.data / 16, data.target
    if options.once:
        sys.exit(not train(pixels, digits, time.time_ns() % 2**32, None, options.step_ms))
    settings, where = Settings(device=options.device, select="none"), places(os.environ)
    with Signals() as signals, services(where, {**os.environ, **as_environment(settings)}, signals):
        if signals.told is None:
            gpus = gpus_known(where, signals)
            recur(pixels, digits, options.recurrences, options.kills, gpus, options.step_ms, signals)
        if signals.told is not None:
            sys.exit(128 + signals.told)
        command = [sys.executable, "-m", "zeus_stream", "jobs", "show", JOB]
        subprocess.run(command, check=False)  # noqa: S603  (this interpreter, this package)


if __name__ == "__main__":
    main()
