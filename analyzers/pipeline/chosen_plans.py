"""The plans of one pipeline: that of every replica, why it has it, and what it saves. Pure.

    profile                          -> the frontier
    slowdown wanted, power limits    -> the usual plan
    a replica that is slower         -> the plan of the others, for its duration

Promises come from a profile; what a plan saves is measured. Energies of single iterations are interpolated
between refreshes of a counter: an error at one end is in both neighbours with opposite signs, so intervals
are rather too wide.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt
from statistics import mean, median, stdev

import numpy as np
from msgspec import Struct

from analyzers.fleet.fleet import Division
from analyzers.measurement.timeline import Timeline
from analyzers.pipeline.frontier import PipelineProfile
from analyzers.pipeline.graph import PipelineGraph
from analyzers.pipeline.plan import FrequencyPlan, make_plans, play, unplanned_s
from analyzers.pipeline.stage_limits import are_below, divide, within_limits
from analyzers.pipeline.stage_record import StageRecord
from analyzers.power_limit.run_settings import PipelineSettings
from analyzers.results.pipeline_rows import PlanPointRow, PlanRow
from zeus_stream.bench.student import student_quantile
from zeus_stream.protocol.pipelines import IterationRan

WATCHED = 10
"""Iterations that are compared with a promise."""
LATE = 1.01
"""Times a promise that iterations may take."""
KEPT = 400
"""Latest iterations that a comparison is made from."""
BLOCK, MOST_BLOCK = 10, 100
"""Iterations that are taken in at once; those whose energy is not known by then are left out."""
OFF = 0.05
"""Share by which the duration of an iteration by its profile may differ from the measured one."""
DEPENDS = 1.02
"""Times as long at the lowest clock as at the highest. Below, an instruction does not depend on it."""


class Change(Struct, frozen=True):
    """A share by which something is less than before, with its 95 % interval."""

    share: float
    low: float
    high: float


@dataclass(slots=True)
class Iterations:
    """Durations and energies of iterations, all GPUs together."""

    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    energies_j: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    last: int = -1
    """Number of the last one."""

    def add(self, stages: Sequence[tuple[Timeline, Sequence[IterationRan]]]) -> bool:
        """Take in iterations in a row, by stage, one more than count. False: an energy is not known (yet)."""
        energies = [energies_j(timeline, [each.t_ns for each in ran]) for timeline, ran in stages]
        known = [each for each in energies if each is not None]
        if len(known) < len(energies):
            return False
        self.energies_j.extend(np.sum(known, axis=0).tolist())
        self.times_s.extend((two.t_ns - one.t_ns) / 1e9 for one, two in pairwise(stages[0][1]))
        return True

    def follow(self, stages: Sequence[tuple[Timeline, StageRecord]], after: int) -> bool:
        """Take in what every stage has run after an iteration and since the last time, in blocks."""
        first = max(after, self.last) + 1
        end = min(stage.iteration for _, stage in stages)
        if end - first < BLOCK:
            return False
        ran = [
            (timeline, [each for each in stage.ran if first <= each.iteration <= end])
            for timeline, stage in stages
        ]
        whole = all(len(each) == end - first + 1 for _, each in ran)
        taken = whole and self.add(ran)
        if taken or not whole or end - first > MOST_BLOCK:
            self.last = end - 1
        return taken


def less(before: Sequence[float], now: Sequence[float]) -> Change | None:
    """Return by which share a mean is less than before; None: too few values."""
    if min(len(before), len(now)) < 2:
        return None
    ratio = mean(now) / mean(before)
    parts = [stdev(each) ** 2 / len(each) / mean(each) ** 2 for each in (before, now)]
    total = sum(parts)
    each_freedom = zip(parts, (len(before) - 1, len(now) - 1), strict=True)
    freedom = total**2 / sum(part**2 / of for part, of in each_freedom) if total else 1e9  # Welch
    off = ratio * student_quantile(0.975, freedom) * sqrt(total)
    return Change(1 - ratio, 1 - ratio - off, 1 - ratio + off)


def energies_j(timeline: Timeline, edges_ns: Sequence[int]) -> np.ndarray | None:
    """Return the energies of a GPU between instants, interpolated between refreshes; None: not known."""
    knots = timeline.knots()
    if not len(knots.mid_ns) or not knots.mid_ns[0] <= edges_ns[0] < edges_ns[-1] <= knots.mid_ns[-1]:
        return None
    return np.diff(np.interp(edges_ns, knots.mid_ns, knots.energy_uj)) / 1e6


def compare(ran: Sequence[IterationRan], after: int, promised_s: float) -> tuple[float, bool] | None:
    """Return the mean duration of the latest WATCHED iterations, s, and whether it kept a promise.

    ``after``: only later ones ran under the plan. None: too few ran yet. A promise counts as kept up to LATE
    times, and the 95 % interval beyond it.
    """
    pairs = pairwise(each for each in ran if each.iteration > after)
    following = [(two.t_ns - one.t_ns) / 1e9 for one, two in pairs if two.iteration == one.iteration + 1]
    times_s = following[-WATCHED:]
    if len(times_s) < WATCHED or not any(times_s):
        return None
    measured_s = mean(times_s)
    return measured_s, measured_s <= LATE * promised_s + 1.96 * stdev(times_s) / sqrt(len(times_s))


def doubt(
    graph: PipelineGraph,
    profile: PipelineProfile,
    iterations_s: Sequence[float],
    own_s: Sequence[Sequence[float]],
    *,
    by_device: bool,
) -> str:
    """Return why a profile does not describe the iterations that it was measured in; empty: it does.

    ``iterations_s``: from begin to begin, at the highest clock. ``own_s``: by stage, from the begin of its
    first instruction to the end of its last. ``by_device``: instructions are stamped when the GPU reaches
    them. Otherwise a queue between Python and the GPU is seen only in the whole iteration.
    """
    if all(known[-1].time_s < DEPENDS * known[0].time_s for known in profile.options.values()):
        return "no instruction takes longer at a lower clock"
    lengths_s = [profile.of(each)[0].time_s for each in graph.instructions]
    starts_s = graph.starts_s(lengths_s)
    if by_device:
        found = [
            (
                starts_s[chain[-1]] + lengths_s[chain[-1]] - starts_s[chain[0]],
                median(took_s),
                f"stage {stage}",
            )
            for stage, (chain, took_s) in enumerate(zip(graph.orders, own_s, strict=True))
        ]
    else:
        found = [(graph.makespan_s(lengths_s), median(iterations_s), "an iteration")]
    profiled_s, took_s, what = max(found, key=lambda each: abs(each[0] / each[1] - 1))
    if abs(profiled_s / took_s - 1) <= OFF:
        return ""
    why = "" if by_device else "; instructions are stamped where Python dispatches them"
    return f"by the profile {what} takes {profiled_s:.4g} s, and it took {took_s:.4g} s{why}"


RECENT = 2
"""Iterations in a row that show that a replica is slower, or no longer."""
SLOWER = 1.03
"""Times as long that a straggler takes, beside its promise, and beside what the next slowest one takes."""
SAME_TIME = 0.02
"""Of the duration of a straggler's iteration, after which it is answered again."""


class Straggler(Struct, frozen=True):
    """A replica that is slower than its plan."""

    replica: int
    time_s: float
    """Of its iterations."""
    slower: float
    """Times as long as promised, and as the next slowest replica."""


def replicas_of(stages: Iterable[StageRecord]) -> dict[int, list[StageRecord]]:
    """Return the stages of each replica: the n-th lowest rank (or t tensor-parallel) of each stage."""
    found: dict[int, list[StageRecord]] = {}
    seen: dict[int, int] = {}
    for stage in sorted(stages, key=lambda each: each.session.started.rank):
        place = seen.get(stage.began.stage, 0)
        seen[stage.began.stage] = place + 1
        found.setdefault(place // stage.began.tensor_parallel, []).append(stage)
    return found


def own_times_s(replicas: Mapping[int, Sequence[StageRecord]], after: int) -> dict[int, list[float]]:
    """Return how long the latest iterations after this one that all replicas ran took, at most RECENT.

    Replicas wait for each other at the end of an iteration. So the time of one by itself is that of its stage
    0, which begins first and ends last.
    """
    firsts = {at: next(each for each in stages if each.began.stage == 0) for at, stages in replicas.items()}
    until = min((stage.iteration for stage in firsts.values()), default=-1)
    ran = {at: [e for e in stage.ran if after < e.iteration <= until] for at, stage in firsts.items()}
    return {at: [(e.ended_ns - e.t_ns) / 1e9 for e in of[-RECENT:]] for at, of in ran.items()}


def find_straggler(
    replicas: Mapping[int, Sequence[StageRecord]],
    promised_s: Mapping[int, float],
    after: int,
    known: Straggler | None,
) -> Straggler | None:
    """Return the slowest replica, if it is slower than promised and than the others, beside their promises.

    A busy host makes all replicas slower: what the next slowest one is slower by does not count. Another
    replica than the known one is a straggler only after a return to the usual plan.
    """
    if len(replicas) < 2 or any(all(each.began.stage for each in of) for of in replicas.values()):
        return known
    times_s = own_times_s(replicas, after)
    if any(len(each) < RECENT for each in times_s.values()):
        return known
    least = {replica: min(each) / promised_s[replica] for replica, each in times_s.items()}
    slowest = max(least, key=lambda replica: least[replica])
    common = max(1.0, *(ratio for replica, ratio in least.items() if replica != slowest))
    if least[slowest] < SLOWER * common:
        gone = known is not None and max(times_s[known.replica]) < SLOWER * common * promised_s[known.replica]
        return None if known is None or gone else known
    if known is not None and known.replica != slowest:
        return None  # the slowest one has a plan for the known one's duration: all get the usual plan first
    time_s = sum(times_s[slowest]) / RECENT / common
    if known is not None and known.replica == slowest and abs(time_s / known.time_s - 1) < SAME_TIME:
        return known
    return Straggler(slowest, time_s, time_s / promised_s[slowest])


SLOWDOWNS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5)
"""Points of the frontier that are stored."""
LITTLE = 0.01
"""Share of an iteration's energy; a plan that saves less says what more time would save."""


class ChosenPlans:
    """The plans of one run, once its profile is known."""

    def __init__(
        self,
        run: str,
        settings: PipelineSettings,
        graph: PipelineGraph,
        profile: PipelineProfile,
        gpus: int = 1,
    ) -> None:
        """``gpus``: that run a stage together. A profile is that of one of them; rows are of all."""
        self.graph, self.profile = graph, profile
        self.plan: FrequencyPlan | None = None
        """The usual one."""
        self.straggler: Straggler | None = None
        """It has the usual plan, and the other replicas one for its duration."""
        self.limits_w: dict[int, float] = {}
        """By stage, what power budgets allow a GPU, when the plan was made."""
        self.is_promise = True
        """False: a limit is below the lowest clock, and makes iterations longer than the profile says."""
        self.slower = 0
        """Plans that were replaced since iterations took too long."""
        self._run, self._settings, self.gpus = run, settings, gpus
        self._within = profile
        """The clocks of the profile that the limits allow."""
        self._answer: FrequencyPlan | None = None
        self.number = 0
        """Of the plan that was chosen last."""
        self._points: list[PlanPointRow] = []
        self._top = tuple(profile.of(each)[0].clock_mhz for each in graph.instructions)
        self.base_s, self.base_j = play(graph, profile, self._top, 0.0)
        """Duration and energy of an iteration at the highest clocks, by the profile."""

    @property
    def last(self) -> FrequencyPlan:
        plan = self._answer or self.plan
        assert plan is not None
        return plan

    @property
    def name(self) -> str:
        """The name of that plan; the same for all ranks."""
        return f"{self._run[:100]}/{self.number}"

    def frontier(self) -> list[PlanPointRow]:
        slowdowns = sorted({*SLOWDOWNS, self._settings.slowdown})
        plans = self._make(self.profile, [self.base_s * each for each in slowdowns], quick=True)
        self._points = [
            PlanPointRow(
                run=self._run,
                slowdown=slowdown,
                time_s=plan.time_s,
                energy_j=self.gpus * plan.energy_j,
                bound_j=self.gpus * plan.bound_j,
                unplanned_s=self.base_s,
                unplanned_j=self.gpus * self.base_j,
            )
            for slowdown, plan in zip(slowdowns, plans, strict=True)
        ]
        return self._points

    def clock_mhz(self, stage: int, position: int) -> int:
        """Return the clock of an instruction under the plan chosen last."""
        return self.last.clocks_mhz[self.graph.orders[stage][position]]

    @property
    def lowers_clocks(self) -> bool:
        return self.last.clocks_mhz != self._top

    def _next_point(self, plan: FrequencyPlan) -> str:
        """Return what more time would save, if the plan saves next to nothing."""
        if plan.energy_j < (1 - LITTLE) * self.base_j:
            return ""
        for point in self._points:
            saved = 1 - point.energy_j / point.unplanned_j
            if point.time_s > plan.time_s and saved >= LITTLE:
                more = f"{100 * (point.slowdown - 1):.3g} % more would save {100 * saved:.2g} %"
                return f"little is to save without more time; {more}"
        return "little is to save, even with more time"

    def divide(self, limits_mw: Sequence[int], gpus: Mapping[int, Sequence[str]]) -> Division:
        """Return limits by GPU, for each mean limit (ascending). ``gpus``: of each stage."""
        counts = [len(gpus[stage]) for stage in sorted(gpus)]
        shares = divide(self.graph, self.profile, limits_mw, counts)
        of_gpu = {
            gpu: tuple(of_stages[stage] for of_stages, _ in shares)
            for stage in sorted(gpus)
            for gpu in gpus[stage]
        }
        return Division(tuple(shares[-1][1] / time_s for _, time_s in shares), of_gpu)

    def choose(self, limits_w: Mapping[int, float], t_ns: int) -> PlanRow:
        """Choose the plan of all replicas: as slow as wanted, or as slow as limits make it."""
        plan, slowdown, why = self._plan_within(limits_w)
        return self._row(plan, slowdown, t_ns, why)

    def adapt(self, limits_w: Mapping[int, float], t_ns: int) -> PlanRow | None:
        """Choose the plan of all replicas for other limits. None: they have these clocks already."""
        before = None if self.straggler else self.last.clocks_mhz
        plan, slowdown, why = self._plan_within(limits_w)
        return None if plan.clocks_mhz == before else self._row(plan, slowdown, t_ns, why)

    def _plan_within(self, limits_w: Mapping[int, float]) -> tuple[FrequencyPlan, float, str]:
        """Return the plan of all replicas from now on, the slowdown asked for, and the reason."""
        self.straggler = self._answer = None
        self.limits_w = dict(limits_w)
        self._within = within_limits(self.profile, limits_w)
        self.is_promise = not are_below(self.profile, limits_w)
        fastest_s = unplanned_s(self.graph, self._within)
        wanted_s = max(fastest_s, self.base_s * self._settings.slowdown / LATE**self.slower)
        (self.plan,) = self._make(self._within, [wanted_s])
        why = self._next_point(self.plan)
        if limits_w:
            least_w, most_w = f"{min(limits_w.values()):.4g}", f"{max(limits_w.values()):.4g}"
            why = f"power budgets allow a GPU {least_w if least_w == most_w else f'{least_w} to {most_w}'} W"
        why += "" if self.is_promise else ", less than it draws at the lowest clock that was measured"
        return self.plan, max(self._settings.slowdown, wanted_s / self.base_s), why

    def answer(self, straggler: Straggler | None, t_ns: int) -> PlanRow | None:
        """Choose the plan of the replicas beside a straggler, or the usual one again; None: no change."""
        assert self.plan is not None
        before, clocks_mhz = self.straggler, self.last.clocks_mhz
        self.straggler, self._answer = straggler, None
        if straggler is not None:
            most_s = max(straggler.time_s, self.plan.time_s)
            (self._answer,) = self._make(self._within, [most_s], quick=True)
        same = before is None or straggler is None or before.replica == straggler.replica
        if same and self.last.clocks_mhz == clocks_mhz:
            return None
        if straggler is None or self._answer is None:
            why = "no replica is slower than the others any more"
            return self._row(self.plan, self._settings.slowdown, t_ns, why)
        longer = 100 * (straggler.slower - 1)
        why = f"replica {straggler.replica} takes {longer:.0f} % longer than promised"
        return self._row(self._answer, straggler.time_s / self.base_s, t_ns, why)

    def concerned(self, replicas: Iterable[int]) -> list[int]:
        """Return the replicas that get the plan chosen last."""
        return [each for each in replicas if self.straggler is None or each != self.straggler.replica]

    def promised_s(self, replicas: Sequence[int]) -> dict[int, float]:
        """Return the duration of an iteration that each replica was promised."""
        assert self.plan is not None
        promised_s = dict.fromkeys(replicas, self.plan.time_s)
        return promised_s | dict.fromkeys(self.concerned(replicas), self.last.time_s)

    def _make(
        self, profile: PipelineProfile, deadlines_s: Sequence[float], *, quick: bool = False
    ) -> tuple[FrequencyPlan, ...]:
        return make_plans(
            self.graph,
            profile,
            deadlines_s,
            switching_s=self._settings.switching_s,
            changes_per_s=self._settings.changes_per_s,
            reserve=2.0**self.slower,
            quick=quick,
        )

    def _row(self, plan: FrequencyPlan, slowdown: float, t_ns: int, reason: str) -> PlanRow:
        self.number += 1
        return PlanRow(
            run=self._run,
            number=self.number,
            t_ns=t_ns,
            slowdown=slowdown,
            promised_s=plan.time_s,
            promised_j=self.gpus * plan.energy_j,
            unplanned_s=self.base_s,
            unplanned_j=self.gpus * self.base_j,
            first_iteration=None,
            measured_s=None,
            state="offered",
            reason=reason,
        )
