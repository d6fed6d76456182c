"""Visits of power limits: what was measured at them, and which of it counts. Pure.

A visit is what was measured at one limit from a change of limit to the next, in blocks of steps. Not all of
its blocks say what a step takes there:

    settling    at its head power and clocks still settle; at the head of the first one the run starts
    odd         a checkpoint, a garbage collection, a stall of the input: far above the visit's median, for a
                block or two; longer spans are how steps are, and so are those that come at one limit and
                not at others
    first       of the run, once their limit was measured twice since

They are left out. What is left is one series of blocks in time, as `noise` takes it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby, pairwise
from math import comb, log
from statistics import median

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_limit.search.noise import Blocks
from analyzers.power_limit.selectors import Trial

BLOCKS = 3
"""A visit counts from so many blocks on."""
SETTLED, SETTLING_NS = 0.02, 5_000_000_000
"""Blocks at a visit's head that differ so much from those after them were settling; for so long at most."""
STARTING, STARTING_STEPS = 0.04, 200
"""A run that starts is slower by such a share, for so many steps at most."""
STARTED_STEPS, AGAIN = 100, 2
"""First steps of a run that are left out, whatever they took, once their limit was visited so often again."""
ODD, ODD_BLOCKS = 4.5, 2
"""Standard deviations off its visit's median from which on blocks are odd, and how many in a row may be."""
MOST_ODD, BY_CHANCE = 0.25, 0.05
"""A larger share of blocks is not odd, nor are those that come at one limit more often than at others, unless
chance does that so often: they are how steps are."""
NORMAL = 1.4826
"""Standard deviation over median absolute deviation, where noise is normal."""
LEAST_SCATTER = 0.001
"""Standard deviation of a block, at least."""


class Visit(Struct, frozen=True):
    """Measurements at one limit, from one change of limit to the next."""

    blocks: tuple[Trial, ...]
    """One or more, all of the same limit."""
    t_ns: int
    """When the last of them ended."""
    watched: bool = False
    """Measured since the limit was chosen, while the search was not sure."""

    @property
    def limit_mw(self) -> int:
        return self.blocks[0].limit_mw

    @property
    def whole(self) -> Trial:
        """All of it in one trial."""
        return added(self.blocks)


def added(trials: Sequence[Trial]) -> Trial:
    """Return trials of one limit as one."""
    energy_mj = duration_ns = steps = delay_ns = 0
    for trial in trials:
        energy_mj += trial.energy_mj
        duration_ns += trial.duration_ns
        steps += trial.steps
        delay_ns += trial.delay_ns
    return Trial(trials[0].limit_mw, energy_mj, duration_ns, steps, delay_ns)


def by_limit(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return trials with those of one limit as one, in the order in which limits first appear."""
    of: dict[int, list[Trial]] = {}
    for trial in trials:
        of.setdefault(trial.limit_mw, []).append(trial)
    return tuple(added(same) for same in of.values())


# ---- settling ----------------------------------------------------------------------------------------


def settled(visits: Sequence[Visit]) -> list[Visit]:
    """Return the visits without what was measured while the run started, or while a limit took effect.

    A block at a visit's head is left out if its time or power departs from the median of the later half of
    the blocks after it, by more than `SETTLED` and than blocks scatter, towards what was measured before the
    limit changed. Visits are left out before the run has started (`_started`, `_without_first`).
    """
    visits = list(visits)
    for of in (log_time, log_power):
        keep = usual_times(visits)
        halves = [[of(block) for block in visit.blocks[len(visit.blocks) // 2 :]] for visit in visits]
        most = max(SETTLED, 3 * _scatter(halves))
        before = None
        for i, visit in enumerate(visits):
            visits[i] = _without_head(visit, keep[i], of, most, before)
            before = median(map(of, visits[i].blocks))
    since = _started(visits)
    return _without_first(visits) if visits and len(since) == len(visits) else since


def _without_head(
    visit: Visit, keep: Sequence[bool], of: Callable[[Trial], float], most: float, before: float | None
) -> Visit:
    """Return a visit without the blocks at its head that were settling.

    Args:
        visit: of one block or more.
        keep: by block, whether it is not odd.
        of: what settles.
        most: how far off a block may be.
        before: what was measured at the limit before; None: nothing, so the run starts.
    """
    blocks, dropped_ns, dropped_steps, head = visit.blocks, 0, 0, 0
    values = [of(block) for block in blocks]
    while len(blocks) - head >= BLOCKS and (
        dropped_ns < SETTLING_NS or (before is None and dropped_steps < STARTING_STEPS)
    ):
        later = [values[i] for i in range(head + 1, len(blocks)) if keep[i]]
        rest = median(later[len(later) // 2 :]) if later else values[head]
        off = values[head] - rest
        if abs(off) <= most or (before is not None and off * (before - rest) < 0):
            break
        dropped_ns, dropped_steps = dropped_ns + blocks[head].duration_ns, dropped_steps + blocks[head].steps
        head += 1
    return replace(visit, blocks=blocks[head:]) if head else visit


def _started(visits: list[Visit]) -> list[Visit]:
    """Return the visits since the run has started.

    Until then steps were slower than ever later at the same limit, by `STARTING` and than blocks scatter. A
    visit that is as quick as the quickest later at its limit shows that the run has started: what is slow
    after it is another kind of step.
    """
    times = [[log_time(block) for block in visit.blocks] for visit in visits]
    most = max(STARTING, 4 * _scatter(times))
    first, done = 0, 0
    for i, visit in enumerate(visits):
        again = [j for j in range(i + 1, len(visits)) if visits[j].limit_mw == visit.limit_mw]
        later = [median(times[j]) for j in again]
        if later and median(times[i]) - min(later) <= most:
            break
        if later and median(times[i]) - max(later) > most:
            first = max(first, again[0])
        done += visit.whole.steps
        if done >= STARTING_STEPS:
            break
    return visits[first:]


def _without_first(visits: list[Visit]) -> list[Visit]:
    """Return visits without the first steps of the run, once their limit was measured often enough again.

    No value decides it: what is left out for being slow would bias what is left.
    """
    first, *others = visits
    if sum(visit.limit_mw == first.limit_mw for visit in others) < AGAIN:
        return visits
    ends = accumulate(block.steps for block in first.blocks)
    left = tuple(block for block, end in zip(first.blocks, ends, strict=True) if end > STARTED_STEPS)
    return [replace(first, blocks=left), *others] if left else others


def log_time(trial: Trial) -> float:
    """Return the logarithm of a step's time, ns."""
    return log(trial.step_ns)


def log_energy(trial: Trial) -> float:
    """Return the logarithm of a step's energy, mJ."""
    return log(trial.step_mj)


def log_power(trial: Trial) -> float:
    """Return the logarithm of mean power, W * 1e-6."""
    return log(trial.energy_mj / trial.duration_ns)


# ---- a series in time --------------------------------------------------------------------------------


def usual_times(visits: Sequence[Visit]) -> list[list[bool]]:
    """Tell for each visit which of its blocks are not odd in time."""
    return _without_odd([[log_time(block) for block in visit.blocks] for visit in visits])


def series(visits: Sequence[Visit], value: Callable[[Trial], float]) -> tuple[Blocks, list[int]]:
    """Return the blocks of all visits in time, and the limits, mW, that they are of.

    Args:
        visits: one or more, in order.
        value: logarithm of what a step of a block takes.
    """
    limits = list(dict.fromkeys(visit.limit_mw for visit in visits))
    keep = _without_odd([[value(block) for block in visit.blocks] for visit in visits])
    if not _at_any_limit(visits, keep):
        keep = [[True] * len(of) for of in keep]
    at, position, steps, values, numbers = [], [], [], [], []
    done, ended_ns = 0.0, None
    for number, (visit, kept) in enumerate(zip(visits, keep, strict=True)):
        whole = visit.whole
        if ended_ns is not None:
            done += max(0, visit.t_ns - whole.duration_ns - ended_ns) / whole.step_ns
        ended_ns = visit.t_ns
        for block, counts in zip(visit.blocks, kept, strict=True):
            if counts:
                at.append(limits.index(visit.limit_mw))
                position.append(done + block.steps / 2)
                steps.append(float(block.steps))
                values.append(value(block))
                numbers.append(number)
            done += block.steps
    return (
        Blocks(np.array(at), np.array(position), np.array(steps), np.array(values), np.array(numbers)),
        limits,
    )


def _without_odd(values: Sequence[Sequence[float]]) -> list[list[bool]]:
    """Tell for each visit which of its blocks count: all but short spans that are far above those around."""
    most = ODD * _scatter(values)
    keep = [[True] * len(of) for of in values]
    for of, kept in zip(values, keep, strict=True):
        normal, at = _normal(of, most), 0
        for same, span in groupby(normal):
            length = len(list(span))
            if not same and length <= ODD_BLOCKS:
                kept[at : at + length] = [False] * length
            at += length
    odd = sum(not kept for of in keep for kept in of)
    if odd > MOST_ODD * sum(map(len, keep)):
        return [[True] * len(of) for of in values]
    return keep


def _at_any_limit(visits: Sequence[Visit], keep: Sequence[Sequence[bool]]) -> bool:
    """Tell whether blocks that are not kept come at each limit as often, but for chance (hypergeometric)."""
    blocks, odd = Counter[int](), Counter[int]()
    for visit, kept in zip(visits, keep, strict=True):
        blocks[visit.limit_mw] += len(kept)
        odd[visit.limit_mw] += len(kept) - sum(kept)
    others, all_odd = blocks.total() - odd.total(), odd.total()
    return all(
        sum(comb(all_odd, i) * comb(others, of - i) for i in range(odd[limit_mw], min(all_odd, of) + 1))
        >= BY_CHANCE * comb(blocks.total(), of)
        for limit_mw, of in blocks.items()
    )


def _normal(values: Sequence[float], most: float) -> list[bool]:
    """Tell which values are off by so much at most: off the lowest that are several, else off the median."""
    upwards = sorted(values)
    gap = next((i + 1 for i, (x, y) in enumerate(pairwise(upwards)) if i and y - x > most), len(upwards))
    usual = median(upwards[:gap])
    off = [x - usual for x in values]
    least = max(most, min(off, default=0.0))
    return [each <= least for each in off]


def _scatter(visits: Sequence[Sequence[float]]) -> float:
    """Return about the standard deviation of a block within its visit, whatever odd ones there are."""
    several = [of for of in visits if len(of) > 1]
    off = [abs(x - middle) for of in several for middle in (median(of),) for x in of]
    some = sorted(off)[sum(len(of) % 2 for of in several) :]  # a median is not off itself
    return max(LEAST_SCATTER, NORMAL * median(some)) if some else float("inf")
