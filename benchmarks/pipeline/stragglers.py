"""A replica that becomes slower: how soon it is answered, and what that saves beside an oracle's answer.

    python -m benchmarks.pipeline.stragglers [--replicas 4] [--noise 0.02] [--slower 1.05 1.1 1.2] [--live]

The machine of one pipeline in a world of arithmetic GPUs (`tests/analyzers/pipeline/stages.py`): 4 stages, 8
micro-batches, one of the replicas slower from some iteration on. ``saved``: energy of all GPUs over 20
iterations after the answer, against as many with the usual plan. The oracle knows the true profile, and its
plan for the straggler's duration is in force at once.

With ``--live`` two replicas of the guide's example run in real processes; one is slower from some iteration
on, and recovers later. Noticed: iterations until the plan is made. Promised: from then to its first one.
Answered: to the first one that begins when all collectors have the plan.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzers.pipeline.frontier import ClockOption, PipelineProfile
from analyzers.pipeline.plan import make_plans
from analyzers.power_limit.run_settings import PipelineSettings
from benchmarks.harness import directory, options, table
from benchmarks.pipeline.live import train
from tests.analyzers.pipeline.stages import CLOCKS_MHZ, WAITING_W, Stages
from zeus_stream.protocol.pipelines import decode_instruction

PLAYED = 20
SETTLED = 12
"""Iterations from the change to the begin of the measured ones."""


def following(replicas: int, noise: float) -> Stages:
    return Stages(PipelineSettings(iterations=20), replicas=replicas, noise=noise).follow(5)


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
    (plan,) = make_plans(world.graph, true_profile(world), (promised_s * slower,), switching_s=0.01)
    clock_of: dict[tuple[int, str, int], int] = {
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


BEGIN, END, LAST = 60, 80, 100
"""Iterations of the live example: the straggler's first and first usual one, and the last."""
REPLICAS = 2
PLANS = """
SELECT number, plans.t_ns, first_iteration, max(outcome_ns) AS set_ns
FROM plans JOIN commands ON commands.plan = plans.number AND commands.run = plans.run
GROUP BY ALL ORDER BY number
"""
RAN = """
SELECT rank // 4 AS replica, index AS iteration, events.t_ns, events.ended_ns
FROM events JOIN sessions USING (session) WHERE kind = 'iteration_ran' AND rank % 4 = 0 ORDER BY index
"""


def live(slower: float) -> list[list[str]]:
    """Return the rows of one live run: the straggler's begin and its end."""
    load = os.getloadavg()[0]
    with directory() as where:
        given = ("--replicas", REPLICAS, "--iterations", LAST, "--straggler", slower, "--from", BEGIN)
        archive = train(where, 3, 4 * REPLICAS, *given, "--until", END, "--work-ms", 40, clocks=5)
        plans, ran = archive.sql(PLANS).to_pylist(), archive.sql(RAN).to_pylist()
    ends = {
        replica: {e["iteration"]: e for e in ran if e["replica"] == replica} for replica in range(REPLICAS)
    }
    name = f"{100 * (slower - 1):.0f}"
    return [
        [name, what, *answered(plans, ends, at), f"{load:.1f}"]
        for what, at in (("begins", BEGIN), ("ends", END))
    ]


def answered(
    plans: Sequence[dict[str, Any]], ran: dict[int, dict[int, dict[str, Any]]], change: int
) -> list[str]:
    """Return after how many iterations a change at an iteration was noticed, then promised, then answered."""
    begin_ns = ran[0][change]["t_ns"]
    plan = next((each for each in plans[1:] if each["t_ns"] > begin_ns), None)
    if plan is None:
        return ["no plan", "", ""]
    noticed = max(n for n in ran[0] if max(of[n]["ended_ns"] for of in ran.values()) <= plan["t_ns"])
    first = plan["first_iteration"]
    begun = next(n for n, each in ran[0].items() if n >= first and each["t_ns"] > plan["set_ns"])
    return [f"{noticed - change + 1}", f"{first - noticed}", f"{begun - noticed}"]


def main() -> None:
    given = options(__doc__, replicas=4, noise=0.02, slower=[1.05, 1.1, 1.2], live=False)
    if given.live:
        head = [
            "one is slower, %", "that", "noticed after, iterations", "then promised after",
            "then answered after", "load before",
        ]  # fmt: skip
        rows = [row for each in given.slower for row in live(each)]
        table(f"A straggler of {REPLICAS} live replicas, 4 stages x 8 micro-batches", head, rows)
        return
    head = [
        "replicas", "one is slower, %", "noticed after, iterations", "then answered after, iterations",
        "saved, %", "oracle, %", "share of the oracle's, %", "iterations longer, %",
    ]  # fmt: skip
    title = f"A straggler, 4 stages x 8 micro-batches, noise {100 * given.noise:g} %"
    table(title, head, [row(given.replicas, given.noise, each) for each in given.slower])


if __name__ == "__main__":
    main()
