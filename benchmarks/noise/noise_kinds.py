"""Kinds of noise that steps of real training carry, as factors of a step's time and energy.

A kind draws its parameters from ranges, so a seed makes a world. Every factor is relative to a typical step;
what a change of limit does to a step is the same under all of them.

The kinds of `TUNED` were there while constants were chosen. Those of `REPORTED` were written afterwards, and
are only played: no constant was chosen by them.

The time of a step swings with its batch. Its energy follows by ``follows``, half of it to all, and has a
small white noise of its own.
"""

from collections.abc import Callable
from math import exp, sqrt

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator


class Noise(Struct, frozen=True):
    """Factors of the time and of the energy of each step."""

    time: Floats
    energy: Floats
    slowed: Floats | None = None
    """Share of each step that a limit slows; None: all of all."""


def white(rng: Rng, steps: int) -> Floats:
    """Return independent normal noise, 0.5 to 5 %."""
    return rng.uniform(0.005, 0.05) * rng.normal(size=steps)


def correlated(rng: Rng, steps: int) -> Floats:
    """Return AR(1) noise of 1 to 5 %, correlation 0.3 to 0.9."""
    return _ar(rng, steps, rng.uniform(0.3, 0.9), rng.uniform(0.01, 0.05))


def strongly_correlated(rng: Rng, steps: int) -> Floats:
    """Return AR(1) noise of 1 to 5 %, correlation 0.9 to 0.98."""
    return _ar(rng, steps, rng.uniform(0.9, 0.98), rng.uniform(0.01, 0.05))


def drifting(rng: Rng, steps: int) -> Floats:
    """Return AR(1) noise of 1 to 3 % that forgets within 200 to 2000 steps, and white noise of 1 %."""
    slow = _ar(rng, steps, exp(-1 / rng.uniform(200, 2000)), rng.uniform(0.01, 0.03))
    return slow + 0.01 * rng.normal(size=steps)


def swinging(rng: Rng, steps: int) -> Floats:
    """Return a sine of 4 to 30 %, period 12 to 120 steps, and white noise of 1 to 2 %."""
    period, size = rng.uniform(12, 120), rng.uniform(0.04, 0.3)
    sine = np.sin(2 * np.pi * (np.arange(steps) / period + rng.uniform()))
    return size * sine + rng.uniform(0.01, 0.02) * rng.normal(size=steps)


def sorted_batches(rng: Rng, steps: int) -> Floats:
    """Return a saw tooth of 5 to 30 %, period 12 to 120 steps: each chunk of batches is sorted by length."""
    period, size = int(rng.integers(12, 121)), rng.uniform(0.05, 0.3) * rng.choice((-1, 1))
    saw = 2 * ((np.arange(steps) + rng.integers(period)) % period) / (period - 1) - 1
    return size * saw + rng.uniform(0.01, 0.02) * rng.normal(size=steps)


def bucketed_batches(rng: Rng, steps: int) -> Floats:
    """Return levels that scatter by 5 to 20 %, each for 3 to 30 steps; their order may repeat."""
    length, size = int(rng.integers(3, 31)), rng.uniform(0.05, 0.2)
    buckets = steps // length + 1
    cycle = int(rng.integers(3, 9)) if rng.uniform() < 0.5 else buckets
    levels = np.resize(rng.normal(size=cycle), buckets)
    levels -= levels.mean()
    return size * np.repeat(levels, length)[:steps] + 0.01 * rng.normal(size=steps)


def rare_long_steps(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 to 3 %; one step in 24 to 80 takes 3 to 6 times as long."""
    factor = np.where(rng.uniform(size=steps) < 1 / rng.uniform(24, 80), rng.uniform(3, 6), 1.0)
    return factor * (1 + rng.uniform(0.01, 0.03) * rng.normal(size=steps)) - 1


def regular_long_steps(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 to 3 %; every 20th to 100th step takes 2 to 6 times as long."""
    every = int(rng.integers(20, 101))
    factor = np.where((np.arange(steps) + rng.integers(every)) % every == 0, rng.uniform(2, 6), 1.0)
    return factor * (1 + rng.uniform(0.01, 0.03) * rng.normal(size=steps)) - 1


def slow_start(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 to 3 %; the first steps take up to twice as long, fading in 5 to 60 steps."""
    slow = rng.uniform(0.2, 1) * np.exp(-np.arange(steps) / rng.uniform(5, 60))
    return slow + rng.uniform(0.01, 0.03) * rng.normal(size=steps)


def sudden_start(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 to 3 %; the first 5 to 80 steps take 1.2 to 2 times as long, then no more."""
    slow = np.where(np.arange(steps) < rng.integers(5, 81), rng.uniform(0.2, 1), 0.0)
    return slow + rng.uniform(0.01, 0.03) * rng.normal(size=steps)


def slow_wave(rng: Rng, steps: int) -> Floats:
    """Return a sine of 2 to 5 %, period 200 to 3000 steps, and white noise of 1 to 2 %."""
    sine = np.sin(2 * np.pi * (np.arange(steps) / exp(rng.uniform(*np.log((200, 3000)))) + rng.uniform()))
    return rng.uniform(0.02, 0.05) * sine + rng.uniform(0.01, 0.02) * rng.normal(size=steps)


def heavy_tails(rng: Rng, steps: int) -> Floats:
    """Return Student's t noise of 2.2 to 4 degrees of freedom, scale 1 to 4 %."""
    return np.maximum(rng.uniform(0.01, 0.04) * rng.standard_t(rng.uniform(2.2, 4), steps), -0.8)


def lengths(rng: Rng, steps: int) -> Floats:
    """Return independent log-normal noise of 5 to 12 %: batches of sentences that are not sorted."""
    size = rng.uniform(0.05, 0.12)
    return np.exp(size * rng.normal(size=steps) - size**2 / 2) - 1


def neighbour(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 to 2 % and another load that comes and goes.

    It slows steps by 3 to 15 % for 20 to 200 steps in the mean, and stays away twice as long.
    """
    here = rng.uniform(20, 200)
    there = np.zeros(steps)
    at = int(rng.exponential(2 * here))
    slow = rng.uniform(0.03, 0.15)
    while at < steps:
        until = at + 1 + int(rng.exponential(here))
        there[at:until] = slow
        at = until + 1 + int(rng.exponential(2 * here))
    return there + rng.uniform(0.01, 0.02) * rng.normal(size=steps)


def mixed(rng: Rng, steps: int) -> Floats:
    """Return a swing or a saw tooth together with rare long steps and a slow start, each half as large."""
    swing = (swinging if rng.uniform() < 0.5 else sorted_batches)(rng, steps)
    return 0.5 * (swing + rare_long_steps(rng, steps) + slow_start(rng, steps))


# ---- kinds that are only reported -----------------------------------------------------------------------


def quiet(rng: Rng, steps: int) -> Floats:
    """Return white noise of 0.05 to 0.5 %."""
    return rng.uniform(0.0005, 0.005) * rng.normal(size=steps)


def staged_start(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 to 2 %; 10 to 100 steps take 1.5 to 3 times as long, some more 1.1 to 1.3."""
    first, more = rng.integers(10, 101, size=2)
    at = np.arange(steps)
    slow = np.where(at < first, rng.uniform(0.5, 2), np.where(at < first + more, rng.uniform(0.1, 0.3), 0.0))
    return slow + rng.uniform(0.01, 0.02) * rng.normal(size=steps)


def long_start(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 to 2 %; the first 80 to 300 steps take 1.2 to 2 times as long."""
    slow = np.where(np.arange(steps) < rng.integers(80, 301), rng.uniform(0.2, 1), 0.0)
    return slow + rng.uniform(0.01, 0.02) * rng.normal(size=steps)


def two_swings(rng: Rng, steps: int) -> Floats:
    """Return two sines of 2 to 10 %, periods 5 to 40 and 40 to 400 steps, and white noise of 1 %."""
    at = np.arange(steps)
    swings = [
        rng.uniform(0.02, 0.1) * np.sin(2 * np.pi * (at / rng.uniform(*span) + rng.uniform()))
        for span in ((5, 40), (40, 400))
    ]
    return np.sum(swings, axis=0) + 0.01 * rng.normal(size=steps)


def square_wave(rng: Rng, steps: int) -> Floats:
    """Return two levels in turn, 5 to 20 % apart, each for 15 to 200 steps, and white noise of 1 %."""
    length = int(rng.integers(15, 201))
    high = ((np.arange(steps) + rng.integers(2 * length)) // length) % 2
    return rng.uniform(0.05, 0.2) * (high - 0.5) + 0.01 * rng.normal(size=steps)


def very_rare_steps(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 to 3 %; one step in 100 to 400 takes 3 to 20 times as long."""
    factor = np.where(rng.uniform(size=steps) < 1 / rng.uniform(100, 400), rng.uniform(3, 20), 1.0)
    return factor * (1 + rng.uniform(0.01, 0.03) * rng.normal(size=steps)) - 1


def checkpoints(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 to 2 %; every 47th to 250th step takes 3 to 10 times as long."""
    every = int(rng.integers(47, 251))
    factor = np.where((np.arange(steps) + rng.integers(every)) % every == 0, rng.uniform(3, 10), 1.0)
    return factor * (1 + rng.uniform(0.01, 0.02) * rng.normal(size=steps)) - 1


def busy_spans(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 % and load of 1 to 8 %, by turns another, each for 5 to 60 steps."""
    there, at = np.zeros(steps), 0
    mean = rng.uniform(5, 60)
    while at < steps:
        until = at + 1 + int(rng.exponential(mean))
        there[at:until] = rng.uniform(0, 0.08)
        at = until
    return there - there.mean() + 0.01 * rng.normal(size=steps)


def long_neighbour(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 % and a load of 2 to 6 % that comes and goes, each for 300 to 1500 steps."""
    length = rng.uniform(300, 1500)
    there, at, slow = np.zeros(steps), int(rng.exponential(length)), rng.uniform(0.02, 0.06)
    while at < steps:
        until = at + 1 + int(rng.exponential(length))
        there[at:until] = slow
        at = until + 1 + int(rng.exponential(length))
    return there + 0.01 * rng.normal(size=steps)


def one_shift(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 to 2 %; from one of the first 400 steps on all take 2 to 4.5 % more or less."""
    shift = rng.uniform(0.02, 0.045) * rng.choice((-1, 1))
    later = np.arange(steps) >= rng.integers(400)
    return np.where(later, shift, 0.0) + rng.uniform(0.01, 0.02) * rng.normal(size=steps)


def long_tails(rng: Rng, steps: int) -> Floats:
    """Return one-sided noise: exponential of 2 to 8 %, as of waiting for input."""
    size = rng.uniform(0.02, 0.08)
    return rng.exponential(size, steps) - size


def quantised(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 to 3 %, in quanta of 2 to 10 %."""
    quantum = rng.uniform(0.02, 0.1)
    return np.round(rng.uniform(0.01, 0.03) * rng.normal(size=steps) / quantum + rng.uniform()) * quantum


def ramp(rng: Rng, steps: int) -> Floats:
    """Return white noise of 1 to 2 %, and steps that grow or shrink by 2 to 6 % in 1,000 steps."""
    slope = rng.uniform(0.02, 0.06) * rng.choice((-1, 1)) / 1000
    return np.clip(slope * np.arange(steps), -0.3, 0.3) + rng.uniform(0.01, 0.02) * rng.normal(size=steps)


def flicker(rng: Rng, steps: int) -> Floats:
    """Return 1/f noise of 1 to 4 %: as strong at each scale, from 2 to 2,048 steps."""
    size = rng.uniform(0.01, 0.04) / sqrt(11)
    return np.sum([_ar(rng, steps, exp(-1 / 2**scale), size) for scale in range(1, 12)], axis=0)


def kinds_of_batch(rng: Rng, steps: int) -> Floats:
    """Return two or three kinds of batch drawn at random, 5 to 30 % apart, and white noise of 1 %."""
    levels = rng.uniform(0.05, 0.3) * np.arange(int(rng.integers(2, 4)))
    of = rng.choice(levels, size=steps)
    return of - levels.mean() + 0.01 * rng.normal(size=steps)


def any_start(rng: Rng, steps: int) -> Floats:
    """Return white noise of 0.5 to 2 %; 10 to 300 steps take 1.2 to 3 times as long, fading or to the end."""
    length, slow, at = rng.uniform(10, 300), rng.uniform(0.2, 2), np.arange(steps)
    start = np.exp(-3 * at / length) if rng.uniform() < 0.5 else np.where(at < length, 1.0, 0.0)
    return slow * start + rng.uniform(0.005, 0.02) * rng.normal(size=steps)


# ---- steps that a limit does not slow ----------------------------------------------------------------------


def generation_and_training(rng: Rng, steps: int) -> Floats:
    """Return spans of 20 to 100 steps that a limit slows and of as many that it does not, in turn."""
    first, other = rng.integers(20, 101, size=2)
    return ((np.arange(steps) + rng.integers(first + other)) % (first + other) < first).astype(float)


def alternating(rng: Rng, steps: int) -> Floats:
    """Return one step that a limit slows after each 1 to 5 that it does not."""
    every = int(rng.integers(2, 7))
    return (np.arange(steps) % every == 0).astype(float)


def evaluations(rng: Rng, steps: int) -> Floats:
    """Return 5 to 40 steps that a limit does not slow after every 50 to 200."""
    every, length = int(rng.integers(50, 201)), int(rng.integers(5, 41))
    return ((np.arange(steps) + rng.integers(every + length)) % (every + length) < every).astype(float)


def mixture(rng: Rng, steps: int) -> Floats:
    """Return steps of two kinds drawn at random, of which a limit slows one."""
    return (rng.uniform(size=steps) < rng.uniform(0.3, 0.8)).astype(float)


TWO_KINDS = (generation_and_training, alternating, evaluations, mixture)

TUNED = (
    white, correlated, strongly_correlated, drifting, swinging, sorted_batches, bucketed_batches,
    rare_long_steps, regular_long_steps, slow_start, sudden_start, slow_wave, heavy_tails, lengths, neighbour,
    mixed, generation_and_training, alternating, square_wave, flicker, staged_start,
)  # fmt: skip
REPORTED = (
    quiet, long_start, two_swings, very_rare_steps, checkpoints, busy_spans,
    long_neighbour, one_shift, long_tails, quantised, ramp, kinds_of_batch,
    evaluations, mixture, any_start,
)  # fmt: skip

KINDS: dict[str, Callable[[Rng, int], Floats]] = {
    kind.__name__.replace("_", " "): kind for kind in (*TUNED, *REPORTED)
}


def draw(kind: str, rng: Rng, steps: int) -> Noise:
    """Return the noise of a world of some kind."""
    own = rng.uniform(0.005, 0.02) * rng.normal(size=steps)
    if KINDS[kind] in TWO_KINDS:
        slowed = KINDS[kind](rng, steps)
        time = np.where(slowed > 0, 1.0, rng.uniform(0.5, 2)) * (1 + white(rng, steps) / 2)
        energy = time * np.where(slowed > 0, 1.0, rng.uniform(0.4, 0.9)) * (1 + own)
        return Noise(time, energy, slowed)
    time = np.maximum(KINDS[kind](rng, steps), -0.8)
    return Noise(1 + time, (1 + rng.uniform(0.5, 1) * time) * (1 + own))


def _ar(rng: Rng, steps: int, correlation: float, size: float) -> Floats:
    """Return AR(1) noise of a standard deviation."""
    shocks = (size * sqrt(1 - correlation**2) * rng.normal(size=steps)).tolist()
    value, values = size * float(rng.normal()), []
    for shock in shocks:
        value = correlation * value + shock
        values.append(value)
    return np.array(values)
