"""Energy that plans of few changes save beside the bound of single instructions, on drawn schedules.

    python -m benchmarks.pipeline.groupings [--seeds 100 104] [--slowdown 1.0] [--moves 6000] [--clocks 2 4]

Each seed draws stages (2, 4, 8), micro-batches (4 to 32) and the work of a stage, for every schedule. Long:
forwards of 94 ms by up to 10 %, backwards of 245 to 425 ms. Short: 20 and 45 ms by up to 15 %. A change takes
10 ms, and a GPU takes 20 a second. The truth is arithmetic: simulated A100s of a published shape (see
`simulated_gpu/workloads.py`); forwards draw as `squad`, backwards as `imagenet`.

The bound knows no changes of clock. ``--moves``: simulated annealing, which pays for changes as a plan does,
looks for a better plan of at most MOST instructions; the last columns are shares of what it saves.

``--clocks 2 4`` shows single instructions with so few clocks, without changes: how far rounding and search
are above the bound that branch and bound proves, for each instance.
"""

import math
import random
from collections.abc import Sequence
from statistics import median

from msgspec.structs import replace

from analyzers.pipeline.frontier import ClockOption, FrontierProgram, PipelineProfile, StageKind
from analyzers.pipeline.graph import PipelineGraph
from analyzers.pipeline.plan import make_plans, most_changes, play, unplanned_s
from benchmarks.harness import options, table
from benchmarks.pipeline.schedules import SCHEDULES, make_graph
from zeus_stream.simulated_gpu.workloads import load

GPU = load()["a100"]
CLOCKS_MHZ = tuple(range(GPU.max_clock_mhz, 585, -15))
DRAWN = {"forward": "squad", "backward": "imagenet", "weight": "imagenet"}
SWITCHING_S, CHANGES_PER_S = 0.01, 20.0
MOST = 128
"""Instructions of a graph that is annealed: more take minutes."""


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


def compare(
    schedule: str, seeds: range, slowdown: float, moves: int, *, long: bool
) -> tuple[list[float], list[float], list[str]]:
    """Return the shares of the bound's saving, those of the annealed plan's, and a row of the table."""
    shares, annealed, changes = [], [], []
    for seed in seeds:
        graph, profile = draw(seed, schedule, long=long)
        deadline_s = unplanned_s(graph, profile) * slowdown
        top = [CLOCKS_MHZ[0]] * len(graph.instructions)
        unplanned_j = play(graph, profile, top, 0.0)[1]
        (plan,) = make_plans(
            graph, profile, (deadline_s,), switching_s=SWITCHING_S, changes_per_s=CHANGES_PER_S
        )
        assert plan.time_s <= deadline_s * (1 + 1e-9)
        saved_j = unplanned_j - plan.energy_j
        shares.append(saved_j / (unplanned_j - plan.bound_j))
        if moves and len(graph.instructions) <= MOST:
            least_j = anneal(graph, profile, plan.clocks_mhz, deadline_s, moves, seed)
            annealed.append(saved_j / (unplanned_j - least_j))
        changes.append(most_changes(graph, plan.clocks_mhz) / plan.time_s)
    length = "long" if long else "short"
    return shares, annealed, [length, schedule, *_figures(shares), f"{max(changes):.1f}", *_figures(annealed)]


def anneal(
    graph: PipelineGraph,
    profile: PipelineProfile,
    clocks_mhz: Sequence[int],
    deadline_s: float,
    moves: int,
    seed: int,
) -> float:
    """Return the least energy, J, that random moves from these clocks find, changes included."""
    rng = random.Random(seed)

    def energy_j(clocks: Sequence[int]) -> float:
        if most_changes(graph, clocks) > CHANGES_PER_S * deadline_s:
            return math.inf
        longest_s = play(graph, profile, clocks, 0.0)[0]
        time_s, spent_j = play(graph, profile, clocks, SWITCHING_S)
        return spent_j if max(time_s, longest_s) <= deadline_s * (1 + 1e-9) else math.inf

    now, now_j = list(clocks_mhz), energy_j(clocks_mhz)
    least_j = now_j
    warmest_j = 0.02 * (play(graph, profile, [CLOCKS_MHZ[0]] * len(now), 0.0)[1] - now_j)
    for move in range(moves):
        tried = list(now)
        for _ in range(rng.choice((1, 1, 2))):  # two: one stage becomes slower and another faster
            _change(tried, rng.choice(graph.orders), rng)
        tried_j = energy_j(tried)
        worse, warm_j = tried_j - now_j, warmest_j * (1 - move / moves) ** 2
        if worse <= 0 or (worse < math.inf and rng.random() < math.exp(-worse / warm_j)):
            now, now_j = tried, tried_j
            least_j = min(least_j, now_j)
    return least_j


def _change(clocks_mhz: list[int], chain: Sequence[int], rng: random.Random) -> None:
    """Give some instructions in a row, or all that share a clock, the clock before them or another one."""
    begin = rng.randrange(len(chain))
    own_mhz = clocks_mhz[chain[begin]]
    end = begin + rng.choice((1, 1, 1, 2, 4))
    if rng.random() < 0.3:
        while begin and clocks_mhz[chain[begin - 1]] == own_mhz:
            begin -= 1
        end = begin + 1
        while end < len(chain) and clocks_mhz[chain[end]] == own_mhz:
            end += 1
    place = CLOCKS_MHZ.index(own_mhz) + rng.choice((-8, -4, -2, -1, 1, 2, 4, 8))
    other_mhz = CLOCKS_MHZ[min(max(place, 0), len(CLOCKS_MHZ) - 1)]
    if rng.random() < 0.4:
        other_mhz = clocks_mhz[chain[begin - 1]]
    for index in chain[begin:end]:
        clocks_mhz[index] = other_mhz


def _figures(shares: list[float]) -> list[str]:
    return [f"{100 * median(shares):.0f}", f"{100 * min(shares):.0f}"] if shares else ["", ""]


def with_clocks(profile: PipelineProfile, clocks: int) -> PipelineProfile:
    """Return a profile with so many of its clocks, the highest among them."""
    few = {name: of[:: len(of) // clocks][:clocks] for name, of in profile.options.items()}
    return replace(profile, options=few)


def gaps(seeds: range, slowdown: float, clocks: list[int]) -> list[list[str]]:
    """Return a row for each instance: how far above its bound, in percent, for each number of clocks."""
    rows = []
    for schedule in SCHEDULES:
        for seed in seeds:
            graph, profile = draw(seed, schedule, long=False)
            row = [schedule, f"{seed}", f"{len(graph.instructions)}"]
            for count in clocks:
                program = FrontierProgram(graph, with_clocks(profile, count), range(len(graph.instructions)))
                point, rounded = (program.solve(program.fastest_s * slowdown, quick=q) for q in (False, True))
                row += [f"{100 * (each.energy_j / point.bound_j - 1):.2f}" for each in (rounded, point)]
            rows.append(row)
    return rows


def main() -> None:
    """Print the table."""
    given = options(__doc__, seeds=[100, 104], slowdown=1.0, moves=0, clocks=[int])
    if given.clocks:
        head = ["schedule", "seed", "instructions"]
        for count in given.clocks:
            head += [f"{count} clocks: rounded, %", "searched, %"]
        rows = gaps(range(*given.seeds), given.slowdown, given.clocks)
        table(f"Energy above the proven bound, at {given.slowdown:g} times the time", head, rows)
        return
    rows = []
    for long in (True, False):
        every: list[float] = []
        every_annealed: list[float] = []
        for schedule in SCHEDULES:
            shares, annealed, row = compare(
                schedule, range(*given.seeds), given.slowdown, given.moves, long=long
            )
            every += shares
            every_annealed += annealed
            rows.append(row)
        rows.append(["long" if long else "short", "all", *_figures(every), "", *_figures(every_annealed)])
    columns = (
        "instructions | schedule | share of the bound's saving, median, % | least, %"
        " | changes a second, most | share of the annealed plan's, median, % | least, %"
    )
    table(f"Plans at {given.slowdown:g} times the time of the highest clocks", columns, rows)


if __name__ == "__main__":
    main()
