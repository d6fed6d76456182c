"""Kinds of noise that steps of real training carry, as factors of a step's time and energy.

A kind draws its parameters from ranges, so a seed makes a world. The ranges were fixed before the search was
changed, and the draw of `FINAL_SEED` is played once, after the last change. Every factor is relative to a
typical step; what a change of limit does to a step is the same under all of them.

The time of a step swings with its batch. Its energy follows by ``follows``, half of it to all, and has a
small white noise of its own.
"""

from collections.abc import Callable
from math import exp, sqrt

import numpy as np
import numpy.typing as npt

from zeus_stream.records import record

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator

TUNING_SEED, FINAL_SEED = 1, 2


@record
class Noise:
    """Factors of the time and of the energy of each step."""

    time: Floats
    energy: Floats


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


KINDS: dict[str, Callable[[Rng, int], Floats]] = {
    kind.__name__.replace("_", " "): kind
    for kind in (
        white,
        correlated,
        strongly_correlated,
        drifting,
        swinging,
        sorted_batches,
        bucketed_batches,
        rare_long_steps,
        regular_long_steps,
        slow_start,
        sudden_start,
        slow_wave,
        heavy_tails,
        lengths,
        neighbour,
        mixed,
    )
}


def draw(kind: str, rng: Rng, steps: int) -> Noise:
    """Return the noise of a world of some kind."""
    time = np.maximum(KINDS[kind](rng, steps), -0.8)
    own = rng.uniform(0.005, 0.02) * rng.normal(size=steps)
    return Noise(1 + time, (1 + rng.uniform(0.5, 1) * time) * (1 + own))


def _ar(rng: Rng, steps: int, correlation: float, size: float) -> Floats:
    """Return AR(1) noise of a standard deviation."""
    shocks = (size * sqrt(1 - correlation**2) * rng.normal(size=steps)).tolist()
    value, values = size * float(rng.normal()), []
    for shock in shocks:
        value = correlation * value + shock
        values.append(value)
    return np.array(values)
