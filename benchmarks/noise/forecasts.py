"""Forecasts of runs against their ends: how often the 95 % interval holds at half-time.

Each kind of run draws its parameters from ranges, so a seed makes a run: `EPOCHS` epochs or one loop, whose
steps take 0.2 s and 50 J in the mean. The forecast that is looked at is the first one made after half
of the run's time. ``off``: by how much the forecast misses the outcome. ``half``: half of the interval, as a
share of the outcome. The kinds of `TUNED` were there while constants were chosen, the others are only played.

python -m benchmarks.noise.forecasts [--runs 200] [--seed 1] [--kinds KIND ...]
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from analyzers.interpreter.run_forecast import RunForecast, Spent
from analyzers.results.rows import ForecastRow
from benchmarks.harness import options, table
from benchmarks.noise.noise_kinds import KINDS as NOISES
from benchmarks.noise.noise_kinds import Floats, Rng

STEP_S, STEP_J = 0.2, 50.0
EPOCHS = 12
STEPS = 1_800


@dataclass(slots=True, kw_only=True)
class PlannedRun:
    """A run and its plan: the factor of each step, its epochs, and what is between them."""

    factor: Floats
    """Of a step's time and energy."""
    lengths: npt.NDArray[np.int64] | None = None
    """Steps of each epoch. None: one loop of steps."""
    rest_s: Floats = field(default_factory=lambda: np.zeros(0))
    """After each epoch, or none."""
    last_s: float = 0.0
    """A test at the end."""
    limits_w: Floats = field(default_factory=lambda: np.zeros(0))
    """Of each step; none: all the same."""
    resumed: int = 0
    """Steps of an earlier attempt."""


def _white(rng: Rng, steps: int = STEPS) -> Floats:
    return np.asarray(1 + rng.uniform(0.005, 0.05) * rng.normal(size=steps))


def _equal(steps: int = STEPS) -> npt.NDArray[np.int64]:
    return np.full(EPOCHS, steps // EPOCHS)


def _noise(kind: str) -> Callable[[Rng], PlannedRun]:
    def of_loop(rng: Rng) -> PlannedRun:
        return PlannedRun(factor=np.maximum(1 + NOISES[kind](rng, STEPS), 0.2))

    return of_loop


def white_epochs(rng: Rng) -> PlannedRun:
    """White noise, and a validation of 1 to 10 s after each epoch."""
    rest = rng.uniform(1, 10) * (1 + 0.05 * rng.normal(size=EPOCHS))
    return PlannedRun(factor=_white(rng), lengths=_equal(), rest_s=rest)


def uneven_epochs(rng: Rng) -> PlannedRun:
    """Epochs whose lengths differ by 20 %."""
    lengths = np.maximum(10, (150 * (1 + 0.2 * rng.normal(size=EPOCHS))).astype(np.int64))
    return PlannedRun(factor=_white(rng, int(lengths.sum())), lengths=lengths)


def growing_epochs(rng: Rng) -> PlannedRun:
    """Epochs that grow by 2 to 8 % each."""
    lengths = (100 * (1 + rng.uniform(0.02, 0.08)) ** np.arange(EPOCHS)).astype(np.int64)
    return PlannedRun(factor=_white(rng, int(lengths.sum())), lengths=lengths)


def growing_steps(rng: Rng) -> PlannedRun:
    """Steps that grow by 10 to 60 % over the run: sequences become longer."""
    return PlannedRun(factor=_white(rng) * (1 + rng.uniform(0.1, 0.6) * np.linspace(0, 1, STEPS)))


def shrinking_epochs_steps(rng: Rng) -> PlannedRun:
    """Steps that shrink by 10 to 40 % over the epochs of a run."""
    factor = _white(rng) * (1 - rng.uniform(0.1, 0.4) * np.linspace(0, 1, STEPS))
    return PlannedRun(factor=factor, lengths=_equal())


def longer_in_stages(rng: Rng) -> PlannedRun:
    """Steps that become 5 to 20 % longer in each of 3 to 5 stages of equal length."""
    stages = int(rng.integers(3, 6))
    stage = np.minimum(np.arange(STEPS) * stages // STEPS, stages - 1)
    return PlannedRun(factor=_white(rng) * (1 + rng.uniform(0.05, 0.2)) ** stage)


def test_at_the_end(rng: Rng) -> PlannedRun:
    """Validations of 2 to 10 s, and a test at the end of 1 to 2 times as long."""
    rest = rng.uniform(2, 10) * (1 + 0.05 * rng.normal(size=EPOCHS))
    last = float(rest.mean()) * rng.uniform(1, 2)
    return PlannedRun(factor=_white(rng), lengths=_equal(), rest_s=rest, last_s=last)


def only_a_test(rng: Rng) -> PlannedRun:
    """No validation, and a test at the end of 1 to 2 % of the run."""
    return PlannedRun(factor=_white(rng), last_s=STEPS * STEP_S * rng.uniform(0.01, 0.02))


def rare_validations(rng: Rng) -> PlannedRun:
    """A validation of 5 to 20 s after every third epoch."""
    rest = np.where(np.arange(EPOCHS) % 3 == 2, rng.uniform(5, 20), 0.1)
    return PlannedRun(factor=_white(rng), lengths=_equal(), rest_s=rest)


def uneven_rests(rng: Rng) -> PlannedRun:
    """Rests between epochs, log-normal: 5 s, by a factor of two."""
    return PlannedRun(factor=_white(rng), lengths=_equal(), rest_s=5 * np.exp(0.7 * rng.normal(size=EPOCHS)))


def searched(rng: Rng) -> PlannedRun:
    """Trials of five limits in the first 300 steps, in correlated noise."""
    limits = np.full(STEPS, 200.0)
    limits[:300] = np.repeat([300.0, 250.0, 200.0, 150.0, 100.0], 60)
    factor = 1 + NOISES["correlated"](rng, STEPS)
    return PlannedRun(factor=factor * (1 + 0.3 * (200 - limits) / 200), limits_w=limits)


def searched_epochs(rng: Rng) -> PlannedRun:
    """The same in epochs, with rests."""
    found = searched(rng)
    rest = rng.uniform(1, 5) * (1 + 0.1 * rng.normal(size=EPOCHS))
    return PlannedRun(factor=found.factor, limits_w=found.limits_w, lengths=_equal(), rest_s=rest)


def slow_beginning(rng: Rng) -> PlannedRun:
    """The first tenth of the run takes 1.2 to 1.6 times as long: caches fill."""
    slow = np.where(np.arange(STEPS) < STEPS // 10, 1 + rng.uniform(0.2, 0.6), 1.0)
    return PlannedRun(factor=_white(rng) * slow, lengths=_equal())


def wandering(rng: Rng) -> PlannedRun:
    """A random walk of 2 to 10 % over the run."""
    walk = np.cumsum(rng.normal(size=STEPS)) * rng.uniform(0.02, 0.1) / np.sqrt(STEPS)
    return PlannedRun(factor=_white(rng) * np.exp(walk))


def one_epoch(rng: Rng) -> PlannedRun:
    """A loop of known steps in noise that forgets within 20 to 200 steps."""
    memory = exp(-1 / rng.uniform(20, 200))
    value, values = 0.0, []
    for shock in rng.normal(size=STEPS).tolist():
        value = memory * value + np.sqrt(1 - memory**2) * shock
        values.append(value)
    return PlannedRun(factor=np.maximum(0.2, 1 + rng.uniform(0.02, 0.1) * np.array(values)))


def resumed(rng: Rng) -> PlannedRun:
    """A run that is resumed after 20 to 45 % of its steps."""
    return PlannedRun(factor=_white(rng), resumed=int(STEPS * rng.uniform(0.2, 0.45)))


def changed(rng: Rng) -> PlannedRun:
    """Steps that become 20 % shorter to 30 % longer for good, before half-time."""
    after = np.arange(STEPS) >= rng.uniform(0.15, 0.5) * STEPS
    return PlannedRun(factor=_white(rng) * np.where(after, 1 + rng.uniform(-0.2, 0.3), 1.0))


def in_waves(rng: Rng) -> PlannedRun:
    """Waves of 2 to 15 %, a third of the run to twice the run long, as of other jobs by day."""
    waves = np.arange(STEPS) / STEPS * rng.uniform(0.5, 3) + rng.uniform()
    return PlannedRun(factor=_white(rng) * (1 + rng.uniform(0.02, 0.15) * np.sin(2 * np.pi * waves)))


def settling(rng: Rng) -> PlannedRun:
    """Steps that become 10 to 40 % shorter, ever more slowly."""
    fallen = 1 - np.exp(-np.arange(STEPS) / rng.uniform(100, 1500))
    return PlannedRun(factor=_white(rng) * (1 - rng.uniform(0.1, 0.4) * fallen))


def growing_faster(rng: Rng) -> PlannedRun:
    """Steps that become 10 to 50 % longer, ever faster."""
    return PlannedRun(factor=_white(rng) * (1 + rng.uniform(0.1, 0.5) * np.linspace(0, 1, STEPS) ** 2))


def checkpoints(rng: Rng) -> PlannedRun:
    """A checkpoint of 5 to 60 steps' time every 50 to 400 steps."""
    factor, every = _white(rng), int(rng.integers(50, 400))
    factor[every - 1 :: every] += rng.uniform(5, 60)
    return PlannedRun(factor=factor)


def pauses(rng: Rng) -> PlannedRun:
    """A pause of 10 to 40 s after about every third epoch, by chance."""
    rest = np.where(rng.uniform(size=EPOCHS) < 0.3, rng.uniform(10, 40, EPOCHS), 0.5)
    return PlannedRun(factor=_white(rng), lengths=_equal(), rest_s=rest)


def heavy_tails(rng: Rng) -> PlannedRun:
    """Steps with Pareto's tails, exponent 1.6 to 3."""
    return PlannedRun(factor=1 + 0.5 * rng.pareto(rng.uniform(1.6, 3), STEPS))


TUNED: dict[str, Callable[[Rng], PlannedRun]] = {
    "white, a loop": _noise("white"),
    "white, epochs": white_epochs,
    "uneven epochs": uneven_epochs,
    "growing steps": growing_steps,
    "test at the end": test_at_the_end,
    "correlated": _noise("correlated"),
    "strongly correlated": _noise("strongly correlated"),
    "searched": searched,
    "slow beginning": slow_beginning,
    "wandering": wandering,
    "resumed": resumed,
    "in waves": in_waves,
    "settling": settling,
    "growing faster": growing_faster,
}
REPORTED: dict[str, Callable[[Rng], PlannedRun]] = {
    "growing epochs": growing_epochs,
    "shrinking steps": shrinking_epochs_steps,
    "longer in stages": longer_in_stages,
    "only a test": only_a_test,
    "rare validations": rare_validations,
    "uneven rests": uneven_rests,
    "searched, epochs": searched_epochs,
    "one epoch": one_epoch,
    "drifting": _noise("drifting"),
    "bucketed batches": _noise("bucketed batches"),
    "rare long steps": _noise("rare long steps"),
    "neighbour": _noise("neighbour"),
    "flicker": _noise("flicker"),
    "changed": changed,
    "checkpoints": checkpoints,
    "pauses": pauses,
    "heavy tails": heavy_tails,
}
KINDS = TUNED | REPORTED


def at_half_time(run: PlannedRun) -> tuple[ForecastRow | None, float]:
    """Play a run. Return the first forecast after half of its time, and the seconds that it took."""
    seconds = STEP_S * run.factor
    rests = np.zeros(len(seconds) + 1)
    ends = None if run.lengths is None else np.cumsum(run.lengths)
    if ends is not None and len(run.rest_s):
        rests[ends - 1] = run.rest_s
    whole_s = float(seconds.sum() + rests.sum()) + run.last_s
    forecast = RunForecast(run="run")
    forecast.plan(None if ends is None else EPOCHS, len(seconds) if ends is None else None)
    begun = run.resumed
    earlier_s = float(seconds[:begun].sum())
    if begun:
        forecast.earlier = Spent(earlier_s, STEP_J / STEP_S * earlier_s)
    spent_s = 0.0
    epoch_ends = set() if ends is None else set(ends.tolist())
    forecast.begin_rounds(Spent(0.0, 0.0))
    for index in range(begun, len(seconds)):
        step_s = float(seconds[index])
        limit_w = float(run.limits_w[index]) if len(run.limits_w) else 200.0
        forecast.add_step(index, STEP_J / STEP_S * step_s, step_s, limit_w)
        spent_s += step_s + float(rests[index])
        ended = index + 1 in epoch_ends if forecast.block is None else (index + 1) % forecast.block == 0
        if not ended:
            continue
        if ends is not None:
            forecast.epochs_done += 1
        forecast.end_round(Spent(spent_s, STEP_J / STEP_S * spent_s))
        if earlier_s + spent_s >= whole_s / 2 and (made := forecast.forecast(0)) is not None:
            return made, whole_s
    return None, whole_s


def main() -> None:
    given = options(__doc__, {"kinds": KINDS}, runs=200, seed=1, kinds=list(KINDS))
    rows = []
    for kind in given.kinds:
        holds, off, halves = [], [], []
        for number in range(given.runs):
            rng = np.random.default_rng([given.seed, list(KINDS).index(kind), number])
            made, whole_s = at_half_time(KINDS[kind](rng))
            if made is None or made.duration_s is None:
                continue
            off.append(abs(made.duration_s / whole_s - 1))
            low_s, high_s = made.duration_p2_5_s, made.duration_p97_5_s
            if low_s is None or high_s is None:
                continue
            holds.append(low_s - 1e-6 <= whole_s <= high_s + 1e-6)
            halves.append((high_s - low_s) / 2 / whole_s)
        rows.append(
            [
                kind,
                "tuned on" if kind in TUNED else "reported",
                len(holds),
                f"{100 * fmean(holds):.0f}" if holds else "-",
                f"{100 * fmean(off):.2f}" if off else "-",
                f"{100 * median(halves):.2f}" if halves else "-",
            ]
        )
    head = ["run", "kind", "intervals", "hold, %", "off, mean %", "half, median %"]
    table(f"{given.runs} runs a kind, at half-time, seed {given.seed}", head, rows)


if __name__ == "__main__":
    main()
