"""The least energy of an iteration of a given duration: a linear program and its rounding. Pure.

Instructions of one *group* run at one clock. Going down the group's lower hull of (time, cost) one segment
after the other, ``x`` in [0, 1] says how far each segment is taken. Durations and cost are linear in ``x``:

    minimize    sum cost(x) + waiting power x T        cost = energy - waiting power x time
    subject to  end(j) >= end(i) + duration(j)(x)      for every edge i -> j
                T >= end(i),  T <= deadline

Its value bounds the energy from below. Each group then takes the slowest clock of its hull at which none of
its instructions is longer than the program has it, so that the deadline holds by construction. Slack that
rounding leaves is used up greedily. With few clocks that is far from the bound: branch and bound then looks
for whole ``x``, and moves the bound as well, until they are CLOSE.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.pipeline.graph import PipelineGraph, PipelineInstruction
from analyzers.pipeline.solvers import Rows, Vector, minimize, minimize_whole
from zeus_stream.errors import RefusedError, SettingsError

StageKind = tuple[int, str, int]
"""Stage, kind and chunk: instructions that take the same time and energy."""
TINY = 1e-9
CLOSE = 0.002
"""Share by which a plan may be above the bound without a search for a better one."""
MOST_WHOLE, NODES = 1_100, 6_000
"""Entries of x that are searched, and nodes of such a search times entries: up to two seconds."""
MS = 1000.0
"""Times in the program are in ms: in seconds, tolerances of the solver would count."""


class ClockOption(Struct, frozen=True):
    """One instruction at one clock."""

    clock_mhz: int
    time_s: float
    energy_j: float


class PipelineProfile(Struct, frozen=True):
    """Time and energy of every instruction at every clock that was measured."""

    options: Mapping[StageKind, tuple[ClockOption, ...]]
    """By instruction: from the highest clock down, all with the same clocks within a stage."""
    waiting_w: tuple[float, ...]
    """By stage: power while it waits for another stage."""
    spread_s: Mapping[StageKind, float] = MappingProxyType({})
    """By instruction: robust standard deviation of its time at the highest clock."""

    def of(self, each: PipelineInstruction) -> tuple[ClockOption, ...]:
        return self.options[each.stage, each.kind, each.chunk]


class FrontierPoint(Struct, frozen=True):
    """Clocks for one deadline."""

    choice: tuple[int, ...]
    """By instruction: position of its option in the profile."""
    time_s: float
    """Duration of an iteration by the profile."""
    energy_j: float
    bound_j: float
    """No clocks of these groups need less, by the profile."""
    prices_w: tuple[float, ...]
    """By instruction: energy of the bound that a second more of it would cost, J/s."""


class FrontierProgram:
    """The linear program of one graph, profile and grouping, for any number of deadlines."""

    def __init__(
        self,
        graph: PipelineGraph,
        profile: PipelineProfile,
        groups: Sequence[int],
        reserves_s: Sequence[float] = (),
    ) -> None:
        """``groups``: of each instruction, any numbers. A group stays within one stage.

        ``reserves_s``: by instruction, kept free before those of other stages that wait for it, if there is
        slack. Raises SettingsError: the profile lacks an instruction, or its clocks do not fit together.
        """
        _check(graph, profile)
        self._graph = graph
        self._reserves_s = reserves_s if any(reserves_s) else ()
        self._waiting_w = sum(profile.waiting_w[: graph.stages])
        self._times = [np.array([o.time_s for o in profile.of(each)]) for each in graph.instructions]
        self._costs = [
            np.array([o.energy_j - profile.waiting_w[each.stage] * o.time_s for o in profile.of(each)])
            for each in graph.instructions
        ]
        """By instruction and option, J: waiting power counts for the whole iteration."""
        names = {name: index for index, name in enumerate(dict.fromkeys(groups))}
        self._group = [names[name] for name in groups]
        self._members: list[list[int]] = [[] for _ in names]
        for index, group in enumerate(self._group):
            self._members[group].append(index)
        self._hulls = [
            lower_hull(
                np.sum([self._times[i] for i in members], axis=0),
                np.sum([self._costs[i] for i in members], axis=0),
            )
            for members in self._members
        ]
        fastest = [hull[0][0] for hull in self._hulls]
        self.fastest_s = self._makespan_s(fastest)
        self._reserved_s = self._makespan_s(fastest, self._reserves_s)

    def solve(self, deadline_s: float, *, quick: bool = False) -> FrontierPoint:
        """Return clocks of about the least energy for an iteration of at most ``deadline_s``.

        ``quick``: what rounding gives is enough. Raises RefusedError: no clocks meet the deadline.
        """
        if deadline_s < self.fastest_s * (1 - TINY):
            raise RefusedError(
                f"pipeline: could not plan an iteration of {deadline_s:.6g} s: at the highest clocks it takes"
                f" {self.fastest_s:.6g} s. Allow at least that."
            )
        deadline_s = max(deadline_s, self.fastest_s)
        cost, at_most, equal, upper, fixed_j = self._program(deadline_s)
        x, prices, value_j = minimize(cost, at_most, equal, upper)
        first, total = self._columns()
        spans_s = (x[first[-1] : total] / MS).tolist()
        bound_j, prices_w = value_j + fixed_j, prices * MS
        picked = [self._round(group, spans_s) for group in range(len(self._members))]
        picked = self._use_slack(picked, min(float(x[total]) / MS, deadline_s))
        point = self._point(picked, bound_j, prices_w)
        if quick or point.energy_j <= bound_j * (1 + CLOSE) or first[-1] > MOST_WHOLE:
            return point
        for begin, end in pairwise(first):
            for at in range(begin + 1, end):  # a segment only after the one before
                at_most.add([(at, 1.0), (at - 1, -1.0)], 0.0)
        nodes, close = max(NODES // first[-1], 1), 0.9 * CLOSE * bound_j / max(abs(value_j), TINY)
        found, least_j = minimize_whole(cost, at_most, equal, upper, first[-1], nodes, close)
        bound_j = max(bound_j, least_j + fixed_j)
        if found is not None:
            picked = [round(found[begin:end].sum()) for begin, end in pairwise(first)]
            durations_s = [float(self._hull_times(i)[picked[group]]) for i, group in enumerate(self._group)]
            if self.holds(durations_s, deadline_s):
                other = self._point(self._use_slack(picked, deadline_s), bound_j, prices_w)
                point = min(point, other, key=lambda each: each.energy_j)
        return replace(point, bound_j=min(bound_j, point.energy_j))

    def _columns(self) -> tuple[list[int], int]:
        """Return the first column of x of each group, then of the durations, and that of T; ends follow."""
        first = np.cumsum([0, *(len(hull) - 1 for hull in self._hulls)]).tolist()
        return first, first[-1] + len(self._group)

    def _program(self, deadline_s: float) -> tuple[Vector, Rows, Rows, Vector, float]:
        """Return cost, inequalities, equations and upper bounds, and what the highest clocks cost, J."""
        count = len(self._group)
        # columns: x of all groups, duration of each instruction, T, ends, and ends with the reserve
        first_x, total = self._columns()
        spans = first_x[-1]
        ends: list[tuple[int, Sequence[float]]] = [(total + 1, ())]
        if self._reserves_s:
            ends.append((total + 1 + count, self._reserves_s))
        columns = total + 1 + count * len(ends)
        cost, upper = np.zeros(columns), np.full(columns, np.inf)
        upper[:spans] = 1.0
        cost[total], upper[total] = self._waiting_w / MS, deadline_s * MS
        fixed_j, equal, at_most = 0.0, Rows(), Rows()
        for hull, first in zip(self._hulls, first_x, strict=False):
            costs = [cost_j for _, cost_j in hull]
            fixed_j += costs[0]
            cost[first : first + len(hull) - 1] = np.diff(costs)
        for index, group in enumerate(self._group):
            times_ms = self._hull_times(index) * MS
            parts = [(first_x[group] + at, -float(step)) for at, step in enumerate(np.diff(times_ms))]
            equal.add([(spans + index, 1.0), *parts], float(times_ms[0]))
        for end, reserves_s in ends:
            self._add_order(at_most, spans, end, reserves_s)
            most_s = 0.0 if not reserves_s else self._reserved_s - self.fastest_s
            for index, after in enumerate(self._graph.successors):
                if not after:
                    at_most.add([(end + index, 1.0), (total, -1.0)], most_s * MS)
        return cost, at_most, equal, upper, fixed_j

    def _add_order(self, rows: Rows, spans: int, end: int, reserves_s: Sequence[float]) -> None:
        """Let each instruction end no sooner than its duration past the end of those before it."""
        graph = self._graph
        for index in set(range(len(self._group))) - {after for _, after in graph.edges}:
            rows.add([(spans + index, 1.0), (end + index, -1.0)], 0.0)
        for before, after in graph.edges:
            apart = graph.instructions[before].stage != graph.instructions[after].stage
            entries = [(end + before, 1.0), (spans + after, 1.0), (end + after, -1.0)]
            rows.add(entries, -reserves_s[before] * MS if apart and reserves_s else 0.0)

    def _hull_times(self, index: int) -> Vector:
        """Return the durations of an instruction along the hull of its group, s."""
        return self._times[index][[pick for pick, _ in self._hulls[self._group[index]]]]

    def _round(self, group: int, spans: Sequence[float]) -> int:
        """Return the place on a group's hull of the slowest clock at which no instruction is too long."""
        hull = self._hulls[group]
        for at in range(len(hull) - 1, 0, -1):
            pick = hull[at][0]
            if all(self._times[i][pick] <= spans[i] * (1 + TINY) for i in self._members[group]):
                return at
        return 0

    def _use_slack(self, picked: list[int], deadline_s: float) -> list[int]:
        """Lower clocks further, the best saving first, as long as the deadline holds."""
        durations = [float(self._times[i][self._hulls[g][picked[g]][0]]) for i, g in enumerate(self._group)]
        stuck: set[int] = set()
        while True:
            best, most_j = None, TINY
            for group, hull in enumerate(self._hulls):
                at = picked[group]
                if group not in stuck and at + 1 < len(hull) and hull[at][1] - hull[at + 1][1] > most_j:
                    best, most_j = group, hull[at][1] - hull[at + 1][1]
            if best is None:
                return picked
            pick = self._hulls[best][picked[best] + 1][0]
            tried = list(durations)
            for i in self._members[best]:
                tried[i] = float(self._times[i][pick])
            if self.holds(tried, deadline_s):
                durations = tried
                picked[best] += 1
            else:
                stuck.add(best)

    def holds(self, durations_s: Sequence[float], deadline_s: float) -> bool:
        """Tell whether an iteration meets the deadline, with the reserves that there is slack for."""
        if self._graph.makespan_s(durations_s) > deadline_s * (1 + TINY):
            return False
        reserved_s = deadline_s + self._reserved_s - self.fastest_s
        return self._graph.makespan_s(durations_s, self._reserves_s) <= reserved_s * (1 + TINY)

    def _makespan_s(self, picks: Sequence[int], reserves_s: Sequence[float] = ()) -> float:
        durations_s = [float(self._times[i][picks[group]]) for i, group in enumerate(self._group)]
        return self._graph.makespan_s(durations_s, reserves_s)

    def _point(self, picked: Sequence[int], bound_j: float, prices: Vector) -> FrontierPoint:
        picks = [hull[at][0] for hull, at in zip(self._hulls, picked, strict=True)]
        choice = tuple(picks[group] for group in self._group)
        time_s = self._makespan_s(picks)
        energy_j = self._waiting_w * time_s + sum(
            hull[at][1] for hull, at in zip(self._hulls, picked, strict=True)
        )
        return FrontierPoint(choice, time_s, energy_j, bound_j, tuple(prices.tolist()))


def lower_hull(time_s: Vector, cost_j: Vector) -> list[tuple[int, float]]:
    """Return (position, cost) of the options on the lower hull, from the fastest to that of least cost."""
    order = sorted(range(len(time_s)), key=lambda at: (time_s[at], cost_j[at], -at))  # of equals the lowest
    hull: list[int] = []
    for at in order:
        if hull and cost_j[at] >= cost_j[hull[-1]]:
            continue
        while len(hull) >= 2:
            one, two = hull[-2:]
            rise = (cost_j[two] - cost_j[one]) * (time_s[at] - time_s[one])
            if rise < (cost_j[at] - cost_j[one]) * (time_s[two] - time_s[one]):
                break
            hull.pop()
        hull.append(at)
    return [(at, float(cost_j[at])) for at in hull]


def _check(graph: PipelineGraph, profile: PipelineProfile) -> None:
    if len(profile.waiting_w) < graph.stages:
        raise _wrong(
            f"the profile has the waiting power of {len(profile.waiting_w)} of {graph.stages} stages",
            "Measure every stage",
        )
    clocks_of: dict[int, tuple[int, ...]] = {}
    for each in graph.instructions:
        options = profile.options.get((each.stage, each.kind, each.chunk))
        if not options:
            raise _wrong(
                f"{each.kind} on stage {each.stage} has no profile", "Measure it at one clock or more"
            )
        clocks = tuple(option.clock_mhz for option in options)
        if clocks_of.setdefault(each.stage, clocks) != clocks:
            raise _wrong(f"instructions on stage {each.stage} have different clocks", "Measure all at each")


def _wrong(why: str, cure: str) -> SettingsError:
    return SettingsError(f"pipeline: could not plan clocks: {why}. {cure}.")
