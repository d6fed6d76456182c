"""Profiling of a pipeline: one clock after the other, from high to low, with what was measured. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

from analyzers.fleet.fleet import Fleet
from analyzers.pipeline.profile import EnergyWindow, StageProfile, fit_stage
from analyzers.pipeline.stage_record import StageRecord, spans_of, windows_of
from analyzers.pipeline.watching.measured import Iterations

LEAST_CLOCKS = 4
"""Before profiling may stop."""
MOST_SLOWDOWN = 2.0


def clocks_to_visit(known_mhz: Sequence[int], most: int, lowest: float) -> list[int]:
    """Return at most so many common clocks to try, descending, of the ``lowest`` share of the highest up."""
    clocks = sorted((mhz for mhz in known_mhz if mhz >= lowest * max(known_mhz)), reverse=True)
    if len(clocks) <= most:
        return clocks
    return [clocks[round(at * (len(clocks) - 1) / (most - 1))] for at in range(most)]


def are_there(stages: Sequence[StageRecord]) -> bool:
    """Tell whether every stage has all its ranks, and each has run two iterations."""
    if {stage.began.stage for stage in stages} != set(range(stages[0].began.stages)):
        return False
    if len(stages) < max(stage.session.started.world_size for stage in stages):
        return False
    return all(stage.session.admitted is not None and len(stage.ran) > 1 for stage in stages)


def objection(stages: Sequence[StageRecord]) -> str | None:
    """Return why the clocks of ranks may not be set, if they may not."""
    for stage in stages:
        admitted = stage.session.admitted
        if admitted is not None and not admitted.may_command:
            return admitted.reason
        if not stage.session.gpus:
            return "a stage has no GPU"
    return None


def common_clocks(stages: Sequence[StageRecord], fleet: Fleet) -> list[int]:
    """Return the graphics clocks that all GPUs of a pipeline have, descending."""
    known = []
    for stage in stages:
        for gpu in stage.session.gpus:
            found = fleet.gpus[gpu].found
            known.append(set() if found is None else set(found.graphics_clocks_mhz))
    return sorted(set.intersection(*known), reverse=True) if known else []


@dataclass(slots=True, kw_only=True)
class ClockVisits:
    """Measurements until now, by clock."""

    iterations: int
    """To be measured at each clock."""
    visited: int = 0
    by_clock: list[Iterations] = field(default_factory=list)
    own_s: dict[int, list[float]] = field(default_factory=dict)
    """By stage, at the highest clock: from the begin of its first instruction to the end of its last."""
    durations_s: dict[int, dict[tuple[str, int, int], list[float]]] = field(default_factory=dict)
    """By stage and (kind, chunk, clock)."""
    _windows: dict[int, list[EnergyWindow]] = field(default_factory=dict)

    def measure(
        self, clock_mhz: int, stages: Sequence[StageRecord], set_ns: Mapping[str, int], fleet: Fleet
    ) -> bool:
        """Measure a clock that is in force since ``set_ns`` (by host). False: too few iterations ran yet."""
        found = []
        for stage in stages:
            # the first whole one is left out: it may wait for stages that were set later
            whole = stage.since(set_ns[stage.session.host])[1 : self.iterations + 2]
            if len(whole) < self.iterations + 1:
                return False
            found += [(stage, whole, fleet.gpus[gpu].timeline) for gpu in stage.session.gpus]
        found.sort(key=lambda each: each[0].began.stage)
        iterations = Iterations()
        if not iterations.add([(timeline, whole) for _, whole, timeline in found]):
            return False
        for stage, whole, timeline in found:
            if not self.by_clock:
                own_s = self.own_s.setdefault(stage.began.stage, [])
                own_s += [(each.ended_ns - each.t_ns) / 1e9 for each in whole]
            spans = spans_of(whole[:-1])
            durations_s = self.durations_s.setdefault(stage.began.stage, {})
            for span in spans:
                name = span.kind, span.chunk, clock_mhz
                durations_s.setdefault(name, []).append((span.end_ns - span.begin_ns) / 1e9)
            self._windows.setdefault(stage.began.stage, []).extend(windows_of(spans, clock_mhz, timeline))
        self.by_clock.append(iterations)
        self.visited += self.iterations
        return True

    @property
    def enough(self) -> bool:
        """Tell whether lower clocks would save nothing: energy rose twice, or time doubled."""
        if len(self.by_clock) < LEAST_CLOCKS:
            return False
        last_j, before_j, first_j = (mean(each.energies_j) for each in self.by_clock[:-4:-1])
        slower = mean(self.by_clock[-1].times_s) > MOST_SLOWDOWN * mean(self.by_clock[0].times_s)
        return last_j > before_j > first_j or slower

    @property
    def iteration_s(self) -> float | None:
        """Return the mean duration of an iteration at the highest clock; None: not measured."""
        return mean(self.by_clock[0].times_s) if self.by_clock else None

    def fit(self) -> list[StageProfile]:
        """Return the profile of each stage. Raises RefusedError or UnsupportedError."""
        return [
            fit_stage(stage, self.durations_s[stage], self._windows[stage])
            for stage in sorted(self.durations_s)
        ]
