"""Measure a step while telemetry is broken, against the same training without us.

    python -m benchmarks.faults.broken [--states absent wedged ...] [--pairs 8] [--rounds 50] [--steps 8]
        [--products 6]

For each state two processes train the same small network: one with `zeus_stream`, one that does not import
it. They take turns, a round each of a few steps, who begins by lot; so what the machine does besides falls
on both. Of each round the ratio of the two times is taken. Where the system happens to lay a process's memory
makes it up to 2 % faster or slower for its life, so there are several pairs. The figure is the median of all
ratios, and its 95 % interval by bootstrap, of pairs and then of their rounds. Losses, weights (bit by bit)
and exit codes have to be equal. In states that begin halfway, rounds count from there on. `none against
none` shows what the machine makes of no difference.

The exit code is 1 if a result or an exit code differs, or if a state is slower by more than the goal for
certain, its whole interval above it.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

from benchmarks.harness import directory, judged, options
from tests.environment import environment
from tests.processes import training

GOAL = 1.01
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "67108864", "MALLOC_TRIM_THRESHOLD_": "134217728"}
"""Of both processes: glibc otherwise gives large arrays back at each step or keeps them, as the layout of the
heap has it, and one import more changes that. It is worth 5 % of a step here, in either direction."""
RESAMPLES = 1_000
FILL = 101_000
"""Metrics: more than a publisher keeps for a collector that is not there."""
EXIT_CODE = 7
TRAINING = """
import sys
from time import perf_counter_ns
import numpy as np

kind, steps, products, fill = sys.argv[1], *map(int, sys.argv[2:])
if kind == "with":
    from zeus_stream import metric, steps as tell
else:
    tell, metric = iter, lambda name, value: None
rng = np.random.default_rng(0)
weights, truth, losses = np.zeros((256, 16)), rng.normal(size=(256, 16)), []


def batches():
    while sys.stdin.readline():  # its turn
        began_ns = perf_counter_ns()
        for _ in range(steps):
            yield rng.normal(size=(256, 256))
        print(perf_counter_ns() - began_ns, flush=True)


for _ in range(fill):
    metric("fill", 0.0)
for x in tell(batches()):
    for _ in range(products):
        x = np.tanh(x @ x / 16)
    error = x @ (weights - truth)
    weights -= 0.001 * x.T @ error
    losses.append(float((error * error).sum()))
    metric("loss", losses[-1])
print(" ".join(map(float.hex, [*losses, *weights.ravel().tolist()])), flush=True)
sys.exit({EXIT_CODE})
""".replace("{EXIT_CODE}", str(EXIT_CODE))
STATES: dict[str, tuple[training.State, bool]] = {
    "healthy": (training.healthy, False),
    "absent": (training.absent, False),
    "absent, and no room left for events": (training.absent, False),
    "stopped (SIGSTOP)": (training.stopped_from_the_start, False),
    "stopped halfway": (training.stopped_halfway, True),
    "killed halfway": (training.killed_halfway, True),
    "replaced halfway": (training.replaced_halfway, True),
    "wedged: takes all, says nothing": (training.wedged, False),
    "deaf: a socket nobody reads": (training.deaf, False),
    "its disk full": (training.full, False),
    "its socket a file": (training.unusable, False),
}
"""By name; and whether it begins halfway."""
NONE = "none against none"


class Training:
    """A process that trains in turns."""

    def __init__(self, where: Path, kind: str, steps: int, products: int, fill: int) -> None:
        numbers = map(str, (steps, products, fill))
        self._process = subprocess.Popen(
            [sys.executable, "-c", TRAINING, kind, *numbers],
            env=environment(where, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", **MALLOC),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def turn(self) -> int:
        """Let it train for a round, and return how long that took, ns."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self) -> tuple[str, int]:
        """Return its numbers and its exit code."""
        said, _ = self._process.communicate()
        return said, self._process.returncode

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure(name: str, given: argparse.Namespace, rng: Random) -> tuple[list[float], float, bool]:
    """Return a pair's ratios of rounds, the time of a step without us in ms, and whether results agree."""
    state, halfway_only = STATES.get(name, (training.absent, False))
    ours = "without" if name == NONE else "with"
    fill = FILL if "no room" in name else 0
    with directory() as where, ExitStack() as ends:
        halfway = ends.enter_context(state(where))
        started = {
            mine: Training(where, ours if mine else "without", given.steps, given.products, fill)
            for mine in rng.sample((True, False), 2)
        }
        both = [started[True], started[False]]
        for one in both:
            ends.callback(one.close)
            for _ in range(5):
                one.turn()
        times_ns = []
        for number in range(given.rounds):
            if number == given.rounds // 2:
                halfway()
            first = rng.randrange(2)
            taken_ns = {which: both[which].turn() for which in (first, 1 - first)}
            times_ns.append((taken_ns[0], taken_ns[1]))
        results = [one.end() for one in both]
    counted = times_ns[given.rounds // 2 :] if halfway_only else times_ns
    step_ms = statistics.median(bare for _, bare in times_ns) / given.steps / 1e6
    same = results[0] == results[1] and results[1][1] == EXIT_CODE
    return [mine / bare for mine, bare in counted], step_ms, same


def interval(pairs: Sequence[Sequence[float]], rng: Random) -> tuple[float, float]:
    """Return the 95 % interval of the median of all ratios, by bootstrap of pairs, then of their rounds."""
    medians = []
    for _ in range(RESAMPLES):
        drawn = rng.choices(pairs, k=len(pairs))
        again = [ratio for ratios in drawn for ratio in rng.choices(ratios, k=len(ratios))]
        medians.append(statistics.median(again))
    medians.sort()
    return medians[RESAMPLES // 40], medians[-RESAMPLES // 40]


def main() -> int:
    given = options(__doc__, states=[str], pairs=8, rounds=50, steps=8, products=6, seed=0)
    rng = Random(given.seed)
    rows, wrong = [], []
    for name in (NONE, *STATES):
        if given.states and not name.startswith(tuple(given.states)):
            continue
        found = [measure(name, given, rng) for _ in range(given.pairs)]
        pairs = [ratios for ratios, _, _ in found]
        ratios = [ratio for of_pair in pairs for ratio in of_pair]
        step_ms, same = statistics.median(ms for _, ms, _ in found), all(same for _, _, same in found)
        low, high = interval(pairs, rng)
        met = "met" if high <= GOAL else "MISSED" if low > GOAL else "not shown: too few pairs"
        percents = [f"{100 * (ratio - 1):+.2f} %" for ratio in (statistics.median(ratios), low, high)]
        equal = "the same" if same else "DIFFERENT"
        rows.append((name, len(ratios), f"{step_ms:.1f}", percents[0], " to ".join(percents[1:]), met, equal))
        if name != NONE and (low > GOAL or not same):
            wrong.append(name)
    head = "the collector is | rounds | step without us, ms | with us, median | 95 % interval"
    head += f" | goal {100 * (GOAL - 1):+.0f} % | results and exit codes"
    sentences = [f"{name}: the training is not as it is without us." for name in wrong]
    return judged("A step while telemetry is broken", head, rows, sentences)


if __name__ == "__main__":
    sys.exit(main())
