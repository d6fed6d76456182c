"""Pipeline frequency plans in simulation: energy saved and time taken, beside plans from the true profile.

    python -m benchmarks.pipeline [--quick | --size STAGES MICRO_BATCHES]

The truth is arithmetic: stages on simulated A100s (a published shape, see `simulated_gpu/workloads.py`),
forwards of 22 ms that draw as `squad`, backwards of 45 ms as `imagenet`, waiting at idle draw. Unbalanced
stages differ by up to 20 %. Each instruction's time varies by 2 % (standard deviation). The profile is
measured: boundaries of 30 iterations at each of 10 clocks, and an energy counter refreshed every 100 ms.
"""

import sys
import time
from collections.abc import Sequence

import numpy as np

from analyzers.pipeline.frontier import ClockOption, FrontierProgram, PipelineProfile
from analyzers.pipeline.graph import PipelineGraph
from analyzers.pipeline.plan import make_plan, make_plans, play, unplanned_s
from analyzers.pipeline.profile import EnergyWindow, InstructionSpan, combine, cut_windows, fit_stage
from benchmarks import harness
from benchmarks.pipeline.schedules import make_graph
from zeus_stream.simulated_gpu.workloads import load

GPU = load()["a100"]
CLOCKS_MHZ = tuple(range(GPU.max_clock_mhz, 585, -15))
NOISE = 0.02
PROFILED_MHZ = CLOCKS_MHZ[::6]
ITERATIONS = 30
REFRESH_NS = 100_000_000
WORK = {"forward": (0.022, "squad"), "backward": (0.045, "imagenet")}
PLAYED = 60


def truth(stages: int, unbalance: float) -> PipelineProfile:
    """Return what the simulated GPUs do. ``unbalance``: largest deviation of a stage's work from the mean."""
    options = {}
    for stage in range(stages):
        weight = 1 + unbalance * ((stage * 7) % 5 - 2) / 2
        for kind, (work_s, name) in WORK.items():
            job = GPU.workloads[name]
            times = [work_s * weight * job.slowdown(GPU.max_limit_mw, mhz) for mhz in CLOCKS_MHZ]
            powers = [job.power_mw(GPU.max_limit_mw, mhz) / 1000 for mhz in CLOCKS_MHZ]
            options[stage, kind, 0] = tuple(
                ClockOption(mhz, time_s, time_s * power)
                for mhz, time_s, power in zip(CLOCKS_MHZ, times, powers, strict=True)
            )
    spread_s = {name: NOISE * known[0].time_s for name, known in options.items()}
    return PipelineProfile(options, (GPU.idle_mw / 1000,) * stages, spread_s)


def measure(graph: PipelineGraph, true: PipelineProfile, rng: np.random.Generator) -> PipelineProfile:
    """Return the profile as it is learned from boundaries and counters."""
    durations: list[dict[tuple[str, int, int], list[float]]] = [{} for _ in graph.orders]
    windows: list[list[EnergyWindow]] = [[] for _ in graph.orders]
    for clock in PROFILED_MHZ:
        at = CLOCKS_MHZ.index(clock)
        spans: list[list[InstructionSpan]] = [[] for _ in graph.orders]
        powers: list[list[float]] = [[] for _ in graph.orders]
        begin_s = 0.0
        for _ in range(ITERATIONS):
            lengths = [
                true.of(each)[at].time_s * stretch
                for each, stretch in zip(graph.instructions, noise(graph, rng), strict=True)
            ]
            starts = graph.starts_s(lengths)
            for stage, chain in enumerate(graph.orders):
                for index in chain:
                    each, option = graph.instructions[index], true.of(graph.instructions[index])[at]
                    edges = (round((begin_s + starts[index] + more) * 1e9) for more in (0.0, lengths[index]))
                    spans[stage].append(InstructionSpan(each.kind, 0, *edges))
                    powers[stage].append(option.energy_j / option.time_s)
                    durations[stage].setdefault((each.kind, 0, clock), []).append(lengths[index])
            begin_s += graph.makespan_s(lengths)
        for stage in range(graph.stages):
            refreshes = np.arange(int(rng.uniform(0, REFRESH_NS)), round(begin_s * 1e9), REFRESH_NS)
            counter = count(spans[stage], powers[stage], true.waiting_w[stage], refreshes)
            windows[stage] += cut_windows(clock, spans[stage], refreshes.tolist(), counter)
    stages = [fit_stage(stage, durations[stage], windows[stage]) for stage in range(graph.stages)]
    return combine(stages, CLOCKS_MHZ)


def count(
    spans: Sequence[InstructionSpan], powers: Sequence[float], waiting_w: float, refreshes: np.ndarray
) -> list[float]:
    """Return an energy counter, J, at the times of its refreshes."""
    edges = np.array([edge for span in spans for edge in (span.begin_ns, span.end_ns)])
    steps = np.diff(edges, prepend=0) / 1e9
    drawn = np.array([watt for power in powers for watt in (waiting_w, power)])
    return [float(joules) for joules in np.interp(refreshes, edges, np.cumsum(steps * drawn))]


def noise(graph: PipelineGraph, rng: np.random.Generator) -> list[float]:
    """Return how much longer than by the profile each instruction takes."""
    return rng.normal(1.0, NOISE, len(graph.instructions)).tolist()


def average(
    graph: PipelineGraph, true: PipelineProfile, clocks: Sequence[int], switching_s: float
) -> tuple[float, float]:
    """Return mean duration and energy of PLAYED iterations, the same noise for all plans."""
    rng = np.random.default_rng(7)
    played = [play(graph, true, clocks, switching_s, noise(graph, rng)) for _ in range(PLAYED)]
    return float(np.mean([one[0] for one in played])), float(np.mean([one[1] for one in played]))


def uniform(graph: PipelineGraph, true: PipelineProfile, most_s: float) -> tuple[int, ...]:
    """Return the best single clock for all instructions within a duration."""
    plans = [(clock,) * len(graph.instructions) for clock in CLOCKS_MHZ]
    held = [(plan, play(graph, true, plan, 0.0)) for plan in plans]
    return min((one for one in held if one[1][0] <= most_s * (1 + 1e-9)), key=lambda one: one[1][1])[0]


def figures(stages: int, micro_batches: int, unbalance: float, switches: Sequence[float]) -> list[list[str]]:
    """Return the table's rows of one pipeline."""
    graph, true = make_graph("1f1b", stages, micro_batches), truth(stages, unbalance)
    learned = measure(graph, true, np.random.default_rng(1))
    wrong_s = max(
        abs(mine.time_s / real.time_s - 1)
        for name in true.options
        for mine, real in pairs(learned, true, name)
    )
    wrong_j = max(
        abs(mine.energy_j / real.energy_j - 1)
        for name in true.options
        for mine, real in pairs(learned, true, name)
    )
    top = (CLOCKS_MHZ[0],) * len(graph.instructions)
    base_s, base_j = average(graph, true, top, 0.0)
    rows = []
    for switching_s in switches:
        for slowdown in (1.0, 1.05):
            cells = []
            for profile in (learned, true):
                deadline_s = unplanned_s(graph, profile) * slowdown
                plan = make_plan(graph, profile, deadline_s, switching_s=switching_s, changes_per_s=20)
                took_s, took_j = average(graph, true, plan.clocks_mhz, switching_s)
                cells.append((1 - took_j / base_j, took_s / base_s - 1))
            bound_j = make_plan(graph, true, unplanned_s(graph, true) * slowdown, reserve=0.0).bound_j
            most = 1 - bound_j / play(graph, true, top, 0.0)[1]
            one_j = average(graph, true, uniform(graph, true, unplanned_s(graph, true) * slowdown), 0.0)[1]
            (ours, longer), (informed, _) = cells
            rows.append(
                [
                    f"{stages} x {micro_batches}",
                    "unbalanced" if unbalance else "balanced",
                    f"{switching_s * 1000:g}",
                    f"{slowdown:g}",
                    f"{100 * ours:.2f}",
                    f"{100 * longer:+.2f}",
                    f"{100 * informed:.2f}",
                    f"{100 * most:.2f}",
                    f"{100 * (1 - one_j / base_j):.2f}",
                    f"{100 * wrong_s:.2f} / {100 * wrong_j:.2f}",
                ]
            )
    return rows


def pairs(
    learned: PipelineProfile, true: PipelineProfile, name: tuple[int, str, int]
) -> list[tuple[ClockOption, ClockOption]]:
    """Return learned and true options at the same clocks."""
    real = {option.clock_mhz: option for option in true.options[name]}
    return [(option, real[option.clock_mhz]) for option in learned.options[name]]


def speed() -> list[list[str]]:
    """Return how long frontiers take, processor time, and how far rounding is from the bound."""
    rows = []
    FrontierProgram(make_graph("1f1b", 2, 2), truth(2, 0.2), range(8)).solve(1.0)  # SciPy is loaded by now
    for stages, micro_batches in ((4, 8), (8, 32)):
        graph, true = make_graph("1f1b", stages, micro_batches), truth(stages, 0.2)
        fastest_s = unplanned_s(graph, true)
        begin_s = time.process_time()
        aims = [fastest_s * (1 + 0.05 * point) for point in range(6)]
        program = FrontierProgram(graph, true, range(len(graph.instructions)))
        points = [program.solve(aim) for aim in aims]
        fine_s = time.process_time() - begin_s
        begin_s = time.process_time()
        make_plans(graph, true, aims, switching_s=0.01, changes_per_s=20)
        coarse_s = time.process_time() - begin_s
        gap = max(point.energy_j / point.bound_j - 1 for point in points)
        rows.append([f"{stages} x {micro_batches}", f"{coarse_s:.2f}", f"{fine_s:.2f}", f"{100 * gap:.3f}"])
    return rows


def main() -> None:
    """Print the tables."""
    quick = "--quick" in sys.argv[1:]
    sizes = ((4, 8),) if quick else ((4, 8), (4, 16), (8, 32))
    if "--size" in sys.argv[1:]:
        at = sys.argv.index("--size")
        sizes = ((int(sys.argv[at + 1]), int(sys.argv[at + 2])),)
    harness.table(
        "Six points of the frontier",
        (
            "stages x micro-batches",
            "plans, CPU s",
            "single instructions, CPU s",
            "largest gap to the bound, %",
        ),
        speed(),
    )
    rows = []
    for stages, micro_batches in sizes:
        for unbalance in (0.0, 0.2):
            rows += figures(stages, micro_batches, unbalance, (0.0, 0.005, 0.02))
    harness.table(
        f"Energy saved, % of unplanned iterations, {ITERATIONS * len(PROFILED_MHZ)} iterations profiled",
        (
            "stages x micro-batches",
            "stages",
            "switching, ms",
            "slowdown allowed",
            "plan",
            "its time, %",
            "of the true profile",
            "no plan saves more",
            "one clock for all",
            "worst error of times / energies, %",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
