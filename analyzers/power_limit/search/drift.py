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
load on the machine for a second. Where odd windows come often, each counts for less: as many in a row as make
an alarm come by chance in one of `BY_CHANCE`. What changes slowly is noticed when it has changed by enough.

The ratio needs the long-run variance of the noise, which is larger than that of a window where windows follow
each other: sorted batches swing, clocks wander. It is estimated from how much means over 1, 2, 4, 8, ...
neighbouring windows differ (the Allan variance), at the scale where that says most. The largest difference at
each scale is left out, so that one change does not hide itself, and so are the latest `GUARD` windows and odd
ones. Before there are windows enough, blocks of the search say the same.

Where steps swing, a window says little, and the mean over a whole swing says much. So the same test is made
of means over `SCALES` windows, with the variance that means have at that scale and above.

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
import numpy.typing as npt
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
LONG_GUARD = 30
"""The same for means over several windows: they take longer to tell."""
OFTEN = 4
"""Windows after which their noise is estimated again."""
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
SCALES = (1, 2, 3, 4, 6, 8, 12)
"""Windows of a mean."""
ODD, MOST_ODD = 4.5, 0.3
"""Standard deviations from which on a window is odd, and the share of windows that may be."""
FEW_ODD = 0.05
"""Odd windows before any was seen, of one."""
BY_CHANCE = 40_000
FARTHEST = 0.15
"""A mean takes no window for farther off: a long step is no change of all."""
FEW = 1.0
"""Standard errors by which a variance of few means is taken for larger."""
LEAST_MEANS = 5
"""Of windows, whose differences tell the variance at a scale."""

Pair = tuple[float, float]
"""Of energy, and of time."""


class StepWindow(Struct, frozen=True):
    """Steps that followed each other."""

    logs: Pair
    """Of mJ and ns per step."""
    steps: int


class WindowNoise(Struct, frozen=True):
    """The noise of the windows of a watch."""

    variances: tuple[Pair, ...]
    """Of a step, by scale, as far as they are known: of single windows, without odd ones."""
    lasting: Pair
    """Of a step, over as many windows as were seen."""
    keep: list[bool]
    """Which windows before the latest are not odd."""
    most: float
    """A window counts for at most so much."""
    means: Pair
    """Of clipped windows, off the usual."""
    farthest: Pair = (FARTHEST, FARTHEST)
    """Off the usual, at which windows of means are clipped."""


class Watch(Struct, frozen=True, kw_only=True):
    """The observations since the limit was chosen."""

    chosen: StepWindow | None = None
    """What was measured of it then."""
    noisy: tuple[StepWindow, ...] = ()
    """Blocks of the search at one limit, one after the other: how noisy steps were."""
    wide: int = 1
    """Times `CALM` and `CHANGED`."""
    windows: tuple[StepWindow, ...] = ()
    """Seen; at most `KEPT`, the latest."""
    count: int = 0
    """Of windows seen."""
    usual: Pair | None = None
    """Logarithms of mJ and ns per step; None while not known."""
    noise: WindowNoise | None = None
    """The noise of windows, as last estimated."""
    more: tuple[Pair, ...] = ((0.0, 0.0),) * len(SCALES)
    """Sums for a step that takes more than usual, by scale."""
    less: tuple[Pair, ...] = ((0.0, 0.0),) * len(SCALES)

    @property
    def alarm(self) -> bool:
        """True if the workload has changed."""
        return max(each for pair in (*self.more, *self.less) for each in pair) > SURE

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
    noise = watch.noise
    if noise is None or watch.usual is None or (watch.count % OFTEN == 0 and not watch.alarm):
        noise = _noise_of(watch)
        watch = replace(watch, noise=noise)
    if watch.usual is None:
        return replace(watch, usual=_usual(watch, noise.variances[0]))
    enough = ceil(max(noise.lasting) / window.steps / KNOWN**2)
    if enough > FIRST and watch.count <= enough + GUARD and not watch.alarm:
        watch = replace(watch, usual=_longer(watch, min(enough, KEPT - GUARD), noise.keep))
    return replace(watch, **_sums(watch, noise))


def _sums(watch: Watch, noise: WindowNoise) -> dict[str, tuple[Pair, ...]]:
    """Return the sums at each scale after the latest window."""
    assert watch.usual is not None
    usual = np.array(watch.usual)
    more, less = list(watch.more), list(watch.less)
    for at, (scale, variances) in enumerate(zip(SCALES, noise.variances, strict=False)):
        if watch.count % scale:
            continue
        latest = watch.windows[-scale:]
        off = np.array([window.logs for window in latest]) - usual
        if scale > 1:
            off = np.clip(off, -np.array(noise.farthest), noise.farthest) - noise.means
        steps = sum(window.steps for window in latest)
        changes = [
            (float(x), variance / steps) for x, variance in zip(off.mean(axis=0), variances, strict=True)
        ]
        for sign, sums in ((1, more), (-1, less)):
            energy, time = (
                min(MOST_SURE, max(0.0, before + _likelier(sign * x, variance, watch.wide, noise.most)))
                for before, (x, variance) in zip(sums[at], changes, strict=True)
            )
            sums[at] = energy, time
    return {"more": tuple(more), "less": tuple(less)}


def _window(trial: Trial) -> StepWindow | None:
    """Return what a measurement says; None if it counted nothing."""
    if min(trial.energy_mj, trial.duration_ns, trial.steps) <= 0:
        return None
    return StepWindow((log(trial.step_mj), log(trial.step_ns)), trial.steps)


def _usual(watch: Watch, variances: Sequence[float]) -> Pair:
    """Return what the workload is like: by its first windows or, where they are surely off, by its choice."""
    middle, chosen = _middle(watch.windows), watch.chosen
    if chosen is not None:
        for of in (0, 1):
            noise = sqrt(variances[of] / chosen.steps)
            if abs(middle[of] - chosen.logs[of]) > CHANGED + 3 * noise:
                return chosen.logs
    return middle


def _longer(watch: Watch, count: int, keep: Sequence[bool]) -> Pair:
    """Return the mean of so many windows before the latest, or of as many as there are, without odd ones."""
    known = [(window, kept) for window, kept in zip(watch.windows, keep, strict=False)]
    of = known[-count:] if len(watch.windows) >= 2 * GUARD else [(window, True) for window in watch.windows]
    some = [window.logs for window, kept in of if kept]
    return fmean(energy for energy, _ in some), fmean(time for _, time in some)


def _middle(windows: Sequence[StepWindow]) -> Pair:
    """Return the medians of both figures."""
    return median(window.logs[0] for window in windows), median(window.logs[1] for window in windows)


def _likelier(off: float, variance: float, wide: int, most: float) -> float:
    """Return the log likelihood ratio of `CHANGED` to `CALM`, given a window that is so far off."""
    return min(most, wide * (CHANGED - CALM) * (off - wide * (CALM + CHANGED) / 2) / variance)


def _noise_of(watch: Watch) -> WindowNoise:
    """Return how noisy windows are, as far as it is known."""
    before = watch.windows[:-GUARD]
    keep = _not_odd(before)
    normal = [window for window, kept in zip(before, keep, strict=True) if kept]
    known = [_long_run(windows) for windows in (watch.noisy, normal) if len(windows) >= LEAST_MEANS]
    if len(normal) >= KEPT // 2:
        known = known[-1:]  # what was seen since the choice says it all
    short = [_short_run(watch.windows[-RECENT:], of) for of in (0, 1)]
    lasting = np.max([*known, np.zeros(2)], axis=0)
    single = np.max([lasting, np.array(short), np.full(2, NOISE**2)], axis=0)
    searched = _not_odd(watch.noisy)
    steps = sum(window.steps for window in watch.noisy) / watch.windows[-1].steps
    odd = (keep.count(False) + searched.count(False) + FEW_ODD) / (len(keep) + steps + 1)
    most = min(MOST, SURE * -log(odd) / log(BY_CHANCE))
    long_before = watch.windows[:-LONG_GUARD]
    if watch.usual is None or len(long_before) < 2 * LEAST_MEANS:
        return WindowNoise((_pair(single),), _pair(lasting), keep, most, (0.0, 0.0))
    off = np.array([window.logs for window in long_before]) - watch.usual
    farthest = watch.wide * FARTHEST + 3 * np.median(np.abs(off), axis=0) / sqrt(MEDIAN_SQUARE)
    clipped = np.clip(off, -farthest, farthest)
    by_scale = _by_scale(clipped, fmean(window.steps for window in long_before))
    longer = [
        np.maximum(np.max(by_scale[at:], axis=0), NOISE**2)
        * (1 + FEW * sqrt(2 / (len(long_before) // scale - 2)))
        for at, scale in enumerate(SCALES)
        if 0 < at < len(by_scale)
    ]
    lasting = np.minimum(lasting, np.max(by_scale[-2:], axis=0))
    means = np.clip(clipped.mean(axis=0), -watch.wide * CALM, watch.wide * CALM)
    return WindowNoise(
        (_pair(single), *map(_pair, longer)), _pair(lasting), keep, most, _pair(means), _pair(farthest)
    )


def _not_odd(windows: Sequence[StepWindow]) -> list[bool]:
    """Tell which windows are none with a rare long step, a checkpoint or a stall in them."""
    if len(windows) < LEAST_MEANS:
        return [True] * len(windows)
    logs = np.array([window.logs for window in windows])
    off = np.abs(logs - np.median(logs, axis=0))
    scatter = np.median(off, axis=0) / sqrt(MEDIAN_SQUARE)
    keep = np.all(off <= ODD * np.maximum(scatter, NOISE / sqrt(windows[0].steps)), axis=1)
    return [bool(each) for each in keep] if keep.mean() >= 1 - MOST_ODD else [True] * len(windows)


def _pair(of: npt.NDArray[np.float64]) -> Pair:
    return float(of[0]), float(of[1])


def _short_run(windows: Sequence[StepWindow], of: int) -> float:
    """Return the variance of a step, from the median of how much neighbouring windows differ."""
    squares = [
        (one.logs[of] - other.logs[of]) ** 2 / (1 / one.steps + 1 / other.steps)
        for one, other in pairwise(windows)
    ]
    return CORRELATED * median(squares) / MEDIAN_SQUARE


def _long_run(windows: Sequence[StepWindow]) -> npt.NDArray[np.float64]:
    """Return the variances of a step as they add up over many: the largest Allan variance at any scale."""
    logs = np.array([window.logs for window in windows])
    return np.asarray(np.max(_by_scale(logs, fmean(window.steps for window in windows)), axis=0))


def _by_scale(logs: npt.NDArray[np.float64], steps: float) -> list[npt.NDArray[np.float64]]:
    """Return the variances of a step as means over 1, 2, 4, ... windows tell them: the Allan variance."""
    found = []
    for scale in SCALES:
        if len(logs) < LEAST_MEANS * scale:
            break
        means = logs[len(logs) % scale :].reshape(-1, scale, 2).mean(axis=1)
        squares = np.sort(np.diff(means, axis=0) ** 2, axis=0)[:-1]
        found.append(scale * steps * squares.mean(axis=0) / 2)
    return found
