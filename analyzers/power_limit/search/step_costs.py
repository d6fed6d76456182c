"""The cost of a step at each limit as the search believes it, and what the chosen limit saves. Pure.

What is stated of a choice comes from where the choice came from: visits without what was settling or odd,
the models of their noise, drift between visits, and what is known of curves. A sum over all that was measured
is another figure: of a slow start it took the first limit for twice as dear as it was.
"""

from collections.abc import Sequence
from math import ceil, exp, expm1, log
from statistics import fmean

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_limit.search import curves
from analyzers.power_limit.search.belief import Belief
from analyzers.power_limit.search.visit_blocks import Visit, by_limit
from analyzers.power_limit.selectors import Goal, Trial

ENERGY, TIME = Goal(1.0), Goal(0.0)


class ShareInterval(Struct, frozen=True):
    """A change as a share, with its 95 % interval."""

    low: float
    middle: float
    high: float


class StepCosts(Struct, frozen=True):
    """The cost of a step at some limits, and that at the chosen one beside that at the highest of them."""

    trials: tuple[Trial, ...]
    """One for each limit measured or, where the curve is the remembered one, remembered; descending."""
    energy: ShareInterval
    """More energy at the chosen limit than at the highest."""
    time: ShareInterval


def step_costs(
    limits_mw: Sequence[int],
    gpus: int,
    measured: Sequence[Visit],
    chosen_mw: int,
    remembered: Sequence[Trial] = (),
    *,
    as_remembered: bool = False,
    clocks: bool = False,
) -> StepCosts:
    """Return what steps take at limits after some visits.

    Args:
        limits_mw: that may be chosen, descending.
        gpus: of the job.
        measured: visits of them, one or more, as `search` uses them.
        chosen_mw: one of the limits measured.
        remembered: what an earlier run or round measured.
        as_remembered: what was measured agrees with that.
        clocks: the limits are nominal powers of clocks.
    """
    top_mw = limits_mw[0]
    kept = {known.limit_mw: known for known in remembered if known.limit_mw <= top_mw}
    known_mw = sorted({*limits_mw, *(kept if as_remembered else ())}, reverse=True)
    energy, time = (
        curves.believe(
            known_mw,
            top_mw,
            gpus,
            goal,
            measured,
            curves.recall(known_mw, gpus, goal, remembered, measured, clocks=clocks),
            clocks=clocks,
        )
        for goal in (ENERGY, TIME)
    )
    steps = energy.steps.astype(int).tolist()
    if as_remembered:
        steps = [
            count + (kept[mw].steps if mw in kept else 0) for count, mw in zip(steps, known_mw, strict=True)
        ]
    of_energy, of_time = energy.middle, time.middle
    trials = tuple(
        Trial(
            mw,
            max(1, round(count * exp(of_energy[at]))),
            max(1, round(count * exp(of_time[at]) / (top_mw * gpus) * 1e9)),
            count,
        )
        for at, (mw, count) in enumerate(zip(known_mw, steps, strict=True))
        if count
    )
    at, against = known_mw.index(chosen_mw), known_mw.index(trials[0].limit_mw)
    return StepCosts(trials, _more(energy, at, against), _more(time, at, against))


def carried_over(
    remembered: Sequence[Trial], measured: Sequence[Trial], highest_mw: int
) -> tuple[Trial, ...]:
    """Return what was measured and, of other limits, what is remembered, at the level of now.

    Without a limit in common the level is not known; then what was measured is all.
    """
    whole = [trial for trial in measured if min(trial.energy_mj, trial.duration_ns) > 0]
    both = [(known, trial) for known in remembered for trial in whole if known.limit_mw == trial.limit_mw]
    if measured and not both:
        return tuple(measured)
    energy = exp(fmean([log(trial.step_mj / known.step_mj) for known, trial in both] or [0.0]))
    time = exp(fmean([log(trial.step_ns / known.step_ns) for known, trial in both] or [0.0]))
    common_mw = {trial.limit_mw for _, trial in both}
    others = [
        replace(known, energy_mj=ceil(known.energy_mj * energy), duration_ns=ceil(known.duration_ns * time))
        for known in remembered
        if known.limit_mw <= highest_mw and known.limit_mw not in common_mw
    ]
    return by_limit([*measured, *others])


def _more(belief: Belief, at: int, against: int) -> ShareInterval:
    """Return how much more is taken at one limit than at another."""
    if at == against:
        return ShareInterval(0.0, 0.0, 0.0)
    low, high = belief.difference(at, against)
    middle = float(belief.middle[at] - belief.middle[against])
    return ShareInterval(*(expm1(each) for each in np.sort([low, middle, high])))
