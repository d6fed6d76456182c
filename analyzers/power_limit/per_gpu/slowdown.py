"""The probability that lowered limits slow a job down: rule 4 of `per_gpu_machine`. Pure."""

from collections.abc import Sequence
from math import erf, exp, log, pi, sqrt

from analyzers.power_limit.curve_fit import curves
from analyzers.power_limit.per_gpu.per_gpu_state import Arm, Block

TOLERANCE = 0.003
"""A job that takes longer by a smaller share is not slower."""
FREE = 0.5
RISE = 0.03
"""What is believed beforehand: see rule 4."""


def slower(base: Sequence[Block], lowered: Sequence[Block], scatter: Sequence[Arm] = ()) -> float:
    """Return how likely it is that steps take longer by more than `TOLERANCE` (rule 4).

    Args:
        base, lowered: one block or more of each.
        scatter: what else tells how much steps vary.
    """
    steps = [sum(block.steps for block in arm) for arm in (base, lowered)]
    base_ns, lowered_ns = ([block.duration_ns for block in arm] for arm in (base, lowered))
    rise = log(ratio_of(base_ns, lowered_ns, steps))
    variance = curves.step_variance([arm_of(base), arm_of(lowered), *scatter])
    error = sqrt(variance * (1 / steps[0] + 1 / steps[1]))
    free = FREE * exp(-((rise / error) ** 2) / 2) / (error * sqrt(2 * pi))
    mean = rise - error**2 / RISE
    scale = (1 - FREE) / RISE * exp((error**2 / (2 * RISE) - rise) / RISE)
    above = scale * _normal((mean - TOLERANCE) / error)
    total = free + scale * _normal(mean / error)
    return above / total if total else float(rise > TOLERANCE)


def arm_of(blocks: Sequence[Block]) -> Arm:
    return tuple((log(block.duration_ns / block.steps), block.steps) for block in blocks)


def _normal(z: float) -> float:
    return (1 + erf(z / sqrt(2))) / 2


def ratio_of(base: Sequence[int], lowered: Sequence[int], steps: Sequence[int]) -> float:
    """Return the second amount a step, over the first. ``steps``: of each."""
    return sum(lowered) / steps[1] / (sum(base) / steps[0])
