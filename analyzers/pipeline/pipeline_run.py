"""The pipeline of one run: profile it, plan its clocks, have collectors follow the plan, and watch it. Pure.

    waiting     every stage has a rank that may set its clock       -> profiling
    profiling   a clock is in force for enough iterations           -> the next lower clock
                no lower clock saves anything, or there is none     -> offering    a plan to every rank
    offering    every collector has the plan                        -> starting    its first iteration
    starting    every collector knows the first iteration           -> following
    following   iterations are longer than promised                 -> offering    a faster plan, or over
    any         a command is refused, or ranks end                  -> over        every clock is given back
                a lease ends                                        -> offering again, a few times

Ranks of one stage are replicas: they are profiled together, and have the same plan.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from math import ceil, sqrt
from statistics import mean, stdev
from typing import Literal, TypeAlias, assert_never

from analyzers.fleet.fleet import Clocks, Fleet
from analyzers.pipeline.clock_visits import ClockVisits, clocks_to_visit
from analyzers.pipeline.frontier import PipelineProfile
from analyzers.pipeline.graph import PipelineGraph, from_orders
from analyzers.pipeline.pipeline_events import (
    ClockLost,
    ClockSettled,
    PipelineEvent,
    StageBegan,
    StageEnded,
    StageRan,
)
from analyzers.pipeline.plan import FrequencyPlan, make_plan, make_plans, play
from analyzers.pipeline.plan_delivery import deliver, instruction_rows, point_rows
from analyzers.pipeline.profile import combine
from analyzers.pipeline.stage_record import StageRecord
from analyzers.power_limit.run_settings import PipelineSettings
from analyzers.results.instructions import ApplyControl, ApplyPlan, Command, RestoreControl
from analyzers.results.pipeline.pipeline_rows import PipelineRow, PlanRow
from analyzers.results.result import NOTHING, Result, in_order, rows_only
from analyzers.results.rows import Row
from zeus_stream.errors import RefusedError, SettingsError, UnsupportedError
from zeus_stream.protocol.notes import ControlApplied

State: TypeAlias = Literal["waiting", "profiling", "offering", "starting", "following", "over"]
SLOWDOWNS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3)
"""Points of the frontier that are stored."""
WATCHED = 10
"""Iterations that are compared with a promise."""
LATE = 1.01
"""Times a promise that iterations may take."""
MOST_PLANS = 4
"""Of a run, that were replaced since iterations were too long."""
MOST_OFFERS = 6
"""Of plans in a run, leases that ended included."""
HEAD_START_S = 2.0
"""From a plan's offer to its first iteration: collectors have to know it by then."""


class PipelineRun:
    """The machine of one run."""

    def __init__(self, run: str, fleet: Fleet, settings: PipelineSettings) -> None:
        self._run, self._fleet, self._settings = run, fleet, settings
        self._state: State = "waiting"
        self._reason = ""
        self._stages: dict[str, StageRecord] = {}
        """By session."""
        self._clocks: list[int] = []
        """To be visited, descending; the first is under way."""
        self._visits = ClockVisits(iterations=settings.iterations)
        self._waiting: set[str] = set()
        """Commands without outcome."""
        self._set_ns: dict[str, int] = {}
        """By host: when its last clock was set."""
        self._held: dict[str, None] = {}
        """GPUs whose clock is ours."""
        self._count = self._offers = self._slower = 0
        self._graph: PipelineGraph | None = None
        self._profile: PipelineProfile | None = None
        self._plan: FrequencyPlan | None = None
        self._row: PlanRow | None = None
        self._first_iteration = 0

    def handle(self, event: PipelineEvent, now: Clocks) -> Result:
        """Take in an event. Return rows to be stored and instructions to be carried out."""
        match event:
            case StageBegan(session, began):
                self._stages[session.session] = StageRecord(session, began)
                return rows_only([self._pipeline_row()])
            case StageRan(session, ran):
                stage = self._stages.get(session.session)
                if stage is None or self._state == "over":
                    return NOTHING
                if not stage.take(ran) and self._state != "waiting":
                    return self._give_up("instructions of an iteration are others than before")
                return self._advance(now)
            case StageEnded(session):
                if self._stages.pop(session.session, None) is None:
                    return NOTHING
                return self._give_up(f"rank {session.started.rank} has ended")
            case ClockSettled(host, note):
                if note.command not in self._waiting:
                    return NOTHING
                self._waiting.discard(note.command)
                if not isinstance(note, ControlApplied):
                    return self._give_up(note.reason)
                self._held[note.gpu] = None
                self._set_ns[host] = max(note.t_ns, self._set_ns.get(host, 0))
                return NOTHING if self._waiting else self._all_set()
            case ClockLost():
                return self._lost(event, now)
        assert_never(event)

    @property
    def empty(self) -> bool:
        """Tell whether no rank is left."""
        return not self._stages

    # ---- profiling

    def _advance(self, now: Clocks) -> Result:
        match self._state:
            case "waiting":
                return self._begin()
            case "profiling" if not self._waiting:
                return self._measure(now)
            case "following":
                return self._watch(now)
            case _:
                return NOTHING

    def _begin(self) -> Result:
        """Begin to profile once every stage has a rank whose clock may be set."""
        stages = tuple(self._stages.values())
        if {stage.began.stage for stage in stages} != set(range(stages[0].began.stages)):
            return NOTHING
        if len(stages) < max(stage.session.started.world_size for stage in stages):
            return NOTHING
        known: list[tuple[int, ...]] = []
        for stage in stages:
            admitted = stage.session.admitted
            if admitted is None or len(stage.ran) < 2:
                return NOTHING
            if not admitted.may_command:
                return self._give_up(admitted.reason)
            if len(admitted.gpus) != 1:
                return self._give_up("a stage has more or less than one GPU")
            found = self._fleet.gpus[admitted.gpus[0]].found
            known.append(() if found is None else found.graphics_clocks_mhz)
        common = set(known[0]).intersection(*known)
        if not common:
            return self._give_up("its GPUs name no graphics clock that all of them have")
        self._clocks = clocks_to_visit(sorted(common))
        return self._go("profiling", "") | self._visit()

    def _visit(self) -> Result:
        return self._ask(
            [
                ApplyControl(
                    command=self._name(gpu),
                    run=self._run,
                    host=stage.session.host,
                    gpu=gpu,
                    control="graphics_clock",
                    value=self._clocks[0],
                )
                for stage in self._stages.values()
                for gpu in stage.session.gpus
            ]
        )

    def _measure(self, now: Clocks) -> Result:
        """Go on to the next clock, or plan, once the one under way is measured."""
        stages = tuple(self._stages.values())
        if not self._visits.measure(self._clocks[0], stages, self._set_ns, self._fleet):
            return NOTHING
        self._clocks = self._clocks[1:]
        if self._clocks and not self._visits.enough:
            return self._visit()
        try:
            return self._learn() | self._offer(now)
        except (RefusedError, SettingsError, UnsupportedError) as wrong:
            return self._give_up(str(wrong))

    def _learn(self) -> Result:
        """Fit the profile, and return it with its frontier as rows."""
        measured = self._visits.fit()
        clocks = [
            set(found.graphics_clocks_mhz)
            for stage in self._stages.values()
            for gpu in stage.session.gpus
            if (found := self._fleet.gpus[gpu].found) is not None
        ]
        first = {stage.began.stage: stage for stage in self._stages.values()}
        graph = self._graph = from_orders([first[at].instructions() for at in sorted(first)])
        profile = self._profile = combine(measured, sorted(set.intersection(*clocks), reverse=True))
        rows: list[Row] = [*instruction_rows(self._run, measured)]
        base_s, base_j = self._unplanned()
        points = make_plans(
            graph, profile, [base_s * each for each in SLOWDOWNS], switching_s=self._settings.switching_s
        )
        rows += point_rows(self._run, SLOWDOWNS, points, base_s, base_j)
        return rows_only(rows)

    def _unplanned(self) -> tuple[float, float]:
        """Return duration and energy of an iteration at the highest clocks, by the profile."""
        assert self._graph is not None
        assert self._profile is not None
        top = [self._profile.of(each)[0].clock_mhz for each in self._graph.instructions]
        return play(self._graph, self._profile, top, 0.0)

    # ---- plans

    def _offer(self, now: Clocks) -> Result:
        """Send a plan to every rank; it begins when all have it."""
        assert self._graph is not None
        assert self._profile is not None
        self._offers += 1
        if self._offers > MOST_OFFERS:
            return self._give_up(f"{MOST_OFFERS} plans were not followed to the end")
        base_s, base_j = self._unplanned()
        self._plan = make_plan(
            self._graph,
            self._profile,
            max(base_s, base_s * self._settings.slowdown / LATE**self._slower),
            switching_s=self._settings.switching_s,
            reserve_s=self._profile.spread_s * 2**self._slower,
        )
        self._row = PlanRow(
            run=self._run,
            number=self._offers,
            t_ns=self._t_ns(now),
            slowdown=self._settings.slowdown,
            promised_s=self._plan.time_s,
            promised_j=self._plan.energy_j,
            unplanned_s=base_s,
            unplanned_j=base_j,
            first_iteration=None,
            measured_s=None,
            state="offered",
            reason="",
        )
        return self._go("offering", "") | self._send_plan(None)

    def _send_plan(self, first_iteration: int | None) -> Result:
        assert self._graph is not None
        assert self._profile is not None
        assert self._plan is not None
        assert self._row is not None
        plan = f"{self._run[:100]}/{self._row.number}"
        commands: list[Command] = [
            deliver(
                self._name(stage.session.gpus[0]),
                plan,
                stage,
                self._plan.clocks_mhz,
                self._graph,
                self._profile,
                first_iteration=first_iteration,
                switching_s=self._settings.switching_s,
            )
            for stage in self._stages.values()
        ]
        return rows_only([self._row]) | self._ask(commands)

    def _all_set(self) -> Result:
        """Go on once every command has its outcome."""
        match self._state:
            case "offering":
                assert self._row is not None
                ahead = ceil(HEAD_START_S / self._visits.iterations_s[0]) + 2
                self._first_iteration = max(stage.iteration for stage in self._stages.values()) + ahead
                self._row = replace(self._row, first_iteration=self._first_iteration)
                return self._go("starting", "") | self._send_plan(self._first_iteration)
            case "starting":
                assert self._row is not None
                self._row = replace(self._row, state="followed")
                return self._go("following", "") | rows_only([self._row])
            case _:
                return NOTHING

    def _watch(self, now: Clocks) -> Result:
        """Compare iterations under the plan with its promise."""
        assert self._row is not None
        first = next(stage for stage in self._stages.values() if stage.began.stage == 0)
        begun_ns = [ran.t_ns for ran in first.ran if ran.iteration > self._first_iteration]
        if len(begun_ns) <= WATCHED or (begun_ns[-1] == begun_ns[0]):
            return NOTHING
        last = begun_ns[-WATCHED - 1 :]
        times_s = [(two - one) / 1e9 for one, two in pairwise(last)]
        # what passes between iterations is in both: the promise is relative to what was measured
        promised_s = self._visits.iterations_s[0] + self._row.promised_s - self._row.unplanned_s
        measured_s = mean(times_s)
        rows: Result = NOTHING
        if self._row.measured_s is None:
            self._row = replace(self._row, measured_s=measured_s)
            rows = rows_only([self._row])
        if measured_s <= LATE * promised_s + 1.96 * stdev(times_s) / sqrt(len(times_s)):
            return rows
        self._slower += 1
        why = f"iterations took {measured_s:.4g} s, {promised_s:.4g} s were promised"
        self._row = replace(self._row, measured_s=measured_s, state="replaced", reason=why)
        if self._slower >= MOST_PLANS:
            return rows_only([self._row]) | self._give_up(f"{why}, after {MOST_PLANS} plans")
        return rows_only([self._row]) | self._offer(now)

    # ---- ends

    def _lost(self, lost: ClockLost, now: Clocks) -> Result:
        """A lease has ended: the others are given back, and a plan is offered again."""
        if lost.gpu not in self._held:
            return NOTHING
        del self._held[lost.gpu]
        if self._state == "over" or lost.cause in ("released", "run"):
            return NOTHING
        why = f"{lost.gpu}: the lease on its clock ended: {lost.reason}"
        if self._plan is None or lost.cause not in ("plan", "lapsed", "shutdown", "restart"):
            return self._give_up(why)
        ended = replace(self._row, state="ended", reason=why) if self._row else None
        rows = rows_only([ended] if ended else [])
        try:
            return rows | self._offer(now)
        except RefusedError as wrong:
            return rows | self._give_up(str(wrong))

    def _give_up(self, reason: str) -> Result:
        """Give every clock back, for good."""
        if self._state == "over":
            return NOTHING
        held, self._held, self._waiting = {**self._held, **self._asked_gpus()}, {}, set()
        commands = [
            RestoreControl(
                command=self._name(gpu),
                run=self._run,
                host=self._fleet.gpus[gpu].host,
                gpu=gpu,
                control="graphics_clock",
            )
            for gpu in held
        ]
        return self._go("over", reason) | Result((), tuple(commands))

    def _asked_gpus(self) -> dict[str, None]:
        """Return the GPUs with a command under way: it may have set their clock."""
        asked = any(self._waiting)
        return {gpu: None for stage in self._stages.values() for gpu in stage.session.gpus if asked}

    # ---- the rest

    def _ask(self, commands: Iterable[ApplyControl | ApplyPlan | Command]) -> Result:
        told = tuple(commands)
        self._waiting = {command.command for command in told}
        return in_order([Result((), (command,)) for command in told])

    def _go(self, state: State, reason: str) -> Result:
        self._state, self._reason = state, reason
        return rows_only([self._pipeline_row()])

    def _pipeline_row(self) -> PipelineRow:
        stages = list(self._stages.values())
        began = stages[0].began if stages else None
        times_s = self._visits.iterations_s
        return PipelineRow(
            run=self._run,
            t_ns=max((stage.ran[-1].t_ns for stage in stages if stage.ran), default=0),
            schedule=began.schedule if began else "",
            stages=began.stages if began else 0,
            micro_batches=began.micro_batches if began else 0,
            replicas=sum(stage.began.stage == 0 for stage in stages),
            state=self._state,
            iterations_profiled=self._visits.visited,
            iteration_s=times_s[0] if times_s else None,
            reason=self._reason,
        )

    def _t_ns(self, now: Clocks) -> int:
        return now.get(next(iter(self._stages.values())).session.host, 0)

    def _name(self, gpu: str) -> str:
        """Return the next command's id: the same when the stream is interpreted again."""
        self._count += 1
        first = next(iter(self._stages), "-")
        return f"{self._run[:100]}/{first[:8]}-clock{self._count}/{gpu[-12:]}"
