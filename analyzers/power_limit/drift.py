"""The watch over a workload whose limit was chosen: is it still what it was? Pure.

    windows of steps, one after the other -> how energy and time per step have changed, once that is sure

The first `FIRST` windows say what it is like: their median, so that one of them may be odd; unless it had
changed by then, which what was measured when the limit was chosen says. Where noise is correlated that is not
enough, and the mean of so many windows counts that it is known to `KNOWN`.

From then on two hypotheses are weighed for each direction and each of both figures' logarithms x: it is off
by `CALM` at most, or by `CHANGED` at least. Their log likelihood ratio is summed, never below 0, and a sum
above `SURE` is an alarm: the CUSUM test. Under the first hypothesis there are exp(`SURE`) windows and more
until a false one, in the mean; no test with that property is quicker. Between the hypotheses lies what
no alarm should be raised for: a GPU that warms up, noise that is not quite what is believed, first windows
that were off.

A window counts for at most `MOST`, so that no three of them are an alarm, however odd: a checkpoint, or other
load on the machine for a second. What changes slowly is noticed when it has changed by enough.

The ratio needs the long-run variance of the noise, which is larger than that of a window where windows follow
each other: sorted batches swing, clocks wander. It is estimated from how much means over 1, 2, 4, 8, ...
neighbouring windows differ (the Allan variance), at the scale where that says most. The largest difference at
each scale is left out, so that one change does not hide itself, and so are the latest `GUARD` windows. Before
there are windows enough, blocks of the search say the same.

An alarm after which the search chooses the same limit again has gained nothing. Both hypotheses then move
away by as much again: the workload wanders that far. Another choice sets them back.

Source: Page, "Continuous Inspection Schemes", Biometrika 41, 1954; bound and optimality: Lorden, "Procedures
for Reacting to a Change in Distribution", Annals of Mathematical Statistics 42, 1971; Allan, "Statistics of
Atomic Frequency Standards", Proceedings of the IEEE 54, 1966.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, expm1, log, sqrt
from statistics import fmean, median

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_limit.selectors import Trial

FIRST = 5
"""Windows that say what the workload is like."""
RECENT = 20
"""The latest windows whose neighbours are compared."""
CORRELATED = 1.25
"""Variance of a window over what follows from steps: they follow each other (correlation 0.3)."""
MEDIAN_SQUARE = 0.455
"""Median of a squared standard normal variable."""
KEPT = 160
"""Windows that say how noisy it is, at most."""
GUARD = 10
"""The latest windows: they may have changed, and say nothing of noise."""
KNOWN = 0.01
"""Standard deviation to which the usual logarithms should be known."""
LATEST = 4
"""Windows that say how it has changed."""
CALM, CHANGED = 0.045, 0.095
"""Of a logarithm: 4.6 % and 10 % more."""
SURE = 14.0
"""So that four sums over 10 000 windows, 100 000 steps, give one false alarm in 30 runs."""
MOST = 0.3 * SURE
MOST_SURE = 2 * SURE
"""A sum grows no further, so that it also falls again if all is as it was."""
NOISE = 0.02
"""Standard deviation of a step, at least."""
LEAST_MEANS = 5
"""Of windows, whose differences tell the variance at a scale."""

Pair = tuple[float, float]
"""Of energy, and of time."""


class Window(Struct, frozen=True):
    """Steps that followed each other."""

    logs: Pair
    """Of mJ and ns per step."""
    steps: int


class Watch(Struct, frozen=True, kw_only=True):
    """The observations since the limit was chosen."""

    chosen: Window | None = None
    """What was measured of it then."""
    noisy: tuple[Window, ...] = ()
    """Blocks of the search at one limit, one after the other: how noisy steps were."""
    wide: int = 1
    """Times `CALM` and `CHANGED`."""
    windows: tuple[Window, ...] = ()
    """Seen; at most `KEPT`, the latest."""
    count: int = 0
    """Of windows seen."""
    usual: Pair | None = None
    """Logarithms of mJ and ns per step; None while not known."""
    more: Pair = (0.0, 0.0)
    """Sums for a step that takes more than usual."""
    less: Pair = (0.0, 0.0)

    @property
    def alarm(self) -> bool:
        """True if the workload has changed."""
        return max(*self.more, *self.less) > SURE

    @property
    def change(self) -> Pair:
        """The excess of energy and time of a step in the latest windows over the usual, as shares."""
        if self.usual is None:
            return 0.0, 0.0
        energy, time = _middle(self.windows[-LATEST:])
        return expm1(energy - self.usual[0]), expm1(time - self.usual[1])


def begun(trial: Trial | None, blocks: Sequence[Trial] = (), wide: int = 1) -> Watch:
    """Return the watch over a limit that was chosen by this measurement.

    Args:
        trial: what was measured of it.
        blocks: of the search, at one limit, one after the other.
        wide: times the usual hypotheses.
    """
    noisy = tuple(window for block in blocks if (window := _window(block)) is not None)
    return Watch(chosen=None if trial is None else _window(trial), noisy=noisy[-KEPT:], wide=wide)


def seen(watch: Watch, trial: Trial) -> Watch:
    """Return the watch after one more window of steps at the limit chosen."""
    window = _window(trial)
    if window is None:
        return watch
    watch = replace(watch, windows=(*watch.windows, window)[-KEPT:], count=watch.count + 1)
    if watch.count < FIRST:
        return watch
    long = _known_variances(watch)
    variances = [max(long[of], NOISE**2, _short_run(watch.windows[-RECENT:], of)) for of in (0, 1)]
    if watch.usual is None:
        return replace(watch, usual=_usual(watch, variances))
    enough = ceil(max(long) / window.steps / KNOWN**2)
    if enough > FIRST and watch.count <= enough + GUARD and not watch.alarm:
        watch = replace(watch, usual=_longer(watch, min(enough, KEPT - GUARD)))
    assert watch.usual is not None
    off = [x - usual for x, usual in zip(window.logs, watch.usual, strict=True)]
    more, less = (
        [
            min(MOST_SURE, max(0.0, before + _likelier(sign * x, variance / window.steps, watch.wide)))
            for before, x, variance in zip(sums, off, variances, strict=True)
        ]
        for sign, sums in ((1, watch.more), (-1, watch.less))
    )
    return replace(watch, more=(more[0], more[1]), less=(less[0], less[1]))


def _window(trial: Trial) -> Window | None:
    """Return what a measurement says; None if it counted nothing."""
    if min(trial.energy_mj, trial.duration_ns, trial.steps) <= 0:
        return None
    return Window((log(trial.step_mj), log(trial.step_ns)), trial.steps)


def _usual(watch: Watch, variances: Sequence[float]) -> Pair:
    """Return what the workload is like: by its first windows or, where they are surely off, by its choice."""
    middle, chosen = _middle(watch.windows), watch.chosen
    if chosen is not None:
        for of in (0, 1):
            noise = sqrt(variances[of] / chosen.steps)
            if abs(middle[of] - chosen.logs[of]) > CHANGED + 3 * noise:
                return chosen.logs
    return middle


def _longer(watch: Watch, count: int) -> Pair:
    """Return the mean of so many windows before the latest, or of as many as there are."""
    of = watch.windows[:-GUARD][-count:] if len(watch.windows) >= 2 * GUARD else watch.windows
    return fmean(window.logs[0] for window in of), fmean(window.logs[1] for window in of)


def _middle(windows: Sequence[Window]) -> Pair:
    """Return the medians of both figures."""
    return median(window.logs[0] for window in windows), median(window.logs[1] for window in windows)


def _likelier(off: float, variance: float, wide: int) -> float:
    """Return the log likelihood ratio of `CHANGED` to `CALM`, given a window that is so far off."""
    return min(MOST, wide * (CHANGED - CALM) * (off - wide * (CALM + CHANGED) / 2) / variance)


def _known_variances(watch: Watch) -> tuple[float, float]:
    """Return the long-run variances of a step's log energy and log time, as far as they are known."""
    before = watch.windows[:-GUARD]
    known = [_long_run(windows) for windows in (watch.noisy, before) if len(windows) >= LEAST_MEANS]
    if len(before) >= KEPT // 2:
        known = known[-1:]  # what was seen since the choice says it all
    return max((of[0] for of in known), default=0.0), max((of[1] for of in known), default=0.0)


def _short_run(windows: Sequence[Window], of: int) -> float:
    """Return the variance of a step, from the median of how much neighbouring windows differ."""
    squares = [
        (one.logs[of] - other.logs[of]) ** 2 / (1 / one.steps + 1 / other.steps)
        for one, other in pairwise(windows)
    ]
    return CORRELATED * median(squares) / MEDIAN_SQUARE


def _long_run(windows: Sequence[Window]) -> tuple[float, float]:
    """Return the variances of a step as they add up over many: the largest Allan variance at any scale."""
    logs, steps = np.array([window.logs for window in windows]), fmean(window.steps for window in windows)
    found, scale = np.zeros(2), 1
    while len(logs) >= LEAST_MEANS * scale:
        means = logs[len(logs) % scale :].reshape(-1, scale, 2).mean(axis=1)
        squares = np.sort(np.diff(means, axis=0) ** 2, axis=0)[:-1]
        found = np.maximum(found, scale * steps * squares.mean(axis=0) / 2)
        scale *= 2
    return float(found[0]), float(found[1])
