"""Profiling of a pipeline: one clock after the other, from high to low, with what was measured. Pure."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Clocks, Fleet
from analyzers.pipeline.chosen_plans import Iterations
from analyzers.pipeline.profile import EnergyWindow, fit_stage
from analyzers.pipeline.stage_record import StageRecord, spans_of, windows_of
from analyzers.results.pipeline_rows import InstructionRow
from analyzers.results.result import ApplyControl, ApplyPlan, Command, RestoreControl, Result, in_order
from zeus_stream.protocol.notes import ControlApplied, ControlRefused

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
            whole = [ran for ran in stage.ran if ran.t_ns >= set_ns[stage.session.host]][
                1 : self.iterations + 2
            ]
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

    def fit(self, run: str) -> list[InstructionRow]:
        """Return the profile of all stages. Raises RefusedError or UnsupportedError."""
        return [
            row
            for stage in sorted(self.durations_s)
            for row in fit_stage(run, stage, self.durations_s[stage], self._windows[stage])
        ]


class HeldClocks:
    """The clocks that one run holds, and its commands without outcome."""

    def __init__(self, run: str, fleet: Fleet, pending: Pending) -> None:
        """``pending``: remembers commands until they have an outcome."""
        self.now: Clocks = {}
        """By host: frame time of the event under way."""
        self.set_ns: dict[str, int] = {}
        """By host: when its last clock was set."""
        self._calls_us: deque[int] = deque(maxlen=1_000)
        """The driver's calls that set a clock."""
        self._run, self._fleet, self._pending = run, fleet, pending
        self._waiting: dict[str, str] = {}
        """By command without outcome: its GPU."""
        self._held: dict[str, None] = {}
        self._count = 0

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    @property
    def call_s(self) -> float:
        """Return what nine in ten of the driver's calls that set a clock take at most, s; 0: not known."""
        calls = sorted(self._calls_us)
        return calls[9 * len(calls) // 10] / 1e6 if calls else 0.0

    def name(self, session: str, gpu: str) -> str:
        """Return the next command's id: the same when the stream is interpreted again."""
        self._count += 1
        return f"{self._run[:100]}/{session[:8]}-clock{self._count}/{gpu[-12:]}"

    def ask(self, commands: Iterable[ApplyControl | ApplyPlan]) -> Result:
        """Return commands as rows and instructions. Outcomes of earlier ones are awaited no more."""
        asked = tuple(commands)
        self._waiting = {command.command: command.gpu for command in asked}
        return self._send(asked)

    def _send(self, commands: Iterable[Command]) -> Result:
        return in_order(
            [Result((self._pending.ask(each, self._run, self.now[each.host]),), (each,)) for each in commands]
        )

    def settle(self, host: str, note: ControlApplied | ControlRefused) -> bool:
        """Take in the outcome of a command. False: it is not awaited."""
        if self._waiting.pop(note.command, None) is None:
            return False
        if isinstance(note, ControlApplied):
            self._held[note.gpu] = None
            if note.took_us:
                self._calls_us.append(note.took_us)
            self.set_ns[host] = max(note.t_ns, self.set_ns.get(host, 0))
        return True

    def lose(self, gpu: str) -> bool:
        """Take in that a lease ended. False: it was not held, or the GPU has been asked again since."""
        if gpu not in self._held:
            return False
        del self._held[gpu]
        return gpu not in self._waiting.values()

    def give_back(self, session: str) -> Result:
        """Return commands that unlock every clock that is held or may be by now."""
        held = self._held | dict.fromkeys(self._waiting.values())
        self._held, self._waiting = {}, {}
        commands = [
            RestoreControl(
                command=self.name(session, gpu),
                run=self._run,
                host=self._fleet.gpus[gpu].host,
                gpu=gpu,
                control="graphics_clock",
            )
            for gpu in held
        ]
        return self._send(commands)
