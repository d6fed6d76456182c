"""Whether a workload is still what it was when its limit was chosen. Pure.

    windows of steps, one after the other -> how energy and time per step have changed, once that is sure

The first `FIRST` windows say what it is like: their median, so that one of them may be odd; unless it had
changed by then, which what was measured when the limit was chosen tells. From then on two hypotheses are
weighed for each direction and each of both figures' logarithms x: it is off by `CALM` at most, or by
`CHANGED` at least. Their log likelihood ratio is summed, never below 0, and a sum above `SURE` is an alarm:
the CUSUM test. Under the first hypothesis there are exp(`SURE`) windows and more until a false one, in the
mean; no test of which that can be said is quicker. Between the hypotheses lies what no alarm should be raised
for: that a GPU warms up, that noise is not quite what is believed, that the first windows were off.

A window counts for at most `MOST`, so that no three of them are an alarm, however odd: a checkpoint, or other
load on the machine for a second. What changes slowly is noticed when it has changed by enough.

The noise is that of steps, from the median of how much neighbouring windows differ: a change or an odd window
among them does not matter to it, nor does a slow wandering.

Source: Page, "Continuous Inspection Schemes", Biometrika 41, 1954; bound and optimality: Lorden, "Procedures
for Reacting to a Change in Distribution", Annals of Mathematical Statistics 42, 1971.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import expm1, log, sqrt
from statistics import median

from analyzers.power_limit.search import CORRELATED
from analyzers.power_limit.selectors import Trial

FIRST = 5
"""Windows that say what the workload is like."""
RECENT = 20
"""Windows that say how noisy it is."""
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
MEDIAN_SQUARE = 0.455
"""Median of a squared standard normal variable."""

Pair = tuple[float, float]
"""Of energy, and of time."""


@dataclass(frozen=True, slots=True)
class Window:
    """Steps that followed each other."""

    logs: Pair
    """Of mJ and ns per step."""
    steps: int


@dataclass(frozen=True, slots=True)
class Watch:
    """What was seen since the limit was chosen."""

    chosen: Window | None = None
    """What was measured of it then."""
    recent: tuple[Window, ...] = ()
    """At most `RECENT`."""
    usual: Pair | None = None
    """Logarithms of mJ and ns per step; None while not known."""
    more: Pair = (0.0, 0.0)
    """Sums for a step that takes more than usual."""
    less: Pair = (0.0, 0.0)

    @property
    def alarm(self) -> bool:
        """Whether the workload has changed."""
        return max(*self.more, *self.less) > SURE

    @property
    def change(self) -> Pair:
        """How much more energy and time a step has taken in the latest windows than usual, as shares."""
        if self.usual is None:
            return 0.0, 0.0
        energy, time = _middle(self.recent[-LATEST:])
        return expm1(energy - self.usual[0]), expm1(time - self.usual[1])


def begun(trial: Trial | None) -> Watch:
    """Return the watch over a limit that was chosen by this measurement."""
    return Watch(None if trial is None else _window(trial))


def seen(watch: Watch, trial: Trial) -> Watch:
    """Return the watch after one more window of steps at the limit chosen."""
    window = _window(trial)
    if window is None:
        return watch
    watch = replace(watch, recent=(*watch.recent, window)[-RECENT:])
    if watch.usual is None:
        return replace(watch, usual=_usual(watch)) if len(watch.recent) == FIRST else watch
    off = [x - usual for x, usual in zip(window.logs, watch.usual, strict=True)]
    variances = [_step_variance(watch.recent, of) / window.steps for of in (0, 1)]
    more, less = (
        [
            min(MOST_SURE, max(0.0, before + _likelier(sign * x, variance)))
            for before, x, variance in zip(sums, off, variances, strict=True)
        ]
        for sign, sums in ((1, watch.more), (-1, watch.less))
    )
    return replace(watch, more=(more[0], more[1]), less=(less[0], less[1]))


def _window(trial: Trial) -> Window | None:
    """Return what a measurement tells; None if it counted nothing."""
    if min(trial.energy_mj, trial.duration_ns, trial.steps) <= 0:
        return None
    return Window((log(trial.step_mj), log(trial.step_ns)), trial.steps)


def _usual(watch: Watch) -> Pair:
    """Return what the workload is like: by its first windows or, where they are surely off, by its choice."""
    middle, chosen = _middle(watch.recent), watch.chosen
    if chosen is not None:
        for of in (0, 1):
            noise = sqrt(_step_variance(watch.recent, of) / chosen.steps)
            if abs(middle[of] - chosen.logs[of]) > CHANGED + 3 * noise:
                return chosen.logs
    return middle


def _middle(windows: Sequence[Window]) -> Pair:
    """Return the medians of both figures."""
    return median(window.logs[0] for window in windows), median(window.logs[1] for window in windows)


def _likelier(off: float, variance: float) -> float:
    """Return the log likelihood ratio of `CHANGED` to `CALM`, given a window that is so far off."""
    return min(MOST, (CHANGED - CALM) * (off - (CALM + CHANGED) / 2) / variance)


def _step_variance(windows: Sequence[Window], of: int) -> float:
    """Return the variance of a step's log energy (0) or log time (1), from two windows at least."""
    squares = [
        (one.logs[of] - other.logs[of]) ** 2 / (1 / one.steps + 1 / other.steps)
        for one, other in pairwise(windows)
    ]
    return max(NOISE**2, CORRELATED * median(squares) / MEDIAN_SQUARE)
