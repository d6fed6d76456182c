"""The watch over a workload whose limit was chosen: is it still what it was? Pure.

    windows of steps, one after the other -> how energy and time per step have changed, once that is sure

The same question as in a search: do steps differ before and after, by more than their noise? So the same
models of noise answer it (`noise`). They know a swing from a change, and how little a mean is worth where
steps follow each other. The latest windows, `LATEST` of them, are compared with those before, as two limits
are. Two hypotheses are weighed for the difference of energy and of time: it is `CALM` at most, or `CHANGED`
at least. A log likelihood ratio above `SURE` is an alarm. Between the hypotheses lies what no alarm should be
raised for: a GPU that warms up, noise that is not quite what is believed.

Odd windows have a checkpoint, a stall or a rare long step in them. They are left out as in a search. No three
windows are an alarm. Where odd ones come often, an alarm takes so many windows that all but `LOW` of them are
odd by chance in one of `BY_CHANCE` (Chernoff's bound).

What changes slowly looks like noise that wanders. It is noticed when the latest `SLOW` windows are off by
`CHANGED` from the first ones, whatever the noise is.

An alarm after which the search chooses the same limit again has gained nothing. Both hypotheses then move
away by as much again: the workload wanders that far. Another choice sets them back.

Source: Willsky, Jones, "A Generalized Likelihood Ratio Approach to the Detection and Estimation of Jumps in
Linear Systems", IEEE Transactions on Automatic Control 21, 1976.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from math import ceil, log

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_limit.search import noise
from analyzers.power_limit.search.curves import NOISE_UNKNOWN
from analyzers.power_limit.search.noise import Floats
from analyzers.power_limit.search.visit_blocks import (
    LEAST_SCATTER,
    NORMAL,
    ODD,
    Visit,
    log_energy,
    log_time,
    series,
)
from analyzers.power_limit.selectors import Trial

FIRST = 5
"""Windows that say what the workload is like."""
LEAST, LATEST, OFTEN = 4, (10, 16, 26, 40), 4
"""Windows that are compared with those before: at least, and those tried once in `OFTEN` windows."""
BEFORE, BEFORE_TIMES = 60, 4
"""Windows of a comparison, the latest included: at least, and times those."""
KEPT = BEFORE_TIMES * LATEST[-1]
"""Windows that are remembered."""
CALM, CHANGED = 0.045, 0.095
"""Of a logarithm: 4.6 % and 10 % more."""
SURE = 10.0
"""Log likelihood ratio of an alarm."""
FARTHEST, FAR = 0.15, 3.0
"""A window counts for no farther off than that and so many standard deviations: a long step is no change of
all."""
SLOW = 30
"""Windows whose quickest tell a slow change."""
GUARD = 10
"""The latest windows: they may have changed, and say nothing of how many are odd."""
BY_CHANCE = 40_000
FEW_ODD, MOST_ODD = 0.05, 0.5
"""Odd windows before any was seen, of one; and their largest share."""
LOW = 0.25
"""Share of windows that say what is least. A change moves it; windows with a long step do not, unless nearly
all have one."""
SEARCHED = 20
"""Windows since the choice, from which on blocks of the search say nothing more of the noise."""

Pair = tuple[float, float]
"""Of energy, and of time."""
VALUES = (log_energy, log_time)


class MeanDifference(Struct, frozen=True):
    """The difference of two means by each model of the noise, shapes (m,)."""

    weight: Floats
    mean: Floats
    variance: Floats
    freedom: int
    """Degrees of freedom of the variance."""


class Watch(Struct, frozen=True, kw_only=True):
    """The observations since the limit was chosen."""

    noisy: tuple[Trial, ...] = ()
    """Blocks of the search at one limit, one after the other: how noisy steps were."""
    wide: int = 1
    """Times `CALM` and `CHANGED`."""
    windows: tuple[Trial, ...] = ()
    """Seen; at most `KEPT`, the latest."""
    count: int = 0
    """Of windows seen, and of what was measured before."""
    first: int = FIRST
    """Windows that others are compared with, at least; one where it is what was measured for the choice."""
    usual: Pair | None = None
    """Logarithms of what the first windows took: mJ and ns per step; None while not known."""
    quick: Pair | None = None
    """The same of the quickest of them."""
    alarm: bool = False
    """The workload has changed."""
    change: Pair = (0.0, 0.0)
    """By which shares: of a step's energy and time."""


def begun(trial: Trial | None, blocks: Sequence[Trial] = (), wide: int = 1) -> Watch:
    """Return the watch over a limit that was chosen by this measurement.

    Args:
        trial: what was measured of it.
        blocks: of the search, at one limit, one after the other.
        wide: times the usual hypotheses.
    """
    noisy = tuple(filter(_is_whole, blocks))
    if trial is None or not _is_whole(trial):
        return Watch(noisy=noisy, wide=wide)
    return Watch(noisy=noisy, wide=wide, windows=(trial,), count=1, first=1)


def seen(watch: Watch, window: Trial) -> Watch:
    """Return the watch after one more window of steps at the limit chosen."""
    if not _is_whole(window):
        return watch
    watch = replace(watch, windows=(*watch.windows, window)[-KEPT:], count=watch.count + 1)
    if watch.count < FIRST:
        return watch
    logs = np.array([[value(of) for value in VALUES] for of in watch.windows])
    if watch.alarm:
        off = _off(watch, logs, LEAST)
        return replace(watch, alarm=_far(watch, off), change=_pair(np.expm1(off)))
    if watch.count <= SLOW:
        watch = replace(watch, usual=_pair(np.median(logs, axis=0)), quick=_pair(_quick(logs)))
    elif watch.count >= 2 * SLOW and np.abs(off := _off(watch, logs, SLOW)).max() > watch.wide * CHANGED:
        return replace(watch, alarm=True, change=_pair(np.expm1(off)))
    for latest in _to_compare(watch, logs):
        if watch.count > SLOW and not _far(watch, _off(watch, logs, latest)):
            continue
        change = _change(watch, logs, latest)
        if change is not None:
            before = logs[:-latest]
            usual, quick = _pair(np.median(before, axis=0)), _pair(_quick(before))
            return replace(watch, alarm=True, change=change, usual=usual, quick=quick)
    return watch


def _is_whole(trial: Trial) -> bool:
    """Tell whether something was counted."""
    return min(trial.energy_mj, trial.duration_ns, trial.steps) > 0


def _pair(of: Floats) -> Pair:
    return float(of[0]), float(of[1])


def _off(watch: Watch, logs: Floats, latest: int) -> Floats:
    """Return by how much the latest windows are off from the usual."""
    assert watch.usual is not None
    assert watch.quick is not None
    return _shift(logs[-latest:], np.array(watch.usual), np.array(watch.quick))


def _shift(latest: Floats, usual: Floats, quick: Floats) -> Floats:
    """Return by how much windows are off, by their median and by the quickest of them: by the lesser."""
    off, of_quick = np.median(latest, axis=0) - usual, _quick(latest) - quick
    least = np.minimum(np.abs(off), np.abs(of_quick))
    return np.asarray(np.where(off * of_quick > 0, np.sign(off) * least, 0.0))


def _quick(logs: Floats) -> Floats:
    """Return what the quickest windows take. Long steps leave it as it is, a change of all steps does not."""
    return np.asarray(np.quantile(logs, LOW, axis=0))


def _far(watch: Watch, off: Floats) -> bool:
    """Tell whether that is nearer to a change than to none."""
    return bool(np.abs(off).max() >= watch.wide * (CALM + CHANGED) / 2)


def _to_compare(watch: Watch, logs: Floats) -> list[int]:
    """Return how many of the latest windows may have changed: likeliest, and from time to time others."""
    before = logs[: max(watch.first, len(logs) - GUARD)]
    off = np.abs(before - np.median(before, axis=0))
    odd = np.any(off > ODD * np.maximum(NORMAL * np.median(off, axis=0), LEAST_SCATTER), axis=1).sum()
    share = min(MOST_ODD, (odd + FEW_ODD) / (len(before) + 1))
    rare = (1 - LOW) * log((1 - LOW) / share) + LOW * log(LOW / (1 - share))
    least = min(LATEST[-1], max(LEAST, ceil(log(BY_CHANCE) / rare)))
    some = np.arange(least, min(len(logs) - watch.first, LATEST[-1]) + 1)
    if not len(some):
        return []
    after = np.cumsum(logs[::-1], axis=0)[some - 1] / some[:, None]
    off = np.abs(after - logs.mean(axis=0)).max(axis=1)
    best = int(some[np.argmax(some * len(logs) / (len(logs) - some) * off**2)])
    others = [latest for latest in LATEST if latest in some] if watch.count % OFTEN == 0 else []
    return list(dict.fromkeys((best, *others)))


def _change(watch: Watch, logs: Floats, latest: int) -> Pair | None:
    """Return how the latest windows differ from those before, if they surely do."""
    known = max(BEFORE, BEFORE_TIMES * latest)
    before = logs[-known:-latest]
    usual = np.median(before, axis=0)
    each = logs[-latest:] - usual
    off = np.median(each, axis=0)
    fewest = np.sort(np.sign(off) * each, axis=0)[-LEAST]  # three windows are no change, however odd
    shift = _shift(logs[-latest:], usual, _quick(before))
    if not _far(watch, np.where(fewest > watch.wide * CALM, shift, 0.0)):
        return None
    scatter = [np.median(np.abs(of), axis=0) for of in (before - usual, each - off)]
    most = watch.wide * FARTHEST + FAR * NORMAL * np.max(scatter, axis=0)
    parts = (
        watch.noisy if len(before) < SEARCHED else (),
        watch.windows[-known:-latest],
        watch.windows[-latest:],
    )
    for of, low, high in zip(VALUES, usual - most, usual + most, strict=True):
        means = _difference(parts, partial(_within, value=of, low=low, high=high))
        if max(_likelier(sign, means, watch.wide) for sign in (1, -1)) > SURE:
            return _pair(np.expm1(off))
    return None


def _within(trial: Trial, value: Callable[[Trial], float], low: float, high: float) -> float:
    return min(max(value(trial), low), high)


def _difference(parts: Sequence[Sequence[Trial]], value: Callable[[Trial], float]) -> MeanDifference:
    """Return how much more the last part takes than the one before it."""
    ends = accumulate(sum(window.duration_ns for window in part) for part in parts)
    visits = [
        Visit(tuple(replace(window, limit_mw=number) for window in part), end)
        for number, (part, end) in enumerate(zip(parts, ends, strict=True))
        if part
    ]
    blocks = noise.merged(series(visits, value)[0])
    means = noise.limit_means(blocks, NOISE_UNKNOWN, np.zeros((len(blocks.at), len(blocks.at))))
    of = slice(noise.WITHIN)  # a jump between visits is what is asked for
    weight = np.exp(means.log_weight[of] - means.log_weight[of].max())
    mean, covariance = means.mean[of], means.covariance[of]
    variance = covariance[:, -1, -1] + covariance[:, -2, -2] - 2 * covariance[:, -1, -2]
    freedom = noise.DOF + len(blocks.at) - len(visits)
    return MeanDifference(
        weight / weight.sum(), mean[:, -1] - mean[:, -2], np.maximum(variance, 1e-12), freedom
    )


def _likelier(sign: int, of: MeanDifference, wide: int) -> float:
    """Return the log likelihood ratio of `CHANGED` or more to `CALM` or less, upwards or downwards."""
    up = sign * of.mean
    off = up - wide * CALM, np.minimum(up - wide * CHANGED, 0.0)
    share = np.log(np.maximum(of.weight, 1e-300)) - np.log(of.variance) / 2
    calm, changed = (
        np.logaddexp.reduce(share - (of.freedom + 1) / 2 * np.log1p(each**2 / of.variance / of.freedom))
        for each in off
    )
    return float(changed - calm)
