"""The pipeline of one run: profile it, plan its clocks, have collectors follow the plan, and watch it. Pure.

    waiting     every stage has a rank that may set its clock       -> profiling
    profiling   a clock is in force for enough iterations           -> the next lower clock
                the profile does not describe what was measured     -> profiling again, or over
                no lower clock saves anything, or there is none     -> offering    a plan to every rank
    offering    every collector has the plan                        -> starting    its first iteration
    starting    every collector knows the first iteration           -> following
    following   iterations are longer than promised                 -> offering    a faster plan, or over
                a replica is slower than the others, or no longer   -> starting    plans for its duration
                a power budget allows more or less                  -> starting    a plan within limits
                iterations have another order, known or learned     -> offering    a plan for it
    any         a command is refused, or ranks end                  -> over        every clock is given back
                a lease ends                                        -> offering again, or its clock once more

Ranks of one stage are replicas: they are profiled together. They have the same plan, unless one of them is
slower: the others then have the plan for its duration. Such a plan is sent with its first iteration at once.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import ClassVar, Literal, TypeAlias, assert_never

from msgspec import Struct
from msgspec.structs import replace

from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Allocation, Clocks, Division, Fleet
from analyzers.fleet.session import Session
from analyzers.pipeline.chosen_plans import (
    ChosenPlans,
    Iterations,
    compare,
    doubt,
    find_straggler,
    less,
    replicas_of,
)
from analyzers.pipeline.clock_visits import (
    ClockVisits,
    HeldClocks,
    are_there,
    clocks_to_visit,
    common_clocks,
    objection,
)
from analyzers.pipeline.graph import PipelineGraph, PipelineInstruction, from_orders
from analyzers.pipeline.known_pipelines import (
    CONFIRMING,
    KnownPipelines,
    PipelineIdentity,
    is_alike,
)
from analyzers.pipeline.plan import deliver
from analyzers.pipeline.profile import combine
from analyzers.pipeline.stage_limits import has_changed, limits_w
from analyzers.pipeline.stage_record import StageRecord, span_rows
from analyzers.power_limit.run_settings import PipelineSettings
from analyzers.results.pipeline_rows import InstructionRow, PipelineRow, PlanRow
from analyzers.results.result import NOTHING, ApplyControl, Result, in_order, rows_only
from zeus_stream.errors import RefusedError, SettingsError, UnsupportedError
from zeus_stream.protocol.notes import ControlApplied, ControlRefused, LeaseCause
from zeus_stream.protocol.pipelines import IterationRan, PipelineBegan


class StageBegan(Struct, frozen=True):
    """A rank runs one stage from here on."""

    session: Session
    began: PipelineBegan


class StageRan(Struct, frozen=True):
    """A rank has run one iteration."""

    session: Session
    ran: IterationRan


class StageEnded(Struct, frozen=True):
    """A rank has ended."""

    session: Session


class ClockSettled(Struct, frozen=True):
    """A command for a clock or a plan has its outcome."""

    host: str
    note: ControlApplied | ControlRefused


class ClockLost(Struct, frozen=True):
    """The lease on the graphics clock of a GPU has ended."""

    gpu: str
    cause: LeaseCause
    reason: str


PipelineEvent: TypeAlias = StageBegan | StageRan | StageEnded | ClockSettled | ClockLost


State: TypeAlias = Literal["waiting", "profiling", "offering", "starting", "following", "over"]
MOST_PLANS = 4
"""Of a run, that were replaced since iterations were too long."""
LEARNED = 3
"""Iterations in a row of another order, of every stage, after which it is planned for."""
MOST_ORDERS = 50
"""Whose plans are remembered."""
OTHER_ORDER = "iterations have another order of instructions"
MOST_PROFILES = 3
"""Of a run, that did not describe its iterations."""
STATED = 100
"""Iterations after which a measured saving is stated again; sooner while it doubles their number."""
MOST_DRAWN = 20
"""Iterations of a run that are kept as rows, for drawings."""
MOST_OFFERS = 6
"""Of plans, or of a clock while profiling, before one was kept: leases that ended included."""
HEAD_START_S = 2.0
"""From a plan's offer to its first iteration: collectors have to know it by then."""
QUICK_START_S = 0.3
"""The same for an answer to a straggler, which need not begin everywhere at once."""


class PipelineRun:
    """The machine of one run."""

    def __init__(
        self,
        run: str,
        fleet: Fleet,
        settings: PipelineSettings,
        shares: Mapping[str, Allocation],
        known: KnownPipelines,
        pending: Pending,
    ) -> None:
        """``shares``: of power budgets, by GPU; ``known``: profiles of earlier runs."""
        self._run, self._fleet, self._settings, self._shares = run, fleet, settings, shares
        self._state: State = "waiting"
        self._reason = ""
        self._stages: dict[str, StageRecord] = {}
        """By session."""
        self._clocks: list[int] = []
        """To be visited, descending; the first is under way."""
        self._visits = ClockVisits(iterations=settings.iterations)
        self._held = HeldClocks(run, fleet, pending)
        self._offers = 0
        """Since a plan was kept last."""
        self._drawn: set[int] = set()
        """Plans with an iteration as rows; 0: before them."""
        self._known = known
        self._recalled: Sequence[InstructionRow] = ()
        """The profile of an earlier run that this one starts from; empty: none."""
        self._plans: ChosenPlans | None = None
        """None: the profile is not known yet."""
        self._row: PlanRow | None = None
        self._first_iteration = 0
        self._doubted = 0
        """Profiles that did not describe the iterations."""
        self._under = Iterations()
        """Under the plan."""
        self._by_order: dict[tuple[PipelineInstruction, ...], ChosenPlans] = {}
        """Plans of orders that were learned, the first one's first: its iterations were profiled."""
        self._between_s = 0.0
        """That an iteration takes longer than its instructions by the profile, as of an optimizer."""

    def handle(self, event: PipelineEvent, now: Clocks) -> Result:
        self._held.now = now
        match event:
            case StageBegan(session, began):
                self._stages[session.session] = StageRecord(session, began)
                return rows_only([self._pipeline_row()])
            case StageRan(session, ran):
                stage = self._stages.get(session.session)
                if stage is None or self._state == "over":
                    return NOTHING
                if not stage.take(ran):
                    if self._state != "waiting":
                        return self._take_other(stage, ran, now)
                    stage.learn()
                return self._advance(now)
            case StageEnded(session):
                if session.session not in self._stages:
                    return NOTHING
                ended = self._give_up(f"rank {session.started.rank} has ended")
                del self._stages[session.session]
                return ended
            case ClockSettled(host, note):
                if not self._held.settle(host, note):
                    return NOTHING
                if not isinstance(note, ControlApplied):
                    return self._give_up(note.reason)
                return NOTHING if self._held.waits else self._all_set()
            case ClockLost():
                return self._lost(event, now)
        assert_never(event)

    @property
    def empty(self) -> bool:
        return not self._stages

    @property
    def is_known(self) -> bool:
        return self._plans is not None

    def divide(self, gpus: Sequence[str], limits_mw: Sequence[int]) -> Division | None:
        """Return limits by GPU, for each mean limit. None: no profile, other GPUs, or a stage lacks."""
        by_stage: dict[int, list[str]] = {}
        for stage in self._stages.values():
            by_stage.setdefault(stage.began.stage, []).extend(stage.session.gpus)
        own = [gpu for of_stage in by_stage.values() for gpu in of_stage]
        if self._plans is None or len(by_stage) < self._plans.graph.stages or sorted(own) != sorted(gpus):
            return None
        return self._plans.divide(limits_mw, by_stage)

    # ---- profiling

    def _advance(self, now: Clocks) -> Result:
        match self._state:
            case "waiting":
                return self._begin()
            case "profiling" if not self._held.waits:
                return self._measure(now)
            case "following":
                return self._watch(now)
            case _:
                return NOTHING

    def _begin(self) -> Result:
        """Begin to profile once every stage has a rank whose clock may be set."""
        stages = tuple(self._stages.values())
        return self._profile() if are_there(stages) else NOTHING

    def _profile(self) -> Result:
        stages = tuple(self._stages.values())
        if (why := objection(stages)) is not None:
            return self._give_up(why)
        if not (clocks := common_clocks(stages, self._fleet)):
            return self._give_up("its GPUs name no graphics clock that all of them have")
        self._clocks = clocks_to_visit(clocks, self._settings.clocks, self._settings.lowest)
        self._visits = ClockVisits(iterations=self._settings.iterations)
        self._recalled = () if self._doubted else self._known.find(self._identity())
        if self._recalled:
            self._visits.iterations = min(CONFIRMING, self._settings.iterations)
        return self._go("profiling", self._reason) | self._visit()

    def _identity(self) -> PipelineIdentity:
        first = next(iter(self._stages.values()))
        found = self._fleet.gpus[first.session.gpus[0]].found
        model = "" if found is None else found.name
        return PipelineIdentity(first.session.started.job, model, first.began.stages)

    def _visit(self) -> Result:
        return self._held.ask(
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
        if not self._visits.measure(self._clocks[0], stages, self._held.set_ns, self._fleet):
            return NOTHING
        if self._recalled and not is_alike(self._recalled, self._visits.durations_s):
            self._recalled, self._visits = (), ClockVisits(iterations=self._settings.iterations)
            return self._visit()
        at_mhz, self._clocks = self._clocks[0], self._clocks[1:]
        drawn = self._draw(0, self._replicas()[0], -1, lambda *_: at_mhz)
        if not self._recalled and self._clocks and not self._visits.enough:
            return drawn | rows_only([self._pipeline_row()]) | self._visit()
        try:
            return drawn | self._learn(now)
        except (RefusedError, SettingsError, UnsupportedError) as wrong:
            return self._give_up(str(wrong))

    def _take_other(self, stage: StageRecord, ran: IterationRan, now: Clocks) -> Result:
        """Take in an iteration of another order: no part of a measurement. It is learned if others follow."""
        host = stage.session.host
        self._held.set_ns[host] = max(ran.ended_ns, self._held.set_ns.get(host, 0))
        stages = tuple(self._stages.values())
        if any(each.others < LEARNED for each in stages):
            return NOTHING
        for each in stages:
            each.learn()
        return self._profile() if self._plans is None else self._change_order(now)

    def _change_order(self, now: Clocks) -> Result:
        """Offer a plan for the order that iterations have now; an order that was learned before has one."""
        plans = self._plans
        assert plans is not None
        try:
            graph = self._graph()
            known = self._by_order.get(graph.instructions)
            if known is None:
                known = ChosenPlans(self._run, self._settings, graph, plans.profile, plans.gpus)
                if len(self._by_order) < MOST_ORDERS:
                    self._by_order[graph.instructions] = known
            known.number, self._plans, self._offers = plans.number, known, 0
            ended = replace(self._row, state="replaced", reason=OTHER_ORDER) if self._row else None
            return rows_only([ended] if ended else []) | self._offer(now)
        except (RefusedError, SettingsError) as wrong:
            return self._give_up(str(wrong))

    def _graph(self) -> PipelineGraph:
        first = {stage.began.stage: stage for stage in self._stages.values()}
        return from_orders([first[at].instructions() for at in sorted(first)])

    def _learn(self, now: Clocks) -> Result:
        """Fit the profile; if it describes the iterations, store it with its frontier and offer a plan."""
        stages = tuple(self._stages.values())
        measured = self._recalled or self._visits.fit(self._run)
        first = {stage.began.stage: stage for stage in stages}
        graph = self._graph()
        profile = combine(measured, common_clocks(stages, self._fleet))
        by_device = all(stage.ran[-1].by_device for stage in stages)
        own_s = [self._visits.own_s[at] for at in sorted(first)]
        iterations_s = self._visits.by_clock[0].times_s
        if why := doubt(graph, profile, iterations_s, own_s, by_device=by_device):
            self._doubted += 1
            if self._doubted >= MOST_PROFILES:
                return self._give_up(f"no plan: {why}")
            self._reason = f"it is measured again: {why}"
            return self._profile()
        self._reason = ""
        settings = self._settings = self._settings.for_calls_of(self._held.call_s)
        lead = first[0]
        gpus = lead.began.tensor_parallel * len(lead.session.gpus)
        plans = self._plans = ChosenPlans(self._run, settings, graph, profile, gpus)
        assert self._visits.iteration_s is not None
        self._between_s = self._visits.iteration_s - plans.base_s
        self._by_order = {graph.instructions: plans}
        if self._recalled:
            return rows_only(plans.frontier()) | self._offer(now)
        identity, wall_ns = self._identity(), lead.session.wall_ns(lead.ran[-1].ended_ns)
        rows = [
            replace(row, job=identity.job, gpu_model=identity.gpu_model, measured_wall_ns=wall_ns)
            for row in measured
        ]
        self._known.add(rows)
        return rows_only([*rows, *plans.frontier()]) | self._offer(now)

    # ---- plans

    def _offer(self, now: Clocks) -> Result:
        """Send a plan to every rank; it begins when all have it."""
        assert self._plans is not None
        self._offers += 1
        if self._offers > MOST_OFFERS:
            return self._give_up(f"{MOST_OFFERS} plans were not followed to the end")
        self._row = self._plans.choose(limits_w(self._replicas(), self._shares), self._t_ns(now))
        return self._go("offering", "") | self._send_plan(None)

    def _replicas(self) -> dict[int, list[StageRecord]]:
        return replicas_of(self._stages.values())

    def _send_plan(self, first_iteration: int | None) -> Result:
        plans, replicas = self._plans, self._replicas()
        assert plans is not None
        assert self._row is not None
        commands = [
            deliver(
                self._name(gpu),
                gpu,
                plans.name,
                self._row.number,
                stage,
                plans.last.clocks_mhz,
                plans.graph,
                plans.profile,
                first_iteration=first_iteration,
                switching_s=self._settings.switching_s,
            )
            for replica in plans.concerned(replicas)
            for stage in replicas[replica]
            for gpu in stage.session.gpus
        ]
        return rows_only([self._row]) | self._held.ask(commands)

    def _all_set(self) -> Result:
        """Go on once every command has its outcome."""
        match self._state:
            case "offering":
                assert self._row is not None
                self._first_iteration = self._iteration_in(HEAD_START_S, 2)
                self._row = replace(self._row, first_iteration=self._first_iteration)
                return self._go("starting", "") | self._send_plan(self._first_iteration)
            case "starting":
                assert self._row is not None
                self._under = Iterations()
                self._row = replace(self._row, state="followed")
                return self._go("following", "") | rows_only([self._row])
            case _:
                return NOTHING

    def _iteration_in(self, seconds: float, more: int) -> int:
        """Return an iteration that no rank begins sooner, and ``more`` on top."""
        assert self._visits.iteration_s is not None
        ahead = ceil(seconds / self._visits.iteration_s) + more
        return max(stage.iteration for stage in self._stages.values()) + ahead

    def _watch(self, now: Clocks) -> Result:
        """Compare power with budgets, replicas with each other, and iterations with the promise."""
        plans, row, replicas = self._plans, self._row, self._replicas()
        assert plans is not None
        assert row is not None
        limited_w = limits_w(replicas, self._shares)
        if has_changed(plans.limits_w, limited_w):
            other = plans.adapt(limited_w, self._t_ns(now))
            if other is not None:
                return self._replace_now(other)
        promised_s = plans.promised_s(list(replicas))
        found = find_straggler(replicas, promised_s, self._first_iteration, plans.straggler)
        if found is not plans.straggler and (other := plans.answer(found, self._t_ns(now))) is not None:
            return self._replace_now(other)
        stages = replicas[plans.concerned(replicas)[0]]
        drawn = self._draw(row.number, stages, self._first_iteration, plans.clock_mhz) | self._state_saving()
        if plans.straggler is not None or not (plans.is_promise and plans.lowers_clocks):
            return drawn
        row = self._row or row
        first = next(stage for stage in self._stages.values() if stage.began.stage == 0)
        # what passes between iterations is in both: the promise is relative to what was measured
        usual_s = row.promised_s + self._between_s
        seen = compare(first.ran, self._first_iteration, usual_s)
        if seen is None:
            return drawn
        rows, (measured_s, kept) = drawn, seen
        if row.measured_s is None:
            row = self._row = replace(row, measured_s=measured_s)
            rows |= rows_only([row])
        if kept:
            self._offers = 0
            return rows
        plans.slower += 1
        why = f"iterations took {measured_s:.4g} s, {usual_s:.4g} s were promised"
        row = self._row = replace(row, measured_s=measured_s, state="replaced", reason=why)
        if plans.slower >= MOST_PLANS:
            return rows_only([row]) | self._give_up(f"{why}, after {MOST_PLANS} plans")
        return rows_only([row]) | self._offer(now)

    def _state_saving(self) -> Result:
        """Compare iterations under the plan with those at the highest clock, both as measured."""
        plans, row = self._plans, self._row
        assert plans is not None
        assert row is not None
        if plans.straggler is not None or plans is not next(iter(self._by_order.values())):
            return NOTHING  # iterations at the highest clock were others
        ordered = sorted(self._stages.values(), key=lambda stage: stage.began.stage)
        stages = [(self._fleet.gpus[gpu].timeline, each) for each in ordered for gpu in each.session.gpus]
        if not self._under.follow(stages, self._first_iteration):
            return NOTHING
        before, under = self._visits.by_clock[0], self._under
        count = len(under.times_s)
        if count < min(2 * row.iterations, row.iterations + STATED):
            return NOTHING
        saved, shorter = less(before.energies_j, under.energies_j), less(before.times_s, under.times_s)
        if saved is None or shorter is None:
            return NOTHING
        self._row = replace(
            row,
            iterations=count,
            saved=saved.share,
            saved_low=saved.low,
            saved_high=saved.high,
            longer=-shorter.share,
            longer_low=-shorter.high,
            longer_high=-shorter.low,
        )
        return rows_only([self._row])

    def _draw(
        self, number: int, stages: Sequence[StageRecord], after: int, clock_mhz: Callable[[int, int], int]
    ) -> Result:
        """Return an iteration under a plan as rows, once; for the arguments see `span_rows`."""
        if number in self._drawn or len(self._drawn) >= MOST_DRAWN:
            return NOTHING
        rows = span_rows(self._run, number, stages, after, clock_mhz)
        self._drawn |= {number} if rows else set()
        return rows_only(rows)

    def _replace_now(self, row: PlanRow) -> Result:
        """Send another plan in place of the one that is followed, as soon as collectors can begin it."""
        assert self._row is not None
        ended = replace(self._row, state="replaced", reason=row.reason)
        self._first_iteration = self._iteration_in(QUICK_START_S, 1)
        self._row = replace(row, first_iteration=self._first_iteration)
        return rows_only([ended]) | self._go("starting", "") | self._send_plan(self._first_iteration)

    # ---- ends

    def _lost(self, lost: ClockLost, now: Clocks) -> Result:
        """A lease has ended: the clock under way is set again, or a plan is offered again."""
        if not self._held.lose(lost.gpu) or self._state == "over" or lost.cause in ("released", "run"):
            return NOTHING
        why = f"{lost.gpu}: the lease on its clock ended: {lost.reason}"
        if lost.cause not in ("plan", "lapsed", "shutdown", "restart"):
            return self._give_up(why)
        if self._plans is None:
            self._offers += 1
            return self._give_up(why) if self._offers > MOST_OFFERS else self._visit()
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
        return self._go("over", reason) | self._held.give_back(self._first_session)

    # ---- the rest

    def _go(self, state: State, reason: str) -> Result:
        self._state, self._reason = state, reason
        return rows_only([self._pipeline_row()])

    def _pipeline_row(self) -> PipelineRow:
        stages = tuple(self._stages.values())
        began = stages[0].began if stages else None
        firsts = sum(stage.began.stage == 0 for stage in stages)
        return PipelineRow(
            run=self._run,
            t_ns=max((stage.ran[-1].t_ns for stage in stages if stage.ran), default=0),
            schedule=began.schedule if began else "",
            stages=began.stages if began else 0,
            micro_batches=began.micro_batches if began else 0,
            replicas=firsts // began.tensor_parallel if began else 0,
            state=self._state,
            iterations_profiled=self._visits.visited,
            iteration_s=self._visits.iteration_s,
            reason=self._reason,
            profile_run=self._recalled[0].run if self._recalled else None,
        )

    def _t_ns(self, now: Clocks) -> int:
        return now.get(next(iter(self._stages.values())).session.host, 0)

    def _name(self, gpu: str) -> str:
        return self._held.name(self._first_session, gpu)

    @property
    def _first_session(self) -> str:
        return next(iter(self._stages), "-")


MAX_PIPELINES = 1_000
"""Runs at once; one more is not planned for."""


class Pipelines:
    """The pipelines of a site. None is planned for without settings."""

    NOT_STATE: ClassVar = frozenset[str](("_settings",))

    def __init__(
        self,
        fleet: Fleet,
        settings: PipelineSettings | None,
        pending: Pending,
        shares: Mapping[str, Allocation] = MappingProxyType({}),
        known: KnownPipelines | None = None,
        runs: dict[str, PipelineRun] | None = None,
    ) -> None:
        """Begin with no pipeline.

        Args:
            settings: None: nothing is planned.
            shares: of power budgets, by GPU.
            runs: those under way, by name; the enforcer of budgets reads it.
        """
        self._pending = pending
        self._fleet, self._settings, self._shares = fleet, settings, shares
        self.known = known or KnownPipelines()
        self.runs = {} if runs is None else runs

    def plans_for(self, run: str) -> bool:
        return run in self.runs

    def handle(self, event: PipelineEvent, now: Clocks) -> Result:
        match event:
            case ClockSettled() | ClockLost():
                return in_order([run.handle(event, now) for run in self.runs.values()])
            case StageBegan(session) | StageRan(session) | StageEnded(session):
                name = session.started.run
                run = self.runs.get(name)
                if run is None and isinstance(event, StageBegan) and self._settings is not None:
                    if len(self.runs) >= MAX_PIPELINES:
                        return NOTHING
                    run = self.runs[name] = PipelineRun(
                        name, self._fleet, self._settings, self._shares, self.known, self._pending
                    )
                if run is None:
                    return NOTHING
                result = run.handle(event, now)
                if run.empty:
                    del self.runs[name]
                return result
