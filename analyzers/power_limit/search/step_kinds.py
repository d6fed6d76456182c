"""Visits of a run whose steps are of two kinds, as if each had the same share of both. Pure.

Generation and training in turn, the two networks of a GAN, evaluation in the loop: a limit may slow one kind
and leave the other as it was. A visit sees some of each, and by chance more of one. That differs by more than
limits do, and says nothing of them. The kinds are seen in the times of steps: the kind that no limit changes
takes the same at all of them. So by least squares over all blocks

    time of a block = its steps of the changed kind * a(limit) + its other steps * b

and the same for energy, and every block is brought to the share of both kinds over whole cycles of the run
(post-stratification: Holt, Smith, "Post Stratification", J. Royal Statistical Society A 142, 1979). It is
done only where kinds come back at one limit (a slow start does not) and explain nearly all differences.

Constants were chosen on seed 401 of four kinds of noise. Beside each is what it gives halved or doubled in
30 searches of seed 1777; as they are, 302 steps (median), 524 (p90), the bound holds in 97 %, the stated
saving in 98 %. *Alike*: 301 to 310 steps, p90 485 to 603 (`python -m benchmarks.noise --tables search
--worlds 10 --seed 1777 --kinds "generation and training" alternating mixture`).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean, median

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_limit.search.noise import Bools, Floats, Indices
from analyzers.power_limit.search.visit_blocks import NORMAL, Visit, log_power
from analyzers.power_limit.selectors import Halves, Trial

EXPLAINED = 0.8
"""Share of the variance of steps' times that kinds explain, at least. With 0.6 and 0.9 alike."""
APART, SURE = 0.03, 6.0
"""Kinds differ by such a share of time, and by so many standard deviations of a step, at least. Alike."""
NEAR, LIKE = 0.01, 4.0
"""Steps are of the unchanged kind if their time differs by no more than such a share, or so many standard
deviations, from what it takes. With `NEAR` 0.02 the stated saving holds in 90 %; with `LIKE` 2 the bound
holds in 93 %, the stated saving in 92 %."""
RETURNS = 2
"""Times that a kind came back, at one limit. With 4: 628 steps (p90), and the bound holds in 93 %."""
SETTLED_SHARE = 0.1
"""By which the share of kinds over whole cycles differs from that over all steps, at most. Alike."""
LEAST_STEPS = 6
"""Of a kind, from which on it was seen at a limit. With 3: 278 steps (median), the stated saving holds in
95 %; with 12: 350 steps, 100 %."""


def halves(steps_ns: Iterable[int]) -> Halves | None:
    """Return the shorter and the longer of a block's steps; None: it has none."""
    known = sorted(max(1, step_ns) for step_ns in steps_ns)
    if not known:
        return None
    ratios = [long / short for short, long in pairwise(known)]
    at = 1 + ratios.index(max(ratios)) if ratios else 1
    short, long = known[:at], known[at:]
    return Halves(len(short), fmean(short), len(long), fmean(long) if long else short[-1])


class _Blocks(Struct, frozen=True):
    """Blocks in time, n of them, each with its shorter and its longer steps: groups, shape (n, 2)."""

    limit: Indices
    """Of a group."""
    steps: Floats
    log_ns: Floats
    """Of a step."""
    log_power: Floats
    """Of the block."""


class _Mode(Struct, frozen=True):
    """Groups at one limit that are of one kind, as far as they tell."""

    groups: Bools
    """Shape (n, 2)."""
    alone: bool
    """It is the only one at its limit."""
    log_ns: float
    log_power: float
    """Of blocks all of which it is. NaN: there is none."""
    steps: float


class EvenlyMixed(Struct, frozen=True):
    """Visits whose blocks have the same share of two kinds of step."""

    visits: tuple[Visit, ...]
    doubt: float
    """Standard deviation of the share of the changed kind over the run, as a part of it, from how it differs
    between cycles. What a limit changes of all steps is not known better than that."""


def evenly_mixed(visits: Sequence[Visit]) -> EvenlyMixed | None:
    """Return visits as if each block had the same share of two kinds of step; None: that is not clear.

    Visits of a limit are left out while too few steps of the changed kind were seen at it.
    """
    blocks = [block for visit in visits for block in visit.blocks]
    if len(blocks) < 2 * RETURNS:
        return None
    share = _changed_share(_blocks(blocks))
    return None if share is None else _mixed(visits, blocks, share)


def _blocks(blocks: Sequence[Trial]) -> _Blocks:
    of = [block.halves or Halves(block.steps, block.step_ns, 0, block.step_ns) for block in blocks]
    return _Blocks(
        np.repeat([[block.limit_mw] for block in blocks], 2, axis=1),
        np.array([(each.shorter, each.longer) for each in of], float),
        np.log([(each.shorter_ns, each.longer_ns) for each in of]),
        np.repeat([[log_power(block)] for block in blocks], 2, axis=1),
    )


def _changed_share(of: _Blocks) -> Floats | None:
    """Return which share of the steps of each block is of the changed kind, shape (n,); None: not clear."""
    limits = np.unique(of.limit)
    there = [(of.limit == limit) & (of.steps > 0) for limit in limits]
    sides = [[_cut(value, of.steps, here) for here in there] for value in (of.log_ns, of.log_power)]
    if not any(cut for by_limit in sides for cut in by_limit):
        return None  # at each limit there is one kind
    noise = [
        _noise(of, value, [cut or [here] for cut, here in zip(by_limit, there, strict=True)])
        for value, by_limit in zip((of.log_ns, of.log_power), sides, strict=True)
    ]
    modes = [
        mode for here, *cuts in zip(there, *sides, strict=True) for mode in _modes(of, here, cuts, noise)
    ]
    kinds = [_changed(of, modes, unchanged, noise) for unchanged in modes if not unchanged.alone]
    seen, left = [_limits_of_unchanged(of, kind) for kind in kinds], [_left(of, kind) for kind in kinds]
    clear = [i for i in range(len(kinds)) if seen[i] > 1 and left[i] <= 1 - EXPLAINED]
    if not clear:
        return None
    kind = kinds[max(clear, key=lambda i: (seen[i], -left[i]))]
    share = np.asarray((kind * of.steps).sum(axis=1) / of.steps.sum(axis=1))
    by_limit = (share[of.limit[:, 0] == limit] for limit in limits)
    returns = min(len(_returns(share)), sum(len(_returns(here)) for here in by_limit))
    return share if returns >= RETURNS else None


def _noise(of: _Blocks, value: Floats, sides: Sequence[Sequence[Bools]]) -> float:
    """Return about the standard deviation of a step within kinds. ``sides``: of each limit."""
    off = [(value[side] - _median(value[side])) * np.sqrt(of.steps[side]) for here in sides for side in here]
    return NORMAL * _median(np.abs(np.concatenate(off)))


def _median(values: Floats) -> float:
    """Return the median of a few: that of NumPy takes ten times as long."""
    return float(median(values.tolist()))


def _modes(of: _Blocks, there: Bools, cuts: Sequence[Sequence[Bools]], noise: Sequence[float]) -> list[_Mode]:
    """Return the kinds of step at one limit, one or two: by time, else by power. ``cuts``: of each."""
    for value, sides, deviation in zip((of.log_ns, of.log_power), cuts, noise, strict=True):
        if sides and _median(value[sides[1]]) - _median(value[sides[0]]) > SURE * deviation:
            return [_mode(of, side, alone=False) for side in sides]
    return [_mode(of, there, alone=True)]


def _mode(of: _Blocks, side: Bools, *, alone: bool) -> _Mode:
    pure = side & (side | (of.steps == 0)).all(axis=1, keepdims=True)
    log_ns = float((of.log_ns[side] * of.steps[side]).sum() / of.steps[side].sum())
    log_power = _median(of.log_power[pure]) if pure.any() else float("nan")
    return _Mode(side, alone, log_ns, log_power, float(of.steps[side].sum()))


def _cut(value: Floats, steps: Floats, there: Bools) -> list[Bools]:
    """Return the lower and the higher of some groups, if they fall into two; else nothing."""
    x, weight = value[there], steps[there]
    order = np.argsort(x)
    x, weight = x[order], weight[order]
    if x[-1] - x[0] <= APART:
        return []
    # the cut with the least squares on both sides: that with the most between them
    x_off = x - (x * weight).sum() / weight.sum()
    below, sums = np.cumsum(weight)[:-1], np.cumsum(weight * x_off)[:-1]
    between = sums**2 * (1 / below + 1 / (weight.sum() - below))
    cut = int(np.argmax(between))
    if between[cut] < EXPLAINED * float(weight @ x_off**2):
        return []
    low, high = there & (value <= x[cut]), there & (value > x[cut])
    return [low, high] if _median(value[high]) - _median(value[low]) > APART else []


def _changed(of: _Blocks, modes: Sequence[_Mode], unchanged: _Mode, noise: Sequence[float]) -> Floats:
    """Return which groups take another time or draw another power than an unchanged kind; shape (n, 2)."""
    changed = np.ones_like(of.steps)
    for mode in modes:
        fewest = min(mode.steps, unchanged.steps)
        most_ns, most_power = (max(NEAR, LIKE * deviation / sqrt(fewest)) for deviation in noise)
        other_power = abs(mode.log_power - unchanged.log_power) > most_power  # False where one is not known
        if abs(mode.log_ns - unchanged.log_ns) <= most_ns and not other_power:
            changed[mode.groups] = 0
    return changed


def _limits_of_unchanged(of: _Blocks, changed: Floats) -> int:
    """Return at how many limits the unchanged kind was seen."""
    _, at = np.unique(of.limit[:, 0], return_inverse=True)
    return int(np.sum(np.bincount(at, (of.steps * (1 - changed)).sum(axis=1)) >= LEAST_STEPS))


def _left(of: _Blocks, changed: Floats) -> float:
    """Return which share of the variance of time and power within limits is left within kinds at limits."""
    pure = (changed == changed[:, :1]).all(axis=1, keepdims=True)
    limits, limit = np.unique(of.limit, return_inverse=True)
    kind = np.where(
        changed > 0, limit.reshape(changed.shape), len(limits)
    )  # the unchanged kind is one at all limits

    def squares(by: Indices) -> float:
        return _squares(of.log_ns, of.steps, by) + _squares(of.log_power, of.steps * pure, by)

    whole = squares(limit)
    return squares(kind) / whole if whole > 0 else 1.0


def _squares(x: Floats, weight: Floats, by: Indices) -> float:
    """Return the sum of squares around the means of classes, ``by`` class from 0."""
    totals, sums, squares = (
        np.bincount(by.ravel(), of.ravel()) for of in (weight, weight * x, weight * x**2)
    )
    return float(np.sum(squares - sums**2 / np.maximum(totals, 1e-9)))


def _returns(share: Floats) -> Indices:
    """Return after which blocks the changed kind came back."""
    high = share > (share.min() + share.max()) / 2
    return np.flatnonzero(high[1:] & ~high[:-1])


def _mixed(visits: Sequence[Visit], blocks: Sequence[Trial], share: Floats) -> EvenlyMixed | None:
    """Return visits whose blocks have the share of both kinds over whole cycles.

    ``share``: of the changed kind, by block.
    """
    steps, cycles = np.array([float(block.steps) for block in blocks]), _returns(share)
    if len(cycles) < 2:
        return None  # no cycle is whole
    limits, at = np.unique([block.limit_mw for block in blocks], return_inverse=True)
    changed = np.bincount(at, steps * share)
    known = changed >= LEAST_STEPS
    counts = known[at]
    whole = slice(cycles[0] + 1, cycles[-1] + 1)
    usual = float(steps[whole] @ share[whole] / steps[whole].sum())
    longest = _longest(steps[counts], share[counts])
    if not known.any() or abs(usual - np.average(share, weights=steps)) > SETTLED_SHARE:
        return None
    if np.any(~known & (np.bincount(at, steps) > longest + 2 * LEAST_STEPS / usual)):
        return None  # a limit at which the kinds are alike
    design = np.zeros((len(steps), len(limits) + 1))
    design[np.arange(len(steps)), at] = steps * share
    design[:, -1] = steps * (1 - share)
    sums = np.array([(block.duration_ns, block.energy_mj) for block in blocks], float)
    root = np.sqrt(steps)[counts, None]
    each = np.linalg.lstsq(design[counts] / root, sums[counts] / root, rcond=None)[0]
    more = (steps * (usual - share))[:, None] * (each[at] - each[-1])
    even = np.maximum(1, np.rint(sums + np.where(counts[:, None], more, 0)))
    trials = iter(
        replace(block, duration_ns=int(ns), energy_mj=int(mj))
        for block, (ns, mj) in zip(blocks, even.tolist(), strict=True)
    )
    mixed = [replace(visit, blocks=tuple(next(trials) for _ in visit.blocks)) for visit in visits]
    used = set(limits[known].tolist())
    sums_until = np.stack([steps, steps * share])[:, : cycles[-1] + 1]
    doubt = _doubt(*np.add.reduceat(sums_until, cycles[:-1] + 1, axis=1))
    return EvenlyMixed(tuple(visit for visit in mixed if visit.limit_mw in used), doubt)


def _doubt(steps: Floats, changed: Floats) -> float:
    """Return the standard deviation of a ratio of sums over cycles, as a part of it (Cochran, 1977, 6.4)."""
    cycles, usual = len(steps), float(changed.sum() / steps.sum())
    variance = float(((changed - usual * steps) ** 2).sum()) * cycles / max(1, cycles - 1)
    return sqrt(variance) / float(changed.sum())


def _longest(steps: Floats, share: Floats) -> float:
    """Return the longest span of blocks without a step of the changed kind, in steps."""
    longest = span = 0.0
    for count, kind in zip(steps.tolist(), share.tolist(), strict=True):
        span = 0.0 if kind else span + count
        longest = max(longest, span)
    return longest
