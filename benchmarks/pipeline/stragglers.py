"""A replica that becomes slower: how soon it is answered, and what that saves beside an oracle's answer.

    python -m benchmarks.pipeline.stragglers [--replicas 4] [--noise 0.02] [--slower 1.05 1.1 1.2]

The machine of one pipeline in a world of arithmetic GPUs (`tests/analyzers/pipeline/stages.py`): 4 stages, 8
micro-batches, one of the replicas slower from some iteration on. ``saved``: energy of all GPUs over 20
iterations after the answer, against as many with the usual plan. The oracle knows the true profile, and its
plan for the straggler's duration is in force at once.
"""

import argparse

import numpy as np
from msgspec.structs import replace

from analyzers.pipeline.frontier import ClockOption, PipelineProfile
from analyzers.pipeline.plan import make_plan
from analyzers.power_limit.run_settings import PipelineSettings
from benchmarks.harness import table
from tests.analyzers.pipeline.stages import CLOCKS_MHZ, WAITING_W, Stages
from zeus_stream.protocol.pipelines import decode_instruction

PLAYED = 20
SETTLED = 12
"""Iterations from the change to the begin of the measured ones."""


def following(replicas: int, noise: float) -> Stages:
    world = Stages(PipelineSettings(iterations=20), replicas=replicas, noise=noise)
    while world.state != "following":
        world.play(1)
    world.play(5)
    return world


def true_profile(world: Stages) -> PipelineProfile:
    options = {}
    for stage in range(world.stages):
        for kind in ("forward", "backward"):
            figures = [(mhz, *world.time_and_power(stage, kind, mhz)) for mhz in CLOCKS_MHZ]
            options[stage, kind, 0] = tuple(ClockOption(m, time, time * power) for m, time, power in figures)
    spread_s = {name: world.noise * known[0].time_s for name, known in options.items()}
    return PipelineProfile(options, (WAITING_W,) * world.stages, spread_s)


def oracle(world: Stages, slower: float, promised_s: float) -> None:
    """Put the true plan for the straggler's duration in force on all replicas but the first."""
    plan = make_plan(world.graph, true_profile(world), promised_s * slower, switching_s=0.01)
    clock_of = {
        (each.stage, each.kind, each.micro_batch): clock
        for each, clock in zip(world.graph.instructions, plan.clocks_mhz, strict=True)
    }
    for gpu, known in tuple(world.plans.items()):
        rank = int(gpu.removeprefix("GPU-"))
        if rank >= world.stages:
            names = (decode_instruction(code) for code in known.codes)
            clocks = tuple(clock_of[rank % world.stages, kind, batch] for kind, batch, _ in names)
            world.plans[gpu] = replace(known, clocks_mhz=clocks)


def energy_j(world: Stages) -> float:
    return float(np.sum(world.spent_j[-PLAYED:]))


def row(replicas: int, noise: float, slower: float) -> list[str]:
    ours, usual, best = (following(replicas, noise) for _ in range(3))
    promised_s = ours.last_plan().promised_s
    ours.slow[0] = usual.slow[0] = best.slow[0] = slower
    number, noticed, answered = ours.last_plan().number, 0, 0
    for iteration in range(1, SETTLED + 1):
        ours.play(1)
        plan = ours.last_plan()
        if not noticed and plan.number > number:
            noticed = iteration
            answered = (plan.first_iteration or 0) - (ours.iteration - 1)
    usual.unheard = best.unheard = True
    oracle(best, slower, promised_s)
    usual.play(SETTLED + PLAYED)
    best.play(SETTLED + PLAYED)
    ours.play(PLAYED)
    saved, most = (1 - energy_j(each) / energy_j(usual) for each in (ours, best))
    longer = np.mean(ours.took_s[-PLAYED:]) / np.mean(usual.took_s[-PLAYED:]) - 1
    return [
        f"{replicas}", f"{100 * (slower - 1):.0f}", f"{noticed}", f"{answered}", f"{100 * saved:.2f}",
        f"{100 * most:.2f}", f"{100 * saved / most:.0f}", f"{100 * longer:+.2f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--noise", type=float, default=0.02)
    parser.add_argument("--slower", type=float, nargs="+", default=[1.05, 1.1, 1.2])
    given = parser.parse_args()
    head = [
        "replicas", "one is slower, %", "noticed after, iterations", "then answered after, iterations",
        "saved, %", "oracle, %", "share of the oracle's, %", "iterations longer, %",
    ]  # fmt: skip
    title = f"A straggler, 4 stages x 8 micro-batches, noise {100 * given.noise:g} %"
    table(title, head, [row(given.replicas, given.noise, each) for each in given.slower])


if __name__ == "__main__":
    main()
