"""Frequency plans: which instructions share a clock, and what a plan takes with slow switches. Pure."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Literal, TypeAlias

from msgspec import Struct

from analyzers.pipeline.frontier import TINY, ClockProgram, PipelineProfile
from analyzers.pipeline.graph import PipelineGraph
from zeus_stream.errors import SettingsError

Grouping: TypeAlias = Literal["phase", "instruction"]
"""``phase``: instructions of a stage of one kind share a clock in the warm-up, the steady phase and the
cool-down; ``instruction``: each has its own."""


class FrequencyPlan(Struct, frozen=True):
    """A clock for every instruction of an iteration."""

    clocks_mhz: tuple[int, ...]
    """In the order of the graph's instructions."""
    time_s: float
    """Promised duration of an iteration."""
    energy_j: float
    """Promised energy of an iteration, all stages together."""
    bound_j: float
    """No clocks of the same grouping need less when switching takes no time."""


def group_instructions(
    graph: PipelineGraph, profile: PipelineProfile, grouping: Grouping, switching_s: float
) -> list[int]:
    """Return the group of each instruction.

    A run of instructions that is shorter than twice the switching time joins the group beside it.
    """
    if grouping == "phase":
        names: list[object] = [
            (each.stage, each.kind, each.chunk, phase)
            for each, phase in zip(graph.instructions, _phases(graph), strict=True)
        ]
    else:
        names = list(range(len(graph.instructions)))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    groups = [numbers[name] for name in names]
    lengths_s = [min(option.time_s for option in profile.of(each)) for each in graph.instructions]
    while (pair := _too_short(graph, groups, lengths_s, 2 * switching_s)) is not None:
        groups = [pair[1] if group == pair[0] else group for group in groups]
    return groups


def make_plan(
    graph: PipelineGraph,
    profile: PipelineProfile,
    deadline_s: float,
    *,
    grouping: Grouping = "phase",
    switching_s: float = 0.0,
    reserve_s: float | None = None,
) -> FrequencyPlan:
    """Return clocks of about the least energy for iterations of at most ``deadline_s``.

    Between stages, ``reserve_s`` (the spread of the profile if None) is kept free where the highest clocks
    leave it free: instructions do not always take the same time, and one without slack delays the others.
    With a switching time, plans that switch less are tried too, down to one clock per stage.

    Raises:
        RefusedError: not even the highest clocks hold the deadline.
        SettingsError: the profile does not fit the graph, or the switching time is negative.
    """
    return make_plans(
        graph, profile, (deadline_s,), grouping=grouping, switching_s=switching_s, reserve_s=reserve_s
    )[0]


def make_plans(
    graph: PipelineGraph,
    profile: PipelineProfile,
    deadlines_s: Sequence[float],
    *,
    grouping: Grouping = "phase",
    switching_s: float = 0.0,
    reserve_s: float | None = None,
) -> tuple[FrequencyPlan, ...]:
    """Return a plan for each deadline, as `make_plan`.

    Rounding may find a better plan for a shorter deadline: the longer one then has it too.
    """
    if switching_s < 0:
        raise SettingsError(
            f"pipeline: could not plan clocks: a switch cannot take {switching_s:g} s. Give 0 or more."
        )
    reserve_s = profile.spread_s if reserve_s is None else reserve_s
    groups = group_instructions(graph, profile, grouping, switching_s)
    programs = [ClockProgram(graph, profile, groups, reserve_s)]
    if switching_s and grouping == "instruction":
        phases = group_instructions(graph, profile, "phase", switching_s)
        programs.append(ClockProgram(graph, profile, phases, reserve_s))
    if switching_s:
        stages = [each.stage for each in graph.instructions]
        programs.append(ClockProgram(graph, profile, stages, reserve_s))
    plans: dict[float, FrequencyPlan] = {}
    tried: list[tuple[float, float, tuple[int, ...]]] = []
    for deadline_s in sorted(set(deadlines_s)):
        bound_j, most_s = math.inf, deadline_s * (1 + TINY)
        for program in programs:
            point = program.solve(deadline_s)
            clocks = tuple(
                profile.of(each)[at].clock_mhz
                for each, at in zip(graph.instructions, point.choice, strict=True)
            )
            bound_j = min(bound_j, point.bound_j)
            tried.append((*play(graph, profile, clocks, switching_s), clocks))
        # a higher clock that was measured as slower makes switches longer than the program knows
        time_s, energy_j, clocks = min(tried, key=lambda plan: (plan[0] > most_s, plan[1]))
        plans[deadline_s] = FrequencyPlan(clocks, time_s, energy_j, bound_j)
    return tuple(plans[deadline_s] for deadline_s in deadlines_s)


def unplanned_s(graph: PipelineGraph, profile: PipelineProfile) -> float:
    """Return the duration of an iteration at the highest clocks."""
    return graph.makespan_s([profile.of(each)[0].time_s for each in graph.instructions])


def play(
    graph: PipelineGraph,
    profile: PipelineProfile,
    clocks_mhz: Sequence[int],
    switching_s: float,
    stretches: Sequence[float] = (),
) -> tuple[float, float]:
    """Return duration, s, and energy, J, of an iteration at these clocks, one of many like it.

    ``stretches``: of each instruction, times as long as by the profile (1 if left out). A lower clock is
    asked for when its instruction begins, a higher one ``switching_s`` before: so no instruction is longer
    than it is at its own clock, and the deadline of a plan holds in spite of switches.
    """
    known = {
        name: {option.clock_mhz: (option.time_s, option.energy_j) for option in options}
        for name, options in profile.options.items()
    }
    times = [known[each.stage, each.kind, each.chunk] for each in graph.instructions]
    durations, energies = [0.0] * len(times), [0.0] * len(times)
    for chain in graph.orders:
        for at, index in enumerate(chain):
            own_mhz = clocks_mhz[index]
            first_mhz = max(clocks_mhz[chain[at - 1]], own_mhz)
            last_mhz = max(clocks_mhz[chain[(at + 1) % len(chain)]], own_mhz)
            first = min(switching_s / times[index][first_mhz][0], 1.0) if first_mhz > own_mhz else 0.0
            last = min(switching_s / times[index][last_mhz][0], 1.0 - first) if last_mhz > own_mhz else 0.0
            parts = ((first, first_mhz), (1.0 - first - last, own_mhz), (last, last_mhz))
            stretch = stretches[index] if stretches else 1.0
            durations[index] = stretch * sum(share * times[index][mhz][0] for share, mhz in parts)
            energies[index] = stretch * sum(share * times[index][mhz][1] for share, mhz in parts)
    time_s = graph.makespan_s(durations)
    waiting_j = sum(
        profile.waiting_w[stage] * (time_s - sum(durations[index] for index in chain))
        for stage, chain in enumerate(graph.orders)
    )
    return time_s, sum(energies) + waiting_j


def _phases(graph: PipelineGraph) -> list[str]:
    """Return the phase of each instruction.

    Warm-up is before the stage's first backward, cool-down after its last forward, steady between them.
    """
    phases = [""] * len(graph.instructions)
    for chain in graph.orders:
        kinds = [graph.instructions[index].kind for index in chain]
        first = kinds.index("backward") if "backward" in kinds else len(kinds)
        last = max((at for at, kind in enumerate(kinds) if kind == "forward"), default=-1)
        begin = max(first - 1, 0)  # the forward just before the first backward belongs to the steady phase
        for at, index in enumerate(chain):
            steady = begin <= at <= last + 1 and begin < last
            phases[index] = "steady" if steady else "warm-up" if at < first else "cool-down"
    return phases


def _too_short(
    graph: PipelineGraph, groups: Sequence[int], lengths_s: Sequence[float], least_s: float
) -> tuple[int, int] | None:
    """Return a group with a run shorter than ``least_s``, and the group most often beside such runs."""
    for chain in graph.orders:
        runs = [(group, [*run]) for group, run in groupby(chain, key=lambda index: groups[index])]
        short = [
            at
            for at, (_, run) in enumerate(runs)
            if len(runs) > 1 and sum(lengths_s[index] for index in run) < least_s
        ]
        if short:
            group = runs[short[0]][0]
            beside = Counter(
                runs[near][0]
                for at in short
                if runs[at][0] == group
                for near in (at - 1, at + 1)
                if 0 <= near < len(runs)
            )
            return group, beside.most_common(1)[0][0]
    return None
