"""Plans on a simulator of schedules written from the definitions: time, energy, blocking energy.

Each stage is a GPU whose clock changes some time after it was asked to, and a collector that follows the
stage's part of the plan as it was sent. A script says where an instruction begins and ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from analyzers.pipeline.frontier import ClockOption, PipelineProfile
from analyzers.pipeline.graph import PipelineGraph, PipelineInstruction
from analyzers.pipeline.plan import deliver, make_plans, unplanned_s
from analyzers.pipeline.stage_record import StageRecord
from benchmarks.pipeline.groupings import draw
from benchmarks.pipeline.schedules import SCHEDULES
from collectors.controls.frequency_plan import (
    ChangeClock,
    FollowedPlan,
    PlanEvent,
    PositionReached,
    TimePassed,
    authorize,
    step_plan,
)
from tests.analyzers.pipeline.stages import Stages
from zeus_stream.protocol.pipelines import PipelineBegan, SetPlan

ITERATIONS = 3
"""Played; the last one is measured."""
TINY = 1e-9


def wanted(each: PipelineInstruction, parts: int, stages: int) -> list[tuple[str, int, int]]:
    """Return kind, micro-batch and part of the model of what an instruction waits for."""
    part = each.chunk * stages + each.stage
    if each.kind == "forward":
        return [("forward", each.micro_batch, part - 1)] if part else []
    if each.kind == "weight":
        return [("backward", each.micro_batch, part)]
    after = [("backward", each.micro_batch, part + 1)] if part + 1 < parts else []
    return [("forward", each.micro_batch, part), *after]


@dataclass
class Gpu:
    """One stage: what it runs, at which clock, and what it has drawn."""

    followed: FollowedPlan
    clock_mhz: int
    todo: list[int] = field(default_factory=list)
    running: int | None = None
    left: float = 0.0
    """Share of the instruction under way that is still to be done."""
    changes: list[tuple[float, int]] = field(default_factory=list)
    """Clocks that were asked for, and when they are in force."""
    spent_j: float = 0.0
    busy_s: float = 0.0


class Player:
    """Stages that run one schedule again and again under the plan that collectors were sent."""

    def __init__(
        self, graph: PipelineGraph, profile: PipelineProfile, plans: Sequence[SetPlan], switching_s: float
    ) -> None:
        """``switching_s``: from a request to the clock that it is for."""
        self._graph, self._profile, self._switching_s = graph, profile, switching_s
        self._gpus = [Gpu(authorize(plan, 0), max(plan.clocks_mhz)) for plan in plans]
        self._parts = graph.stages * (1 + max(each.chunk for each in graph.instructions))
        self._ended: set[tuple[str, int, int]] = set()
        self._now_s, self._iteration = 0.0, 0

    def play(self) -> tuple[float, float, float]:
        """Return duration of the last iteration, energy of its instructions, and of stages that wait."""
        begin_s = 0.0
        for self._iteration in range(ITERATIONS):
            begin_s = self._now_s
            self._ended.clear()
            for gpu, chain in zip(self._gpus, self._graph.orders, strict=True):
                gpu.todo, gpu.spent_j, gpu.busy_s = list(chain), 0.0, 0.0
            while any(gpu.todo or gpu.running is not None for gpu in self._gpus):
                self._begin_ready()
                self._pass_to_next()
        time_s, spent_j = self._now_s - begin_s, sum(gpu.spent_j for gpu in self._gpus)
        pairs = zip(self._profile.waiting_w, self._gpus, strict=True)
        return time_s, spent_j, sum(watts * (time_s - gpu.busy_s) for watts, gpu in pairs)

    def _begin_ready(self) -> None:
        for gpu in self._gpus:
            if gpu.running is None and gpu.todo:
                each = self._graph.instructions[gpu.todo[0]]
                if self._ended.issuperset(wanted(each, self._parts, self._graph.stages)):
                    gpu.running, gpu.left = gpu.todo.pop(0), 1.0
                    self._tell(gpu, PositionReached(self._iteration, self._code(gpu)))

    def _pass_to_next(self) -> None:
        """Go on to the next instant at which an instruction ends, a clock changes, or is to be asked for."""
        due_s = []
        for gpu in self._gpus:
            due_s += [at_s for at_s, _ in gpu.changes]
            if gpu.running is not None:
                due_s.append(self._now_s + gpu.left * self._option(gpu).time_s)
            if gpu.followed.raise_at_ns is not None:
                due_s.append(max(gpu.followed.raise_at_ns / 1e9, self._now_s))
        next_s = min(due_s)
        for gpu in self._gpus:
            if gpu.running is not None:
                option = self._option(gpu)
                done = (next_s - self._now_s) / option.time_s
                gpu.left, gpu.spent_j = gpu.left - done, gpu.spent_j + done * option.energy_j
                gpu.busy_s += next_s - self._now_s
        self._now_s = next_s
        for gpu in self._gpus:
            while gpu.changes and gpu.changes[0][0] <= next_s:
                _, gpu.clock_mhz = gpu.changes.pop(0)
            if gpu.running is not None and gpu.left < TINY:
                each = self._graph.instructions[gpu.running]
                self._ended.add((each.kind, each.micro_batch, each.chunk * self._graph.stages + each.stage))
                code, gpu.running = self._code(gpu), None
                self._tell(gpu, PositionReached(self._iteration, code, ends=True))
            elif gpu.followed.raise_at_ns is not None and gpu.followed.raise_at_ns / 1e9 <= next_s:
                self._tell(gpu, TimePassed())

    def _tell(self, gpu: Gpu, event: PlanEvent) -> None:
        """Tell the collector of a stage something, and ask its GPU for the clock that it wants."""
        due_ns = gpu.followed.raise_at_ns if isinstance(event, TimePassed) else None
        gpu.followed, asked = step_plan(gpu.followed, event, max(round(self._now_s * 1e9), due_ns or 0))
        for change in asked:
            assert isinstance(change, ChangeClock), change
            gpu.changes.append((self._now_s + self._switching_s, change.clock_mhz))
        if not self._switching_s and gpu.changes:
            gpu.clock_mhz = gpu.changes.pop()[1]
        assert not gpu.followed.suspended

    def _option(self, gpu: Gpu) -> ClockOption:
        assert gpu.running is not None
        known = self._profile.of(self._graph.instructions[gpu.running])
        return next(option for option in known if option.clock_mhz == gpu.clock_mhz)

    def _code(self, gpu: Gpu) -> int:
        assert gpu.running is not None
        chain = self._graph.orders[self._graph.instructions[gpu.running].stage]
        return gpu.followed.plan.codes[chain.index(gpu.running)]


def sent(
    graph: PipelineGraph, profile: PipelineProfile, clocks_mhz: Sequence[int], switching_s: float
) -> list[SetPlan]:
    """Return a plan as collectors get it, by stage."""
    found = []
    for stage, session in enumerate(Stages(stages=graph.stages).sessions):
        began = PipelineBegan(t_ns=0, stage=stage, stages=graph.stages, micro_batches=1, schedule="1f1b")
        command = deliver(
            "c", f"GPU-{stage}", "p", 1, StageRecord(session, began), clocks_mhz, graph, profile,
            first_iteration=0, switching_s=switching_s,
        )  # fmt: skip
        rest = {name: getattr(command, name) for name in SetPlan.__struct_fields__ if hasattr(command, name)}
        found.append(SetPlan(owner="a", incarnation="i", fence=1, lease_ms=1500, **rest))
    return found


@pytest.mark.parametrize(
    ("schedule", "seed", "long", "switching_s"),
    [
        *((schedule, 908, False, 0.01) for schedule in SCHEDULES),
        *((schedule, 900, True, 0.0) for schedule in SCHEDULES[::2]),
        *((schedule, 909, True, 0.03) for schedule in SCHEDULES[1::2]),
    ],
)
def test_a_plan_takes_the_time_and_energy_that_it_promises(
    schedule: str, seed: int, switching_s: float, *, long: bool
) -> None:
    graph, profile = draw(seed, schedule, long=long)
    fastest_s = unplanned_s(graph, profile)
    top = tuple(profile.of(each)[0].clock_mhz for each in graph.instructions)
    top_s, top_j, idle_j = Player(graph, profile, sent(graph, profile, top, 0.0), 0.0).play()
    assert top_s == pytest.approx(fastest_s)
    deadlines_s = (fastest_s, fastest_s * 1.1)
    plans = make_plans(graph, profile, deadlines_s, switching_s=switching_s, changes_per_s=20.0)
    for plan, deadline_s in zip(plans, deadlines_s, strict=True):
        assert plan.energy_j < top_j + idle_j
        commands = sent(graph, profile, plan.clocks_mhz, switching_s)
        for share in (0.0, 0.5, 1.0) if switching_s else (0.0,):  # a GPU may be faster than was measured
            time_s, spent_j, waited_j = Player(graph, profile, commands, share * switching_s).play()
            assert time_s <= min(plan.time_s, deadline_s) * (1 + 1e-9)
            assert plan.bound_j * (1 - 1e-9) <= spent_j + waited_j <= plan.energy_j * (1 + 1e-6)
            assert time_s == pytest.approx(plan.time_s, rel=0.002 if switching_s else 1e-6)
            assert spent_j + waited_j == pytest.approx(plan.energy_j, rel=0.02 if switching_s else 1e-6)
