"""The search for the best power limit: which limit to measure next, and when to choose. Pure.

After every block of steps the machine asks again:

    visits so far -> Measure(limit), the one in force or another
                  -> Choose(limit), with how much worse than the best one it may be

`host_delays` takes away what a busy host did, `visits` says which blocks count, `noise` how sure a mean is,
`curves` what they say of all limits, `belief` what follows. The rules:

 1. The first visit is long enough to learn the noise: `LOOK` blocks, and up to `LONG_LOOK` while steps are
    correlated by more than `LOUD`. If it was short, that limit is measured again before the choice: a run
    that starts is slow.
 2. Any visit goes on while its last steps say much more than those of a new visit would. So a visit covers a
    whole period of steps that swing, and slow waves are met by short visits in turn.
 3. The risk at a limit is how likely it is better than the best one measured by more than `TOLERATED`; with a
    bound on the time, how likely it is so far on the other side of the bound than believed. When the risks
    at all limits add up to less than `RISK` the search ends. Until then the limit with the largest risk for
    its cost is measured next, or the one it is compared with if that is less known.
 4. The search also ends after `most_blocks`. If its bound is above `TOLERATED` then, it chooses the limit
    that may be off by the least, and says that it is not sure.
 5. With a bound on the time, the highest limit is measured last, after the one to be chosen: a start that
    ended in between shows. Where a remembered curve holds, that shows it as well.
 6. Where a curve is remembered, its best limit is measured first, and what is measured weighs it against
    other curves. Where it holds, a visit of its best limit and one of the highest confirm it.

Stopping when the data look good does not bias a posterior as it biases a test: it holds whatever the rule was
by which the data were collected (Berger, Wolpert, "The Likelihood Principle", 1988, 4.2). Source of measuring
where improvement by so much is likeliest: Kushner, "A New Method of Locating the Maximum Point of an
Arbitrary Multipeak Curve in the Presence of Noise", J. Basic Engineering 86, 1964.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_limit.search import belief as beliefs
from analyzers.power_limit.search import curves, noise
from analyzers.power_limit.search.belief import TOLERATED, Belief, Confidence
from analyzers.power_limit.search.host_delays import evenly_delayed
from analyzers.power_limit.search.step_costs import StepCosts, step_costs
from analyzers.power_limit.search.visit_blocks import BLOCKS, Visit, counted, settled
from analyzers.power_limit.selectors import Goal, Trial

RISK = 0.006
"""Probability at most that a limit is left which is better by `TOLERATED` of what is minimized."""
RISK_BESIDE = 0.1
"""The same of limits beside a chosen clock, which take its place only where they are better.

18 simulated workloads, 2 % noise: both controls took 251 steps at 0.02 and 234 at 0.1, at the same saving."""
LOOK, LONG_LOOK = 8, 40
"""Blocks of the first visit: at least, and where steps are correlated."""
OFTEN = 48
"""Blocks after which only every other one is looked at, then every third: the algebra grows with them."""
STARTED_STEPS = 100
"""Steps of a first visit that is long enough to see that the run has started."""
LOUD = 0.02
"""Standard deviation of the correlated noise from which on the first visit is long."""
SETTLING_STEPS = 6
"""Steps that a change of limit costs, about."""
PRECISE = 0.006
"""Standard deviation of a visit that is long enough whatever the noise is."""
LENGTHS = tuple(range(BLOCKS, 31))
"""Blocks of a visit."""
WORTH = 1.5
"""Times the cost of the best length of a visit for the same precision, from which on it is long enough."""


class Measure(Struct, frozen=True):
    """Measure a block at this limit: one more, if it is in force."""

    limit_mw: int


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


def advise(
    limits_mw: Sequence[int],
    gpus: int,
    goal: Goal,
    visits: Sequence[Visit],
    remembered: Sequence[Trial] = (),
    more_blocks: int = 0,
    *,
    clocks: bool = False,
    tolerated_risk: float = RISK,
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
        clocks: the limits are nominal powers of clocks.
        tolerated_risk: that a limit is left which is better by `TOLERATED`.
    """
    visits = [visit for visit in visits if visit.limit_mw in limits_mw]
    left = most_blocks(len(limits_mw)) + more_blocks - sum(len(visit.blocks) for visit in visits)
    visits = settled(evenly_delayed(visits))
    memory = curves.recall(limits_mw, gpus, goal, remembered, visits, clocks=clocks)
    if not visits:
        return Measure(_first(limits_mw, goal, memory))
    if goal.factor is not None and all(visit.limit_mw != limits_mw[0] for visit in visits):
        return Measure(limits_mw[0])
    last, counts = visits[-1], counted(visits)[-1]
    least = LOOK if len(visits) == 1 and memory is None and len(limits_mw) > 1 else BLOCKS
    often = 1 + sum(len(visit.blocks) for visit in visits) // OFTEN
    if left > 1 - least and (counts < least or (left > 0 and len(last.blocks) % often)):
        return Measure(last.limit_mw)
    belief = curves.believe(limits_mw, limits_mw[0], gpus, goal, visits, memory, clocks=clocks)
    best = belief.best()
    risk = belief.risk(best)
    sure = bool(belief.steps[best]) and float(risk.sum()) < tolerated_risk
    if sure and left > 0 and memory is None and not _is_started(visits):
        return Measure(visits[0].limit_mw)
    bounded = goal.factor is not None and not belief.as_remembered
    if sure and left > 0 and bounded and not _is_confirmed(visits, limits_mw[0], limits_mw[best]):
        return Measure(limits_mw[0])
    if left <= 0 or (sure and belief.checked):
        chosen = _choose(limits_mw, belief, remembers=memory is not None, sure=sure)
        known = memory is not None and belief.as_remembered
        of = limits_mw, gpus, visits, chosen.limit_mw, remembered
        return replace(chosen, costs=step_costs(*of, as_remembered=known, clocks=clocks))
    if sure and belief.as_remembered and not belief.steps[0]:
        wanted = 0
    else:
        if sure:  # where the risk would be largest, were it not as remembered
            risk = belief.risk(best, unremembered=True)
        wanted = belief.next(best, risk, unseen=sure)
    if not sure and _goes_on(belief, last, first=len(visits) == 1):
        return Measure(last.limit_mw)
    return Measure(limits_mw[wanted])


def _first(limits_mw: Sequence[int], goal: Goal, memory: curves.Memory | None) -> int:
    """Return the limit that a search measures first."""
    if memory is None or goal.factor is not None:
        return limits_mw[0]  # at whose time a bound is set
    of = [i for i, limit in enumerate(limits_mw) if limit in memory.trials] or range(len(limits_mw))
    return limits_mw[min(of, key=lambda i: float(memory.curve.mean[i]))]


def _is_started(visits: Sequence[Visit]) -> bool:
    """Tell whether the first limit was measured again, or for long: a run that starts has slow steps."""
    first = visits[0]
    others = [i for i, visit in enumerate(visits) if visit.limit_mw != first.limit_mw]
    again = others and any(visit.limit_mw == first.limit_mw for visit in visits[others[0] :])
    return bool(again or not others or first.whole.steps >= STARTED_STEPS)


def _is_confirmed(visits: Sequence[Visit], top_mw: int, best_mw: int) -> bool:
    """Tell whether the highest limit was measured since the one to be chosen.

    The bound is set at its time. A start that ends during the search makes limits measured before look slow.
    """
    last = {visit.limit_mw: at for at, visit in enumerate(visits)}
    return best_mw not in last or last[top_mw] >= last[best_mw]


def _goes_on(belief: Belief, last: Visit, *, first: bool) -> bool:
    """Tell whether a visit is still too short for the noise there is."""
    if first and len(last.blocks) < LONG_LOOK:
        loud = belief.models @ (belief.variance * noise.correlated_ratios())
        if loud > LOUD**2:
            return True
    block = max(1, round(last.whole.steps / len(last.blocks)))
    lengths = [block * blocks for blocks in LENGTHS]
    variances = noise.visit_variances(belief.variance, belief.models, lengths)
    worth = [
        max(variance, PRECISE**2) * (length + SETTLING_STEPS)
        for variance, length in zip(variances, lengths, strict=True)
    ]
    enough = next(blocks for blocks, of in zip(LENGTHS, worth, strict=True) if of <= WORTH * min(worth))
    return len(last.blocks) < enough


def _choose(limits_mw: Sequence[int], belief: Belief, *, remembers: bool, sure: bool) -> Choose:
    """Return the choice: the best limit or, where that is not sure, the one that may be off by the least."""
    best, excesses = belief.best(measured=True), belief.excesses()
    bounds = {
        i: beliefs.confidence(excesses[:, i]) for i in range(len(limits_mw)) if belief.steps[i] or i == best
    }
    if not sure and bounds[best].p95 > TOLERATED:
        best = min(bounds, key=lambda i: (bounds[i].p95, i))
    return Choose(limits_mw[best], bounds[best], belief.remembered if remembers else None, sure)


def most_blocks(limits: int) -> int:
    """Return after how many blocks a search over so many limits ends."""
    return 120 + 6 * limits
