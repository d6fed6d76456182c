"""The search for the best power limit: which limit to measure next, and when to choose. Pure.

After every block of steps the machine asks again:

    visits so far -> Measure(limit), the one in force or another
                  -> Choose(limit), with how much worse than the best one it may be

`step_kinds` takes away that a visit saw more of one kind of step, `host_delays` what a busy host did.
`visits` says which blocks count, `noise` how sure a mean is, `curves` what they say of all limits, `belief`
what follows. The rules:

 1. The first visit is long enough to learn the noise: `LOOK` blocks, and up to `LONG_LOOK` while steps are
    correlated by more than `LOUD`.
 2. Any visit goes on while its last steps say much more than those of a new visit would. So a visit covers a
    whole period of steps that swing, and slow waves are met by short visits in turn.
 3. The risk at a limit is how likely it is better than the best one measured by more than `TOLERATED`; with a
    bound on the time, how likely it is so far on the other side of the bound than believed. When the risks
    at all limits add up to less than `RISK` the search ends. Until then the limit with the largest risk for
    its cost is measured next, or the one it is compared with if that is less known.
 4. The search also ends after `most_blocks`. If its bound is above `TOLERATED` then, it chooses the limit
    that may be off by the least, and says that it is not sure.
 5. Before the choice the highest limit and the best are measured in turn, `ROUNDS` times in all. Noise that
    comes and goes, and a start that ended in between, show in how their difference scatters. Where a
    remembered curve holds, that shows it as well. In a short run `FEW_ROUNDS` do.
 6. Where it is known how many steps are to come, a run ends its search at half of them at the latest, and
    tolerates the more risk the fewer there are: a visit costs what is lost at `WORTHWHILE_STEPS` of them.
    Its first visit has one of `SHARES` of the search, so that other limits are measured too.
 7. With a bound on the time, a limit beyond it is visited only while the mean time of all steps of the search
    keeps the bound with 95 %: until then the highest is measured on, or one nearer to it that may be. A visit
    that turns out slower than believed ends with the block at hand.
 8. Of two controls a clock is visited first. Then both are searched as one curve: a visit of either tells of
    the other, but for their offset. One limit at least is measured, unless the one found is likely the best.
 9. Where a curve is remembered, its best limit is measured first, and what is measured weighs it against
    other curves. Where it holds, a visit of its best limit and one of the highest confirm it.

Stopping when the data look good does not bias a posterior as it biases a test: it holds whatever the rule was
by which the data were collected (Berger, Wolpert, "The Likelihood Principle", 1988, 4.2). Source of measuring
where improvement by so much is likeliest: Kushner, "A New Method of Locating the Maximum Point of an
Arbitrary Multipeak Curve in the Presence of Noise", J. Basic Engineering 86, 1964.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_limit.search import belief as beliefs
from analyzers.power_limit.search import curves, noise
from analyzers.power_limit.search.belief import TOLERATED, Belief, Confidence
from analyzers.power_limit.search.host_delays import evenly_delayed
from analyzers.power_limit.search.noise import Bools, Floats
from analyzers.power_limit.search.step_costs import StepCosts, step_costs
from analyzers.power_limit.search.step_kinds import evenly_mixed
from analyzers.power_limit.search.visit_blocks import (
    BLOCKS,
    SETTLING_NS,
    Visit,
    added,
    settled,
    usual_times,
)
from analyzers.power_limit.selectors import Goal, Trial

RISK = 0.006
"""Probability at most that a limit is left which is better by `TOLERATED` of what is minimized."""
RISK_OF_BOTH = 0.1
"""The same where clocks and limits are searched: one limit that is measured tells of all, so that risks at
them are nearly one risk.

Of 72 simulated searches (`controls`, seeds 51 and 53) none was off by over 1 % after 214 steps at 0.1, and
3 % after 199 at 0.2. Clocks that are searched to the end before a limit take 254, and 3 % are off."""
WORTHWHILE_STEPS, HIGHEST_RISK = 33, 0.2
"""A limit that may be better by `TOLERATED` is worth a visit if its probability times the steps to come is
more; and the highest risk that is tolerated."""
LOOK, LOOK_NS, LONG_LOOK = 8, 40_000_000_000, 160
"""Of the first visit: blocks or time, at least, and steps where they are correlated.

With 40 blocks instead, 900 steps of 22 ms, 36 searches took 2,367 steps in the median instead of 1,828, and
were as good (docs/measurements/search.md, "Short steps")."""
SHARES = 4
"""The first visit of a run of known length has at most one of so many shares of the blocks of its search.

Without it a run of 60 steps kept its limit, 2.1 % off the best, now 0.4 %. So did one of 200 steps with 15 %
of noise. 4, 6 and 8 are alike (docs/measurements/search.md)."""
OFTEN = 48
"""Blocks after which only every other one is looked at, then every third: the algebra grows with them."""
ROUNDS, FEW_ROUNDS, TURN_BLOCKS = 5, 3, 5
"""Turns of the highest limit and the best before a choice, in short runs, and blocks that are kept for each.

Of 24 runs a kind the stated saving held with 3 turns in 79 % (flicker) and 81 % (mixed), with 5 in 95 and
98 %; in white noise a search takes 150 steps with 3, and 207 with 5."""
LOUD = 0.02
"""Standard deviation of the correlated noise from which on the first visit is long."""
CHANGE_NS = 1_250_000_000
"""Time that a change of limit costs, about, beside the step in which it comes."""
AT_MOST = 1.645
"""Standard deviations below which a value is with 95 %."""
PRECISE = 0.006
"""Standard deviation of a visit that is long enough whatever the noise is."""
MOST_LENGTH = 30
"""Blocks of a visit."""
LONGEST = 2
"""Times as long as is enough a visit is at most, whatever the risk there: more of it would tell no more."""
WORTH = 1.5
"""Times the cost of the best length of a visit for the same precision, from which on it is long enough."""


class Choose(Struct, frozen=True):
    """Search no more."""

    limit_mw: int
    confidence: Confidence
    remembered: float | None = None
    """How likely the curve is the one remembered; None: none was."""
    sure: bool = True
    """Whether no limit is likely left that is much better; else the budget of steps has ended."""
    costs: StepCosts | None = None
    """What steps take there and at other limits. None: nothing is believed of them."""


class Measure(Struct, frozen=True):
    """Measure a block at this limit: one more, if it is in force."""

    limit_mw: int
    so_far: Choose | None = None
    """The choice by now. None: nothing was concluded from the latest block."""


def advise(
    limits_mw: Sequence[int],
    gpus: int,
    goal: Goal,
    visits: Sequence[Visit],
    remembered: Sequence[Trial] = (),
    more_blocks: int = 0,
    *,
    clocks: curves.Clocks = curves.NO_CLOCKS,
    steps_left: int | None = None,
) -> Measure | Choose:
    """Return what to do next.

    Args:
        limits_mw: those that may be chosen, descending.
        gpus: of the job.
        goal: what is minimized.
        visits: of these limits, in order; the last may be under way.
        remembered: what an earlier run or round measured, nothing of it 0; one for each limit, of these or
            others.
        more_blocks: that may be measured on top of `most_blocks`.
        clocks: those of the limits that are nominal powers of clocks.
        steps_left: of the run. None: not known.
    """
    every = visits = [visit for visit in visits if visit.limit_mw in limits_mw]
    tolerated_risk = _tolerated_risk(steps_left)
    left = _blocks_left(visits, most_blocks(len(limits_mw)) + more_blocks, steps_left)
    most_first = _most_of_first(visits, left, steps_left)
    if (mixed := evenly_mixed(visits)) is not None and left > 0 and mixed.visits[-1].t_ns != visits[-1].t_ns:
        return Measure(visits[-1].limit_mw)  # until enough of the kind that it changes was seen
    visits = settled(mixed.visits if mixed is not None else evenly_delayed(visits))
    memory = curves.recall(limits_mw, gpus, goal, remembered, visits, clocks)
    if not visits:
        return Measure(_first(limits_mw, goal, memory))
    if goal.factor is not None and all(visit.limit_mw != limits_mw[0] for visit in visits):
        return Measure(limits_mw[0])
    last, counts = visits[-1], sum(usual_times(visits)[-1])
    looks = len(visits) == 1 and memory is None and len(limits_mw) > 1
    least = _least_blocks(last, min(LOOK, most_first) if looks else 0)
    often = 1 + sum(len(visit.blocks) for visit in visits) // OFTEN
    goes_on = counts < least or (left > 0 and len(last.blocks) % often)
    if left > 1 - BLOCKS and goes_on and not _breaks_bound(goal, limits_mw[0], every):
        return Measure(last.limit_mw)
    belief = curves.believe(limits_mw, limits_mw[0], gpus, goal, visits, memory, clocks=clocks)
    among, best, risk, sure = _by_control(belief, tolerated_risk)
    turns = ROUNDS if tolerated_risk <= RISK else FEW_ROUNDS
    turn, more = _turns_left(visits, limits_mw[0], limits_mw[best], turns)
    chosen = _choose(limits_mw, belief, remembers=memory is not None, sure=sure)
    if more and not belief.as_remembered and left > 0 and (sure or left <= TURN_BLOCKS * more):
        return Measure(turn, chosen)
    if left <= 0 or (sure and belief.checked):
        known = memory is not None and belief.as_remembered
        of = limits_mw, gpus, visits, chosen.limit_mw, remembered
        costs = step_costs(*of, as_remembered=known, clocks=clocks)
        return replace(chosen, costs=costs.doubted(mixed.doubt) if mixed is not None else costs)
    may = among & _within_bound(limits_mw, belief, every)
    to_check = limits_mw[_to_check(belief, best, may)] if sure else None
    return Measure(to_check or _next_mw(limits_mw, belief, best, visits, risk, most_first, may), chosen)


def _by_control(belief: Belief, tolerated_risk: float) -> tuple[Bools, int, Floats, bool]:
    """Return the limits that may be visited by now, the best, the risk at each, and whether it is low enough.

    Of two controls a clock comes first, and a limit is measured (rule 8). Both arrays: shape (n,).
    """
    first, *others = belief.controls
    measured_first = bool(belief.steps[first][1:].any())
    among = np.logical_or.reduce(belief.controls) if measured_first else first
    best = belief.best(among)
    risk = np.where(among, belief.risk(best), 0.0)
    most = max(tolerated_risk, RISK_OF_BOTH) if others else tolerated_risk
    for of in others:
        guard = belief.likely_best(of)
        if guard and risk.sum() < most and not belief.steps[of][1:].any():
            risk[guard] = 1.0  # nothing of this control is known until one was measured
    return among, best, risk, bool(belief.steps[best]) and float(risk.sum()) < most


def _tolerated_risk(steps_left: int | None) -> float:
    """Return the probability at which limits are left (rules 3 and 6)."""
    if steps_left is None:
        return RISK
    return max(RISK, min(HIGHEST_RISK, WORTHWHILE_STEPS / max(1, steps_left)))


def _most_of_first(visits: Sequence[Visit], left: int, steps_left: int | None) -> int:
    """Return how many blocks the first visit has at most; in a run of known length also for that."""
    blocks, steps = sum(len(visit.blocks) for visit in visits), sum(visit.whole.steps for visit in visits)
    most = max(LOOK, LONG_LOOK * blocks // max(1, steps))
    return most if steps_left is None else min(most, max(BLOCKS, (left + blocks) // SHARES))


def _least_blocks(visit: Visit, look: int = 0) -> int:
    """Return how many blocks a visit has at least: fewer where a block takes long. ``look``: of the first."""
    blocks, ns = (look, LOOK_NS) if look else (BLOCKS, SETTLING_NS)
    return min(blocks, ceil(ns * len(visit.blocks) / visit.whole.duration_ns))


def _breaks_bound(goal: Goal, top_mw: int, visits: Sequence[Visit]) -> bool:
    """Tell whether one more block of the visit under way breaks the bound on the time, as it was measured."""
    last = visits[-1]
    if goal.factor is None or last.limit_mw == top_mw:
        return False
    bound_ns = (
        goal.factor
        * added([block for each in visits for block in each.blocks if each.limit_mw == top_mw]).step_ns
    )
    over_ns = sum(visit.whole.duration_ns - visit.whole.steps * bound_ns for visit in visits)
    changing = len(visits) * (1 + CHANGE_NS / last.whole.step_ns)
    steps = changing + last.whole.steps / len(last.blocks)
    return over_ns + steps * (last.whole.step_ns - bound_ns) > 0


def _within_bound(limits_mw: Sequence[int], belief: Belief, visits: Sequence[Visit]) -> Bools:
    """Tell which limits may be visited now: the mean time of all steps keeps its bound (rule 7); shape (n,).

    ``visits``: all of the search, with what was left out. A change of limit is counted as `CHANGE_NS`.
    """
    if belief.factor is None:
        return np.ones(len(limits_mw), dtype=bool)
    one, top, last = belief.as_one, belief.top, visits[-1]
    variance = np.diag(one.covariance) + one.covariance[top, top] - 2 * one.covariance[top]
    ratio = np.exp(one.mean - one.mean[top])
    most = ratio * np.exp(AT_MOST * np.sqrt(np.maximum(variance, 0.0)))
    changing = 1 + CHANGE_NS / last.whole.step_ns
    over = 0.0
    for number, visit in enumerate(visits):
        steps = visit.whole.steps + (changing if number else 0.0)
        over += steps * (ratio[limits_mw.index(visit.limit_mw)] - belief.factor)
    block = last.whole.steps / len(last.blocks)
    needed = np.full(len(limits_mw), BLOCKS * block + changing)
    needed[limits_mw.index(last.limit_mw)] = block
    return np.asarray((most <= belief.factor) | (over + needed * (most - belief.factor) <= 0))


def _next_mw(
    limits_mw: Sequence[int],
    belief: Belief,
    best: int,
    visits: Sequence[Visit],
    risk: Floats,
    most_first: int,
    may: Bools,
) -> int:
    """Return the limit to measure where one is not sure: the last if its visit is too short for the noise.

    ``may``: limits that may be visited, shape (n,).
    """
    last = visits[-1]
    enough = _enough(belief, last, _least_blocks(last), most_first if len(visits) == 1 else 0)
    if len(last.blocks) < enough and may[limits_mw.index(last.limit_mw)]:
        return last.limit_mw
    over = limits_mw.index(last.limit_mw) if len(last.blocks) >= LONGEST * enough else None
    return limits_mw[belief.next(best, risk, over, may, unseen=False)]


def _to_check(belief: Belief, best: int, may: Bools) -> int:
    """Return the index of the limit to measure where one is sure, but has not checked what is remembered."""
    if belief.as_remembered and not belief.steps[0]:
        return 0
    risk = belief.risk(best, unremembered=True)  # it would be largest there
    return belief.next(best, risk, None, may, unseen=True)


def _first(limits_mw: Sequence[int], goal: Goal, memory: curves.RememberedCurve | None) -> int:
    """Return the limit that a search measures first."""
    if memory is None or goal.factor is not None:
        return limits_mw[0]  # at whose time a bound is set
    of = [i for i, limit in enumerate(limits_mw) if limit in memory.trials] or range(len(limits_mw))
    return limits_mw[min(of, key=lambda i: float(memory.curve.mean[i]))]


def _turns_left(visits: Sequence[Visit], top_mw: int, best_mw: int, turns: int) -> tuple[int, int]:
    """Return the limit whose turn it is, the highest or the best, and how many turns are left of some.

    Noise that comes and goes shows only in how their difference scatters. So does a start that ends during
    the search. Where the highest is the best, it is measured again after another.
    """
    if top_mw == best_mw:
        return top_mw, int(visits[-1].limit_mw != top_mw)
    both = [visit.limit_mw for visit in visits if visit.limit_mw in {top_mw, best_mw}]
    had = min(1, len(both)) + sum(one != other for one, other in pairwise(both))
    return best_mw if both and both[-1] == top_mw else top_mw, max(0, turns - had)


def _enough(belief: Belief, last: Visit, least: int, most_first: int) -> int:
    """Return how many blocks of a visit are enough for the noise there is, ``least`` of them in any.

    ``most_first``: of the first visit; 0: it is another.
    """
    if len(last.blocks) < most_first:
        loud = belief.models @ (belief.variance * noise.correlated_ratios())
        if loud > LOUD**2:
            return most_first
    block = max(1, round(last.whole.steps / len(last.blocks)))
    counts = range(least, MOST_LENGTH + 1)
    lengths = [block * blocks for blocks in counts]
    variances = noise.visit_variances(belief.variance, belief.models, lengths)
    worth = [
        max(variance, PRECISE**2) * (length + 1 + CHANGE_NS / last.whole.step_ns)
        for variance, length in zip(variances, lengths, strict=True)
    ]
    return next(blocks for blocks, of in zip(counts, worth, strict=True) if of <= WORTH * min(worth))


def _choose(limits_mw: Sequence[int], belief: Belief, *, remembers: bool, sure: bool) -> Choose:
    """Return the choice: the best limit or, where that is not sure, the one that may be off by the least."""
    best, excesses = belief.best(np.ones(len(limits_mw), dtype=bool), measured=True), belief.excesses()
    bounds = {
        i: beliefs.confidence(excesses[:, i]) for i in range(len(limits_mw)) if belief.steps[i] or i == best
    }
    if not sure and bounds[best].p95 > TOLERATED:
        best = min(bounds, key=lambda i: (bounds[i].p95, i))
    return Choose(limits_mw[best], bounds[best], belief.remembered if remembers else None, sure)


def _blocks_left(visits: Sequence[Visit], most: int, steps_left: int | None) -> int:
    """Return how many of ``most`` blocks are left, and end before half of the run is over."""
    blocks, steps = sum(len(visit.blocks) for visit in visits), sum(visit.whole.steps for visit in visits)
    if steps_left is None or not steps:
        return most - blocks
    return min(most - blocks, (steps_left - steps) * blocks // (2 * steps))


def most_blocks(limits: int) -> int:
    """Return after how many blocks a search over so many limits ends, the last rounds included."""
    return 120 + 6 * limits
