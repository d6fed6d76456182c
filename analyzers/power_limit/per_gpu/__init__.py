"""Limits of single GPUs below their job's. The rules: `per_gpu_machine`."""

from analyzers.power_limit.per_gpu.group_trials import DOUBT, MAX_LEGS, MAX_STEPS, SAVES
from analyzers.power_limit.per_gpu.per_gpu_machine import start, step
from analyzers.power_limit.per_gpu.per_gpu_messages import (
    BlockMeasured,
    Effect,
    Event,
    Found,
    GiveUp,
    Instruction,
    Measure,
    Plan,
    Set,
)
from analyzers.power_limit.per_gpu.per_gpu_state import (
    FIRST,
    Answer,
    Applying,
    Arm,
    Asked,
    Block,
    Group,
    Measuring,
    Over,
    State,
    Trial,
    Warming,
)
from analyzers.power_limit.per_gpu.slowdown import FREE, RISE, TOLERANCE, slower

__all__ = [
    "DOUBT",
    "FIRST",
    "FREE",
    "MAX_LEGS",
    "MAX_STEPS",
    "RISE",
    "SAVES",
    "TOLERANCE",
    "Answer",
    "Applying",
    "Arm",
    "Asked",
    "Block",
    "BlockMeasured",
    "Effect",
    "Event",
    "Found",
    "GiveUp",
    "Group",
    "Instruction",
    "Measure",
    "Measuring",
    "Over",
    "Plan",
    "Set",
    "State",
    "Trial",
    "Warming",
    "slower",
    "start",
    "step",
]
