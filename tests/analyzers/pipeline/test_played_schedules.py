"""Plans on a simulator of schedules written from the definitions: time, energy, blocking energy."""

import pytest

from analyzers.pipeline.frontier import PipelineProfile
from analyzers.pipeline.graph import PipelineGraph, PipelineInstruction
from analyzers.pipeline.plan import make_plans, play, unplanned_s
from benchmarks.pipeline.groupings import draw
from benchmarks.pipeline.schedules import SCHEDULES


def wanted(each: PipelineInstruction, parts: int, stages: int) -> list[tuple[str, int, int]]:
    """Return kind, micro-batch and part of the model of what an instruction waits for."""
    part = each.chunk * stages + each.stage
    if each.kind == "forward":
        return [("forward", each.micro_batch, part - 1)] if part else []
    if each.kind == "weight":
        return [("backward", each.micro_batch, part)]
    after = [("backward", each.micro_batch, part + 1)] if part + 1 < parts else []
    return [("forward", each.micro_batch, part), *after]


def simulate(
    graph: PipelineGraph, profile: PipelineProfile, clocks_mhz: tuple[int, ...]
) -> tuple[float, ...]:
    """Return duration, energy of instructions, and energy of stages that wait."""
    queues = [list(order) for order in graph.orders]
    parts = graph.stages * (1 + max(each.chunk for each in graph.instructions))
    ended: dict[tuple[str, int, int], float] = {}
    busy_until, busy, spent_j = [0.0] * graph.stages, [0.0] * graph.stages, 0.0
    while any(queues):
        ready = []
        for stage, queue in enumerate(queues):
            if queue:
                needs = wanted(graph.instructions[queue[0]], parts, graph.stages)
                if all(need in ended for need in needs):
                    ready.append((max([busy_until[stage], *(ended[need] for need in needs)]), stage))
        begin_s, stage = min(ready)
        index = queues[stage].pop(0)
        each = graph.instructions[index]
        [option] = [one for one in profile.of(each) if one.clock_mhz == clocks_mhz[index]]
        busy_until[stage] = begin_s + option.time_s
        busy[stage] += option.time_s
        spent_j += option.energy_j
        ended[each.kind, each.micro_batch, each.chunk * graph.stages + stage] = busy_until[stage]
    time_s = max(busy_until)
    waited_j = sum(watts * (time_s - own) for watts, own in zip(profile.waiting_w, busy, strict=True))
    return time_s, spent_j, waited_j


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("seed", "long"), [(900, True), (903, False), (904, False)])
def test_a_plan_takes_the_time_and_energy_that_it_promises(schedule: str, seed: int, *, long: bool) -> None:
    graph, profile = draw(seed, schedule, long=long)
    fastest_s = unplanned_s(graph, profile)
    top = tuple(profile.of(each)[0].clock_mhz for each in graph.instructions)
    top_s, top_j, idle_j = simulate(graph, profile, top)
    assert top_s == pytest.approx(fastest_s)
    deadlines_s = (fastest_s, fastest_s * 1.1)
    for plan, deadline_s in zip(make_plans(graph, profile, deadlines_s), deadlines_s, strict=True):
        time_s, spent_j, waited_j = simulate(graph, profile, plan.clocks_mhz)
        assert time_s == pytest.approx(plan.time_s)
        assert time_s <= deadline_s * (1 + 1e-9)
        assert spent_j + waited_j == pytest.approx(plan.energy_j)
        assert plan.bound_j <= (spent_j + waited_j) * (1 + 1e-9) < top_j + idle_j
        slow_j = play(graph, profile, plan.clocks_mhz, 0.01)[1]
        assert spent_j + waited_j <= slow_j * (1 + 1e-9), "changes of clock only cost"
