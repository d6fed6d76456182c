"""Profiling of a pipeline: one clock after the other, from high to low, with what was measured. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analyzers.fleet.fleet import Fleet
from analyzers.pipeline.profile import EnergyWindow, StageProfile, fit_stage
from analyzers.pipeline.stage_record import StageRecord, energy_j, spans_of, windows_of

LOWEST = 0.45
"""Of the highest clock: lower ones are not tried."""
CLOCKS = 9
"""Tried at most."""
LEAST_CLOCKS = 4
"""Before profiling may stop."""
MOST_SLOWDOWN = 2.0


def clocks_to_visit(known_mhz: Sequence[int]) -> list[int]:
    """Return the clocks to be tried, descending, of those that all GPUs have."""
    clocks = sorted((mhz for mhz in known_mhz if mhz >= LOWEST * max(known_mhz)), reverse=True)
    if len(clocks) <= CLOCKS:
        return clocks
    return [clocks[round(at * (len(clocks) - 1) / (CLOCKS - 1))] for at in range(CLOCKS)]


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
        if len(stage.session.gpus) != 1:
            return "a stage has more or less than one GPU"
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
    iterations_s: list[float] = field(default_factory=list)
    """Mean duration of an iteration, by clock."""
    energies_j: list[float] = field(default_factory=list)
    """Of an iteration, all GPUs, by clock."""
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
            (gpu,) = stage.session.gpus
            timeline = fleet.gpus[gpu].timeline
            spent_j = energy_j(timeline, whole[0].t_ns, whole[-1].t_ns)
            if spent_j is None:
                return False
            found.append((stage, whole, timeline, spent_j))
        for stage, whole, timeline, _ in found:
            spans = spans_of(whole[:-1])
            durations_s = self.durations_s.setdefault(stage.began.stage, {})
            for span in spans:
                name = span.kind, span.chunk, clock_mhz
                durations_s.setdefault(name, []).append((span.end_ns - span.begin_ns) / 1e9)
            self._windows.setdefault(stage.began.stage, []).extend(windows_of(spans, clock_mhz, timeline))
        first = next(whole for stage, whole, _, _ in found if stage.began.stage == 0)
        self.iterations_s.append((first[-1].t_ns - first[0].t_ns) / 1e9 / self.iterations)
        self.energies_j.append(sum(spent_j for *_, spent_j in found) / self.iterations)
        self.visited += self.iterations
        return True

    @property
    def enough(self) -> bool:
        """Tell whether lower clocks would save nothing: energy rose twice, or time doubled."""
        if len(self.energies_j) < LEAST_CLOCKS:
            return False
        rising = self.energies_j[-1] > self.energies_j[-2] > self.energies_j[-3]
        return rising or self.iterations_s[-1] > MOST_SLOWDOWN * self.iterations_s[0]

    def fit(self) -> list[StageProfile]:
        """Return the profile of each stage. Raises RefusedError or UnsupportedError."""
        return [
            fit_stage(stage, self.durations_s[stage], self._windows[stage])
            for stage in sorted(self.durations_s)
        ]
