"""The watch over a workload whose limit was chosen: is it still what it was? Pure.

    windows of steps, one after the other -> how energy and time per step have changed, once that is sure

The latest windows are compared with those before. How far a block of windows is off by chance, the run itself
has shown: its earlier blocks of as many windows scattered by so much. A block over a whole period hardly
scatters, so a swing hides no change. Where shorter blocks scatter like independent ones, they tell how longer
ones do: the variance falls as one over the length. There are more of them, so it is known better. Student's
distribution says how rarely a block is off by more, and the skewness of blocks by how much more. No change is
what an earlier block has shown as well.

Two figures of a block have to be off in one direction, each by more than it scatters and by `LEAST_CHANGE`:
the mean of its windows, and what a quarter of them stays below. Some long steps move the mean, a change of
all steps moves both. Windows that are far off are left out of the mean, unless more than by chance are.
No three windows are an alarm.

What changes slowly looks like noise that wanders. So the latest `SLOW` windows are compared with the first
ones as well, by `CHANGED` and by how blocks scatter around a line through all windows.

After an alarm the search may choose the same limit again. If steps are as before, what raised the alarm is
part of what is known of the noise, for as long as windows are remembered. Then a return to what steps took
before the alarm is none either, for less than `MOST` windows. If they have changed for good, it is not.

Where windows are at one of two levels, no block is far above the higher one: there the farthest block before
tells what is off, not Student's distribution.

Source of blocks that grow until they scatter like independent ones: Flyvbjerg, Petersen, "Error Estimates on
Averages of Correlated Data", J. Chem. Phys. 91, 1989. The constants were chosen by the variants in
docs/measurements/search.md, "The watch".
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_limit.search.noise import Floats
from analyzers.power_limit.search.visit_blocks import NORMAL
from analyzers.power_limit.selectors import Trial
from zeus_stream.bench.student import student_quantile

FIRST = 5
"""Windows that say what the workload is like."""
LEAST, MOST = 4, 40
"""Windows of a block."""
LENGTHS = {9: range(LEAST, 10), 19: range(10, 20), MOST: range(20, MOST + 1, 2)}
"""Windows of blocks, by how many of the latest may have changed; `MOST` once there are twice as many."""
SHORTER, LONGER = (1, 2, 4, 6, 8, 12, 16), range(4, MOST + 1, 4)
"""Windows of blocks that tell how longer ones scatter, and of those that show whether they do."""
KNOWN = 240
"""Windows that tell the noise."""
KEPT = KNOWN + MOST
"""Windows that are remembered."""
CALM, LEAST_CHANGE, CHANGED = 0.045, 0.07, 0.095
"""Of a logarithm: `LEAST` windows of a block, a block, and the latest `SLOW` windows are off by more."""
RARELY, QUANTILE_SURE = 320_000, 0.99
"""Windows in which the mean of one block of each length is off by more: there are more short blocks than long
ones. With 640,000 a change right after the choice was not noticed in time in one of 30 runs; with 160,000
strongly correlated noise of seed 101 raised an alarm more. And the share of blocks whose quantile is not off
by more."""
INDEPENDENT = 1.3
"""Times the variance of independent blocks that blocks may have which count as such."""
ODD_SURE = 11.5
"""Windows that are far off are more than come by chance: in one of 100,000 blocks (Chernoff's bound), of a
logarithm."""
SEEN, UNKNOWN = 4, 15.0
"""Times as long as a block noise is known for; elsewhere a change is so many deviations of a window."""
LEAST_FREEDOM = 3.0
"""Degrees of freedom of a variance that is used."""
DEVIATION, FREEDOM = 0.01, 2
"""Standard deviation of a block that is believed beforehand, and the degrees of freedom that it is worth."""
FAR_SHARE, FAR_DEVIATIONS = 0.15, 3.0
"""A window is far off from so much, and so many standard deviations on."""
LEFT = {1: 0.25, -1: 0.5}
"""Share of a block's windows that may stay as they were, by the direction of a change: long steps are common,
quick ones are not."""
SLOW = 30
"""Windows that tell a slow change."""
LEVELS = 4
"""Before alarms that are remembered."""
TWO_LEVELS, EXCEEDED = 1.4, 1.5
"""Kurtosis of windows at two levels is less: 1, of a sine 1.5, of normal noise 3. And times as far as the
farthest block before a block there is off."""

Pair = tuple[float, float]
"""Of energy, and of time."""


class Watch(Struct, frozen=True, kw_only=True):
    """The observations since the limit was chosen."""

    noisy: tuple[Pair, ...] = ()
    """By how much what was measured before was off, one after the other: logarithms; at most `KNOWN`."""
    windows: tuple[Trial, ...] = ()
    """Seen; at most `KEPT`, the latest."""
    count: int = 0
    """Of windows seen, and of what was measured before."""
    first: int = FIRST
    """Windows that others are compared with, at least; one where it is what was measured for the choice."""
    usual: Pair | None = None
    """Logarithms of what the first windows took: mJ and ns per step; None while not known."""
    alarm: bool = False
    """The workload has changed; windows are not remembered until it is as it was again."""
    levels: tuple[Pair, ...] = ()
    """Energy and time of steps before alarms: logarithms as of ``usual``. They may return there."""
    back: int = 0
    """Windows in a row that were as usual, while there is an alarm."""
    latest: int = 0
    """Windows that raised the alarm."""
    change: Pair = (0.0, 0.0)
    """By which shares: of a step's energy and time."""


def begun(trial: Trial | None, blocks: Sequence[Trial] = (), before: Watch | None = None) -> Watch:
    """Return the watch over a limit that was chosen by this measurement.

    Args:
        trial: what was measured of it.
        blocks: of the search, at one limit, one after the other.
        before: the watch before the search, if the limit is the same; it knows the noise better.
    """
    noisy, levels = _off([each for each in blocks if _is_whole(each)]), tuple[Pair, ...]()
    if trial is not None and not _is_whole(trial):
        trial = None
    if before is not None:
        for_good = trial is not None and _is_for_good(before, trial)
        raised = before.latest if for_good else 0
        noisy = (*before.noisy, *_off(before.windows[: len(before.windows) - raised]))
        if not for_good:
            level = (before.usual,) if before.alarm and before.usual is not None else ()
            levels = (*before.levels, *level)[-LEVELS:]
    watch = Watch(noisy=noisy[-KNOWN:], levels=levels)
    return watch if trial is None else replace(watch, windows=(trial,), count=1, first=1)


def _is_for_good(watch: Watch, trial: Trial) -> bool:
    """Tell whether a trial after an alarm is nearer to the changed than to the usual."""
    if not watch.alarm or watch.usual is None:
        return False
    change = np.log1p(watch.change)
    most = int(np.argmax(np.abs(change)))
    return bool((_logs([trial])[0] - watch.usual)[most] / change[most] > 0.5)


def seen(watch: Watch, window: Trial) -> Watch:
    """Return the watch after one more window of steps at the limit chosen."""
    if not _is_whole(window):
        return watch
    if watch.alarm and watch.usual is not None:
        off = np.abs(_logs([window])[0] - watch.usual).max()
        back = watch.back + 1 if off < LEAST_CHANGE else 0
        return replace(watch, back=back) if back < LEAST else begun(None, before=watch)
    watch = replace(watch, windows=(*watch.windows, window)[-KEPT:], count=watch.count + 1)
    if watch.count < FIRST:
        return watch
    logs = _logs(watch.windows)
    if watch.count <= SLOW:
        watch = replace(watch, usual=_pair(np.mean(logs, axis=0)))
    latest, usual = _changed(watch, logs)
    if not latest or (latest < MOST and _is_back(watch, logs[-latest:])):
        return watch
    change = np.expm1(np.median(logs[-latest:], axis=0) - usual)
    return replace(watch, alarm=True, latest=latest, usual=_pair(usual), change=_pair(change))


def changed_steps(watch: Watch) -> int:
    """Return how many of the latest steps are more like the changed ones than like the usual, at an alarm."""
    assert watch.usual is not None, watch
    change = np.log1p(watch.change)
    most = int(np.argmax(np.abs(change)))
    share = (_logs(watch.windows) - watch.usual)[::-1, most] / change[most]
    windows = int(np.argmax(np.cumsum(np.clip(share, 0.0, 1.0) - 0.5))) + 1
    return sum(window.steps for window in watch.windows[-windows:])


def _changed(watch: Watch, logs: Floats) -> tuple[int, Floats]:
    """Return how many of the latest windows are surely off, and from what; none: 0."""
    if watch.count >= 2 * SLOW and watch.usual is not None:
        usual = np.array(watch.usual)
        if Scatter(_without_trend(logs), SLOW).shows_change(logs[-SLOW:] - usual, CHANGED):
            return SLOW, usual
    scatter: dict[int, Scatter] = {}
    for recent, lengths in LENGTHS.items():
        known = len(logs) - (MOST if len(logs) >= 2 * MOST else recent)
        if known < watch.first:
            break
        if known not in scatter:
            scatter[known] = Scatter(_noise(watch, logs, known), known)
        usual = np.median(logs[:known], axis=0)
        for latest in lengths:
            if scatter[known].shows_change(logs[-latest:] - usual, scatter[known].least(latest)):
                return latest, usual
    return 0, logs[0]


def _is_back(watch: Watch, latest: Floats) -> bool:
    """Tell whether the latest windows are at a level before an alarm."""
    now = np.median(latest, axis=0)
    return any(np.abs(now - level).max() < LEAST_CHANGE for level in watch.levels)


def _is_whole(trial: Trial) -> bool:
    """Tell whether something was counted."""
    return min(trial.energy_mj, trial.duration_ns, trial.steps) > 0


def _logs(trials: Sequence[Trial]) -> Floats:
    """Return the logarithms of a step's energy and time, shape (n, 2)."""
    of = np.array([(each.energy_mj, each.duration_ns, each.steps) for each in trials], float).reshape(-1, 3)
    return np.asarray(np.log(of[:, :2] / of[:, 2:]))


def _pair(of: Floats) -> Pair:
    return float(of[0]), float(of[1])


def _off(trials: Sequence[Trial]) -> tuple[Pair, ...]:
    """Return by how much trials are off from their median."""
    logs = _logs(trials)
    return tuple(_pair(each) for each in logs - np.median(logs, axis=0)) if trials else ()


def _noise(watch: Watch, logs: Floats, known: int) -> Floats:
    """Return by how much windows were off from their median, shape (k, 2): the first ``known``, and others.

    Few say less of the noise than what follows them.
    """
    before, after = logs[max(0, known - KNOWN) : known], logs[known:]
    noisy = np.array(watch.noisy[max(0, len(watch.noisy) + len(before) - KNOWN) :]).reshape(-1, 2)
    parts = [before, after] if len(before) < FIRST else [before]
    return np.concatenate([noisy, *(part - np.median(part, axis=0) for part in parts)])


def _without_trend(logs: Floats) -> Floats:
    """Return by how much windows are off from a line through all, shape (n, 2)."""
    at = np.arange(len(logs)) - (len(logs) - 1) / 2
    off = logs - logs.mean(axis=0)
    return np.asarray(off - np.outer(at, at @ off / (at @ at)))


class Scatter:
    """By how much blocks of windows were off before."""

    def __init__(self, noise: Floats, known: int) -> None:
        """Take the noise of windows one after the other, shape (k, 2).

        ``known``: windows that tell what is usual.
        """
        self.windows, self._noise = len(noise), noise
        self._usual = min(known, len(noise))
        self._most = FAR_SHARE + FAR_DEVIATIONS * NORMAL * np.median(np.abs(noise), axis=0)
        odd = np.abs(noise) > self._most
        self._odd = (odd.sum(axis=0) + 0.5) / (len(noise) + 1)
        self._middle = np.where(odd, 0.0, noise).sum(axis=0) / np.maximum(1, (~odd).sum(axis=0))
        self._even = np.where(odd, self._middle, noise)
        off = self._even - self._middle
        self._two_levels = (off**4).mean(axis=0) < TWO_LEVELS * (off**2).mean(axis=0) ** 2
        self._two_levels &= known >= 2 * SLOW
        self._known: dict[tuple[int, float | None], tuple[Floats, Floats, Floats]] = {}
        self._far: dict[int, tuple[Floats, Floats]] = {}
        self._independent: dict[tuple[int, float | None], npt.NDArray[np.bool_]] = {}

    def least(self, length: int) -> Floats:
        """Return the least change of a block; shape (2,)."""
        if self.windows >= SEEN * length:
            return np.full(2, LEAST_CHANGE)
        variance = self.windows * self._blocks(1, None)[1] + FREEDOM * DEVIATION**2
        return np.maximum(LEAST_CHANGE, UNKNOWN * np.sqrt(variance / (self.windows + FREEDOM)))

    def shows_change(self, latest: Floats, least: Floats | float) -> bool:
        """Tell whether a block of windows is off by more than blocks of as many were, and than ``least``."""
        length = len(latest)
        if length > self.windows or (np.abs(latest) > CALM).sum(axis=0).max() < LEAST:
            return False
        mean = self._mean_off(latest)
        far = np.abs(mean) > least
        far &= (np.sign(mean) * latest > CALM).sum(axis=0) >= LEAST  # three are no change, however odd
        if not far.any():
            return False
        low, high = self._farthest(length)
        far &= (mean > high) | (mean < low)
        if not far.any():
            return False
        far &= np.abs(mean) > self._by_chance(length, None, np.sign(mean))
        for direction, share in LEFT.items():
            off = _block_quantiles(latest, length, share)[0] - self._blocks(length, share)[0]
            most = np.maximum(least, self._by_chance(length, share, 0.0))
            if np.any(far & (direction * mean > 0) & (direction * off > most)):
                return True
        return False

    def _mean_off(self, latest: Floats) -> Floats:
        """Return by how much the mean of windows is off, without those that are far off by chance."""
        odd = np.abs(latest) > self._most
        now = np.maximum(odd.mean(axis=0), self._odd)
        even = np.log(np.maximum(1 - now, 1e-9) / (1 - self._odd))
        rare = len(latest) * (now * np.log(now / self._odd) + (1 - now) * even)
        kept = ~odd | (rare > ODD_SURE)
        off = np.where(kept, np.clip(latest, -self._most, self._most) - self._middle, 0.0)
        count = kept.sum(axis=0)
        return np.where(count < LEAST, 0.0, off.sum(axis=0) / np.maximum(1, count))

    def _blocks(self, length: int, share: float | None) -> tuple[Floats, Floats, Floats]:
        """Return mean, variance and skewness of a figure of blocks of some length, each of shape (2,).

        ``share``: of the windows that are below the figure; None: it is their mean.
        """
        if (length, share) not in self._known:
            of = (
                _block_means(self._even, length)
                if share is None
                else _block_quantiles(self._noise, length, share)
            )
            mean, variance = of.mean(axis=0), of.var(axis=0)
            third = ((of - mean) ** 3).mean(axis=0)
            self._known[length, share] = mean, variance, third / np.maximum(variance, 1e-12) ** 1.5
        return self._known[length, share]

    def _farthest(self, length: int) -> tuple[Floats, Floats]:
        """Return by how much the mean of a block was off at most: below the middle, and above; (2,) each."""
        if length not in self._far:
            of = _block_means(self._even, length) - self._middle
            self._far[length] = of.min(axis=0), of.max(axis=0)
        return self._far[length]

    def _by_chance(self, length: int, share: float | None, direction: Floats | float) -> Floats:
        """Return by how much a figure of a block is off by chance at most.

        ``direction``: 1, up, or -1; noise that is skewed that way is off by more (Cornish, Fisher, "Moments
        and Cumulants in the Specification of Distributions", 1938). 0: either.
        """
        best = np.full(2, np.inf)
        for of in (*(shorter for shorter in SHORTER if shorter < length), length):
            freedom = self.windows / of - 1
            if freedom < LEAST_FREEDOM:
                break
            _, variance, skewness = self._blocks(of, share)
            variance = variance * (1 + 1 / freedom) * of / length
            variance = (freedom * variance + FREEDOM * DEVIATION**2) / (freedom + FREEDOM)
            sure = student_quantile(
                1 - length / RARELY if share is None else QUANTILE_SURE, freedom + FREEDOM
            )
            usual = variance * length / self._usual
            if SEEN * self._usual <= self.windows:
                usual = np.maximum(usual, self._blocks(self._usual, share)[1])
            skewed = np.maximum(0.0, direction * skewness * sqrt(of / length)) * (sure**2 - 1) / 6
            most = (sure + skewed) * np.sqrt(variance + usual)
            counts = True if of == length else self._are_independent(of, share)
            best = np.where(counts, np.minimum(best, most), best)
        if self._two_levels.any():
            known = (
                _block_quantiles(self._noise, length, share) if share else _block_means(self._even, length)
            )
            farthest = EXCEEDED * np.abs(known - known.mean(axis=0)).max(axis=0)
            best = np.where(self._two_levels, np.minimum(best, farthest), best)
        return best

    def _are_independent(self, length: int, share: float | None) -> npt.NDArray[np.bool_]:
        """Tell whether longer blocks scatter by no more than so many independent ones; shape (2,)."""
        if (length, share) not in self._independent:
            lengths = [length, *(longer for longer in LONGER if length < longer <= self.windows / 3)]
            of = [self._blocks(each, share)[1] * each / (1 - each / self.windows) for each in lengths]
            self._independent[length, share] = np.all(np.array(of) <= INDEPENDENT * of[0], axis=0)
        return self._independent[length, share]


def _block_means(values: Floats, length: int) -> Floats:
    """Return the mean of each block of some length, wherever it begins; shape (blocks, 2)."""
    sums = np.cumsum(np.concatenate([np.zeros((1, 2)), values]), axis=0)
    return np.asarray((sums[length:] - sums[:-length]) / length)


def _block_quantiles(values: Floats, length: int, share: float) -> Floats:
    """Return what a share of each block's windows stays below; shape (blocks, 2)."""
    at = int(share * length)
    blocks = np.lib.stride_tricks.sliding_window_view(values, length, axis=0)
    return np.asarray(np.partition(blocks, at, axis=-1)[..., at])
