"""Energy that plans of few changes save beside the bound of single instructions, on drawn schedules.

    python -m benchmarks.pipeline.groupings [--seeds 100 104] [--slowdown 1.0]

Each seed draws stages (2, 4, 8), micro-batches (4 to 32) and the work of a stage, for every schedule. Long:
forwards of 94 ms by up to 10 %, backwards of 245 to 425 ms. Short: 20 and 45 ms by up to 15 %. A change takes
10 ms, and a GPU takes 20 a second. The truth is arithmetic: simulated A100s of a published shape (see
`simulated_gpu/workloads.py`); forwards draw as `squad`, backwards as `imagenet`.

The bound knows no changes of clock.
"""

import random
from statistics import median

from msgspec.structs import replace

from analyzers.pipeline.frontier import ClockOption, PipelineProfile, StageKind
from analyzers.pipeline.graph import PipelineGraph
from analyzers.pipeline.plan import make_plans, most_changes, play, unplanned_s
from benchmarks.harness import options, table
from benchmarks.pipeline.schedules import SCHEDULES, make_graph
from zeus_stream.simulated_gpu.workloads import load

GPU = load()["a100"]
CLOCKS_MHZ = tuple(range(GPU.max_clock_mhz, 585, -15))
DRAWN = {"forward": "squad", "backward": "imagenet", "weight": "imagenet"}
SWITCHING_S, CHANGES_PER_S = 0.01, 20.0


def draw(seed: int, schedule: str, *, long: bool) -> tuple[PipelineGraph, PipelineProfile]:
    """Return a pipeline with what its instructions take."""
    rng = random.Random(seed)
    stages, micro_batches = rng.choice((2, 4, 8)), rng.choice((4, 8, 16, 32))
    chunks = 2 if schedule == "interleaved" else 1
    if chunks > 1:
        micro_batches = max(micro_batches, stages)
    options: dict[StageKind, tuple[ClockOption, ...]] = {}
    for stage in range(stages):
        forward_s = 0.094 * rng.uniform(0.9, 1.1) if long else 0.020 * rng.uniform(0.85, 1.15)
        backward_s = rng.uniform(0.245, 0.425) if long else 0.045 * rng.uniform(0.85, 1.15)
        works = {"forward": forward_s, "backward": backward_s}
        if schedule == "zero_bubble":
            works["weight"] = works["backward"] = backward_s / 2
        for kind, work_s in works.items():
            job = GPU.workloads[DRAWN[kind]]
            times = {mhz: work_s * job.slowdown(GPU.max_limit_mw, mhz) for mhz in CLOCKS_MHZ}
            known = tuple(
                ClockOption(mhz, time_s, time_s * job.power_mw(GPU.max_limit_mw, mhz) / 1000)
                for mhz, time_s in times.items()
            )
            options |= {(stage, kind, chunk): known for chunk in range(chunks)}
    profile = PipelineProfile(options, (GPU.idle_mw / 1000,) * stages)
    return make_graph(schedule, stages, micro_batches, chunks), profile


def compare(schedule: str, seeds: range, slowdown: float, *, long: bool) -> tuple[list[float], list[str]]:
    """Return the shares of the bound's saving, and a row of the table."""
    shares, changes = [], []
    for seed in seeds:
        graph, profile = draw(seed, schedule, long=long)
        deadline_s = unplanned_s(graph, profile) * slowdown
        top = [CLOCKS_MHZ[0]] * len(graph.instructions)
        unplanned_j = play(graph, profile, top, 0.0)[1]
        (plan,) = make_plans(
            graph, profile, (deadline_s,), switching_s=SWITCHING_S, changes_per_s=CHANGES_PER_S
        )
        assert plan.time_s <= deadline_s * (1 + 1e-9)
        shares.append((unplanned_j - plan.energy_j) / (unplanned_j - plan.bound_j))
        changes.append(most_changes(graph, plan.clocks_mhz) / plan.time_s)
    return shares, ["long" if long else "short", schedule, *_figures(shares), f"{max(changes):.1f}"]


def _figures(shares: list[float]) -> list[str]:
    return [f"{100 * median(shares):.0f}", f"{100 * min(shares):.0f}"]


def with_clocks(profile: PipelineProfile, clocks: int) -> PipelineProfile:
    """Return a profile with so many of its clocks, the highest among them."""
    few = {name: of[:: len(of) // clocks][:clocks] for name, of in profile.options.items()}
    return replace(profile, options=few)


def main() -> None:
    """Print the table."""
    given = options(__doc__, seeds=[100, 104], slowdown=1.0)
    rows = []
    for long in (True, False):
        every: list[float] = []
        for schedule in SCHEDULES:
            shares, row = compare(schedule, range(*given.seeds), given.slowdown, long=long)
            every += shares
            rows.append(row)
        rows.append(["long" if long else "short", "all", *_figures(every), ""])
    columns = (
        "instructions | schedule | share of the bound's saving, median, % | least, % | changes a second, most"
    )
    table(f"Plans at {given.slowdown:g} times the time of the highest clocks", columns, rows)


if __name__ == "__main__":
    main()
