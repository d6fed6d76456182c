"""Frequency plans: which instructions share a clock, and what a plan takes with slow switches. Pure.

A change of clock takes time and energy, and a GPU takes few of them a second. So instructions in a row share
a clock where that costs little. The linear program of single instructions gives each a price: the energy that
a second more of it would cost all others. At these prices the cheapest clocks of a stage, changes included,
are a shortest path along its instructions. Its runs of equal clocks are the groups of a second program, which
holds the deadline. That program has other prices, which give other runs.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil

import numpy as np
from msgspec import Struct

from analyzers.pipeline.frontier import TINY, FrontierPoint, FrontierProgram, PipelineProfile
from analyzers.pipeline.graph import PipelineGraph
from analyzers.pipeline.solvers import Vector
from analyzers.pipeline.stage_record import StageRecord
from analyzers.results.result import ApplyPlan
from zeus_stream.protocol.pipelines import encode_instruction

CHANGE_SHARES = (0.02, 0.1, 0.3, 0.5)
"""Of what an instruction may save, that a change is taken to cost besides: so there are fewer."""
DEARER = (1.0, 3.0, 10.0, 30.0, 100.0, math.inf)
"""The same, while there are too many changes; with the last, a stage has one clock."""
ROUNDS = 2
"""Of prices and runs. On 22 short cases of `benchmarks.pipeline.groupings --seeds 200 206`, 1, 2, 3, 4 rounds
reach a mean of 88.9, 91.0, 91.1, 91.2 % of the bound's saving, at least 47, 70, 70, 70 %, in 5.3, 7.3, 9.6,
12.4 s."""


class FrequencyPlan(Struct, frozen=True):
    """A clock for every instruction of an iteration."""

    clocks_mhz: tuple[int, ...]
    """In the order of the graph's instructions."""
    time_s: float
    """Promised duration of an iteration."""
    energy_j: float
    """Promised energy of an iteration, all stages together."""
    bound_j: float
    """No clocks need less, even if switching took no time."""


def make_plans(
    graph: PipelineGraph,
    profile: PipelineProfile,
    deadlines_s: Sequence[float],
    *,
    switching_s: float = 0.0,
    changes_per_s: float = math.inf,
    reserve: float = 1.0,
    quick: bool = False,
) -> tuple[FrequencyPlan, ...]:
    """Return for each deadline clocks of about the least energy that hold it.

    Rounding may find a better plan for a shorter deadline: the longer one then has it too. After an
    instruction that another stage waits for, ``reserve`` standard deviations of its time are kept free, where
    there is slack.

    Args:
        deadlines_s: durations of an iteration.
        switching_s: that a change takes.
        changes_per_s: of one GPU at most, on average.
        quick: rounding is enough, which takes no seconds.

    Raises RefusedError: not even the highest clocks hold a deadline. SettingsError: the profile does not fit.
    """
    reserves_s = [
        reserve * profile.spread_s.get((each.stage, each.kind, each.chunk), 0.0)
        for each in graph.instructions
    ]
    program = FrontierProgram(graph, profile, range(len(graph.instructions)), reserves_s)
    plans: dict[float, FrequencyPlan] = {}
    tried: list[tuple[float, float, tuple[int, ...]]] = []
    for deadline_s in sorted(set(deadlines_s)):
        points = [program.solve(deadline_s, quick=True)]
        if not quick and (searched := program.solve(deadline_s)) != points[0]:
            points.append(searched)  # besides: changes of clock may cost more than it saves
        choices = [point.choice for point in points]
        if switching_s or changes_per_s < math.inf:
            for point in points:
                choices += _choices(graph, profile, point, reserves_s, deadline_s, switching_s, changes_per_s)
        for choice in choices:
            clocks = _clocks_mhz(graph, profile, choice)
            if most_changes(graph, clocks) <= changes_per_s * deadline_s:
                # switches may be faster than that: then instructions are as long as at their own clocks
                longest_s = play(graph, profile, clocks, 0.0)[0]
                time_s, energy_j = play(graph, profile, clocks, switching_s)
                tried.append((max(time_s, longest_s), energy_j, clocks))
        # a higher clock that was measured as slower makes switches longer than the program knows
        most_s = deadline_s * (1 + TINY)
        time_s, energy_j, clocks = min(tried, key=lambda plan: (plan[0] > most_s, plan[1]))
        plans[deadline_s] = FrequencyPlan(clocks, time_s, energy_j, points[-1].bound_j)
    return tuple(plans[deadline_s] for deadline_s in deadlines_s)


def unplanned_s(graph: PipelineGraph, profile: PipelineProfile) -> float:
    return graph.makespan_s([profile.of(each)[0].time_s for each in graph.instructions])


def most_changes(graph: PipelineGraph, clocks_mhz: Sequence[int]) -> int:
    """Return the changes of clock in an iteration, one of many like it, of the stage that has most."""
    return max(
        sum(clocks_mhz[one] != clocks_mhz[two] for one, two in pairwise((*chain, chain[0])))
        for chain in graph.orders
    )


def play(
    graph: PipelineGraph,
    profile: PipelineProfile,
    clocks_mhz: Sequence[int],
    switching_s: float,
) -> tuple[float, float]:
    """Return duration, s, and energy, J, of an iteration at these clocks, one of many like it.

    No instruction is longer than it is at its own clock (`overlaps_s`): the deadline of a plan holds in spite
    of switches.
    """
    known = {
        name: {option.clock_mhz: (option.time_s, option.energy_j) for option in options}
        for name, options in profile.options.items()
    }
    times = [known[each.stage, each.kind, each.chunk] for each in graph.instructions]
    own_s = [times[index][mhz][0] for index, mhz in enumerate(clocks_mhz)]
    before_s, after_s = overlaps_s(graph, own_s, switching_s)
    durations_s, energy_j = [0.0] * len(times), 0.0
    for chain in graph.orders:
        for at, index in enumerate(chain):
            own_mhz = clocks_mhz[index]
            first_mhz = max(clocks_mhz[chain[at - 1]], own_mhz)
            last_mhz = max(clocks_mhz[chain[(at + 1) % len(chain)]], own_mhz)
            first = min(before_s[index] / times[index][first_mhz][0], 1.0) if first_mhz > own_mhz else 0.0
            last = min(after_s[index] / times[index][last_mhz][0], 1.0 - first) if last_mhz > own_mhz else 0.0
            parts = ((first, first_mhz), (1.0 - first - last, own_mhz), (last, last_mhz))
            durations_s[index] = sum(share * times[index][mhz][0] for share, mhz in parts)
            energy_j += sum(share * times[index][mhz][1] for share, mhz in parts)
    time_s = graph.makespan_s(durations_s)
    waiting_j = sum(
        profile.waiting_w[stage] * (time_s - sum(durations_s[index] for index in chain))
        for stage, chain in enumerate(graph.orders)
    )
    return time_s, energy_j + waiting_j


def overlaps_s(
    graph: PipelineGraph, durations_s: Sequence[float], switching_s: float
) -> tuple[list[float], list[float]]:
    """Return by instruction how long the higher clock of the one before, and after, reaches into it.

    A lower clock is asked for when the instruction before has ended. A higher one is in force when its
    instruction begins. It is asked for so early that half of the wait would do: other stages may be early.
    """
    starts_s, time_s = graph.starts_s(durations_s), graph.makespan_s(durations_s)
    before_s, after_s = list(starts_s), list(starts_s)
    for chain in graph.orders:
        ended_s = starts_s[chain[-1]] + durations_s[chain[-1]] - time_s
        for one, two in pairwise((chain[-1], *chain)):
            wait_s = starts_s[two] - ended_s
            before_s[two], after_s[one] = max(switching_s - wait_s, 0.0), max(switching_s - wait_s / 2, 0.0)
            ended_s = starts_s[two] + durations_s[two]
    return before_s, after_s


def _clocks_mhz(graph: PipelineGraph, profile: PipelineProfile, choice: Sequence[int]) -> tuple[int, ...]:
    pairs = zip(graph.instructions, choice, strict=True)
    return tuple(profile.of(each)[at].clock_mhz for each, at in pairs)


def _choices(
    graph: PipelineGraph,
    profile: PipelineProfile,
    point: FrontierPoint,
    reserves_s: Sequence[float],
    deadline_s: float,
    switching_s: float,
    changes_per_s: float,
) -> Iterator[tuple[int, ...]]:
    """Yield choices of options with fewer changes, until one has few enough."""
    top = _clocks_mhz(graph, profile, [0] * len(graph.instructions))
    mean_j = (play(graph, profile, top, 0.0)[1] - point.bound_j) / len(graph.instructions)
    solved: dict[tuple[int, ...], FrontierPoint] = {}  # one of five groupings was there before
    for share in (*CHANGE_SHARES, *DEARER):
        priced = point
        for _ in range(ROUNDS):
            pairs = zip(graph.instructions, priced.choice, strict=True)
            edges_s = overlaps_s(graph, [profile.of(each)[at].time_s for each, at in pairs], switching_s)
            groups = tuple(_runs(graph, profile, priced.prices_w, edges_s, share * mean_j))
            if groups not in solved:
                program = FrontierProgram(graph, profile, groups, reserves_s)
                solved[groups] = program.solve(deadline_s, quick=True)
            priced = solved[groups]
            yield priced.choice
        clocks = _clocks_mhz(graph, profile, priced.choice)
        if share >= CHANGE_SHARES[-1] and most_changes(graph, clocks) <= changes_per_s * deadline_s:
            return


def _runs(
    graph: PipelineGraph,
    profile: PipelineProfile,
    prices_w: Sequence[float],
    edges_s: tuple[Sequence[float], Sequence[float]],
    change_j: float,
) -> list[int]:
    """Return the group of each instruction: those in a row that share a clock at the least priced cost."""
    groups, count = [0] * len(graph.instructions), 0
    for stage, chain in enumerate(graph.orders):
        options = [profile.of(graph.instructions[index]) for index in chain]
        times = np.array([[each.time_s for each in known] for known in options])
        spent = np.array([[each.energy_j for each in known] for known in options])
        priced = np.array([prices_w[index] for index in chain]) - profile.waiting_w[stage]
        before, after = (np.minimum(np.array(of)[list(chain), None] / times, 1.0) for of in edges_s)
        picks = _cheapest_path(spent + priced[:, None] * times, before, after, change_j)
        for at, index in enumerate(chain):
            count += at == 0 or picks[at] != picks[at - 1]
            groups[index] = count
    return groups


def _cheapest_path(cost_j: Vector, before: Vector, after: Vector, change_j: float) -> list[int]:
    """Return the option of each instruction of a stage, of least cost with changes (Viterbi).

    ``cost_j``: shape (instructions, options), from the highest clock down. ``before``, ``after``: share of
    the instruction's time that the clock before or after it takes, if higher.
    """
    options = range(cost_j.shape[1])
    lower = np.less.outer(options, options)  # [from, to]
    total, back = cost_j[0], []
    for at in range(1, len(cost_j)):
        down = before[at] * np.subtract.outer(cost_j[at], cost_j[at])
        up = after[at - 1][:, None] * np.subtract.outer(cost_j[at - 1], cost_j[at - 1]).T
        switch = np.maximum(np.where(lower, down, up), 0.0) + change_j
        np.fill_diagonal(switch, 0.0)
        reached = total[:, None] + switch
        back.append(reached.argmin(axis=0))
        total = reached.min(axis=0) + cost_j[at]
    picks = [int(total.argmin())]
    for place in reversed(back):
        picks.append(int(place[picks[-1]]))
    return picks[::-1]


def deliver(
    command: str,
    gpu: str,
    plan: str,
    number: int,
    stage: StageRecord,
    clocks_mhz: Sequence[int],
    graph: PipelineGraph,
    profile: PipelineProfile,
    *,
    first_iteration: int | None,
    switching_s: float,
) -> ApplyPlan:
    """Return the command that has a rank's collector follow its part of a plan.

    ``clocks_mhz``: of all instructions of the graph. ``first_iteration``: that follows it; None: not yet.
    """
    chain = graph.orders[stage.began.stage]
    lengths_s = [_time_s(graph, profile, clocks_mhz, index) for index in range(len(clocks_mhz))]
    clocks = [clocks_mhz[index] for index in chain]
    _, after_s = overlaps_s(graph, lengths_s, switching_s)
    raises = []
    for at, index in enumerate(chain):
        higher = clocks[(at + 1) % len(chain)] > clocks[at]
        raises.append(max(round((lengths_s[index] - after_s[index]) * 1e6), 1) if higher else 0)
    instructions = (graph.instructions[index] for index in chain)
    return ApplyPlan(
        command=command,
        run=stage.session.started.run,
        host=stage.session.host,
        gpu=gpu,
        plan=plan,
        number=number,
        first_iteration=first_iteration,
        iteration_ms=ceil(graph.makespan_s(lengths_s) * 1000),
        codes=tuple(encode_instruction(each.kind, each.micro_batch, each.chunk) for each in instructions),
        clocks_mhz=tuple(clocks),
        raise_after_us=tuple(raises),
    )


def _time_s(graph: PipelineGraph, profile: PipelineProfile, clocks_mhz: Sequence[int], index: int) -> float:
    options = profile.of(graph.instructions[index])
    return next(option.time_s for option in options if option.clock_mhz == clocks_mhz[index])
