"""Plans per instruction beside those of `lowtime`, the solver of Perseus: energy at equal time, and seconds.

    python -m benchmarks.pipeline_oracle [--size STAGES MICRO_BATCHES] [--unit-ms 1] [--limit 300]

Both get the true profile of `pipeline.py`, unbalanced stages, no switching time. `lowtime` counts in whole
units of time and goes from the slowest plan to the fastest; of its plans those count that keep a deadline by
the true times. Ours gets the time of its plan as its deadline. `lowtime` runs in the thread of this program
and ends after the limit; without it (it is no dependency) the table says so.
"""

import argparse
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from analyzers.pipeline.frontier import ClockOption, ClockProgram, PipelineProfile
from analyzers.pipeline.graph import PipelineGraph, make_graph
from analyzers.pipeline.plan import play, unplanned_s
from benchmarks import common
from benchmarks.pipeline import truth

SLOWDOWNS = (1.0, 1.05, 1.2)
SLOWEST = 1.6
"""Times the fastest time of an instruction: slower options are no part of the comparison."""


def fast_enough(profile: PipelineProfile) -> PipelineProfile:
    """Return a profile without options that are too slow to matter: `lowtime` visits them all."""
    options = {
        name: tuple(each for each in of if each.time_s <= SLOWEST * of[0].time_s)
        for name, of in profile.options.items()
    }
    return PipelineProfile(options, profile.waiting_w, profile.spread_s)


def plans(graph: PipelineGraph, profile: PipelineProfile, unit_s: float) -> Iterator[tuple[int, ...]]:
    """Yield the plans of `lowtime`, from slow to fast: a clock for each instruction. Raises ImportError."""
    import networkx as nx
    from lowtime.graph_utils import add_sink_node, add_source_node
    from lowtime.operation import (
        CandidateExecutionOptions,
        ExecutionOption,
        Operation,
        OperationSpec,
    )
    from lowtime.solver import PhillipsDessouky

    specs = {}
    for name, options in profile.options.items():
        waiting_w = profile.waiting_w[name[0]]
        candidates = CandidateExecutionOptions(
            options=[
                ExecutionOption(
                    real_time=each.time_s, unit_time=unit_s, cost=each.energy_j - waiting_w * each.time_s,
                    knob=each.clock_mhz,
                )
                for each in options
            ]
        )  # fmt: skip
        specs[name] = OperationSpec(options=candidates, cost_model=Hull(options, unit_s, waiting_w))
    dag = nx.DiGraph()
    for index, each in enumerate(graph.instructions):
        dag.add_node(index, op=Operation(specs[each.stage, each.kind, each.chunk]))
    dag.add_edges_from(graph.edges)
    add_source_node(dag, "source")
    add_sink_node(dag, "sink")
    dag.graph["source_node"], dag.graph["sink_node"] = "source", "sink"
    for _ in PhillipsDessouky(dag).run():
        yield tuple(dag.nodes[index]["op"].assigned_knob for index in range(len(graph.instructions)))


class Hull:
    """The cost of an instruction at any duration: straight lines between the options of least cost."""

    def __init__(self, options: Sequence[ClockOption], unit_s: float, waiting_w: float) -> None:
        points = sorted((each.time_s / unit_s, each.energy_j - waiting_w * each.time_s) for each in options)
        hull: list[tuple[float, float]] = []
        for point in points:
            while len(hull) > 1 and _above(hull[-2], hull[-1], point):
                hull.pop()
            hull.append(point)
        self._times, self._costs = zip(*hull, strict=True)

    def __call__(self, quant_time: int) -> float:
        at = min(max(bisect_left(self._times, quant_time), 1), len(self._times) - 1)
        (t0, t1), (c0, c1) = self._times[at - 1 : at + 1], self._costs[at - 1 : at + 1]
        cost: float = c0 + (c1 - c0) * (quant_time - t0) / (t1 - t0)
        return cost


def _above(one: tuple[float, float], two: tuple[float, float], three: tuple[float, float]) -> bool:
    """Tell whether the middle point lies above the line between the others."""
    return (two[1] - one[1]) * (three[0] - one[0]) >= (three[1] - one[1]) * (two[0] - one[0])


def best_within(
    graph: PipelineGraph,
    profile: PipelineProfile,
    deadlines_s: Sequence[float],
    unit_s: float,
    limit_s: float,
) -> tuple[list[tuple[float, float] | None], float, bool]:
    """Return the best plan of `lowtime` within each deadline (s, J), its CPU seconds, and if it ended.

    The fastest plan counts for every deadline: by the true times it may be longer than the shortest one.
    """
    best: list[tuple[float, float] | None] = [None] * len(deadlines_s)
    begin_s, ended, last = time.process_time(), True, (0.0, 0.0)
    for clocks in plans(graph, profile, unit_s):
        last = play(graph, profile, clocks, 0.0)
        for at, deadline_s in enumerate(deadlines_s):
            known = best[at]
            if last[0] <= deadline_s * (1 + 1e-9) and (known is None or last[1] < known[1]):
                best[at] = last
        if time.process_time() - begin_s > limit_s:
            ended = False
            break
    if ended:
        best = [last if each is None else each for each in best]
    return best, time.process_time() - begin_s, ended


def rows(stages: int, micro_batches: int, unit_s: float, limit_s: float) -> list[list[str]]:
    graph, profile = make_graph("1f1b", stages, micro_batches), fast_enough(truth(stages, 0.2))
    fastest_s = unplanned_s(graph, profile)
    top = [profile.of(each)[0].clock_mhz for each in graph.instructions]
    _, base_j = play(graph, profile, top, 0.0)
    name = f"{stages} x {micro_batches}"
    try:
        found, spent_s, ended = best_within(
            graph, profile, [fastest_s * each for each in SLOWDOWNS], unit_s, limit_s
        )
    except ImportError as missing:
        return [[name, "-", f"no lowtime here: {missing}", "-", "-", "-", "-", "-"]]
    made = []
    for slowdown, theirs in zip(SLOWDOWNS, found, strict=True):
        said = f"{spent_s:.1f}" if ended else f"ended after {spent_s:.0f}"
        if theirs is None:
            made.append([name, f"{slowdown:g}", "not reached", "-", "-", "-", said, "-"])
            continue
        begin_s = time.process_time()
        point = ClockProgram(graph, profile, range(len(graph.instructions))).solve(theirs[0])
        clocks = [
            profile.of(each)[at].clock_mhz for each, at in zip(graph.instructions, point.choice, strict=True)
        ]
        took_s, took_j = play(graph, profile, clocks, 0.0)
        made.append(
            [
                name,
                f"{slowdown:g}",
                f"{100 * (1 - theirs[1] / base_j):.2f}",
                f"{100 * (theirs[0] / fastest_s - 1):+.2f}",
                f"{100 * (1 - took_j / base_j):.2f}",
                f"{100 * (took_s / fastest_s - 1):+.2f}",
                said,
                f"{time.process_time() - begin_s:.2f}",
            ]
        )
    return made


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--size", type=int, nargs=2, action="append")
    parser.add_argument("--unit-ms", type=float, default=1.0, help="lowtime's unit of time")
    parser.add_argument("--limit", type=float, default=300.0, help="CPU seconds of lowtime, for each size")
    asked = parser.parse_args()
    found = []
    for stages, micro_batches in asked.size or ((4, 8), (4, 16), (8, 32)):
        found += rows(stages, micro_batches, asked.unit_ms / 1000, asked.limit)
    common.table(
        f"Per instruction beside lowtime 0.3, unit {asked.unit_ms:g} ms, unbalanced stages, true profile",
        (
            "stages x micro-batches",
            "slowdown allowed",
            "lowtime: saved, %",
            "its time, %",
            "ours at that time: saved, %",
            "its time, %",
            "lowtime's whole frontier, CPU s",
            "ours, this point, CPU s",
        ),
        found,
    )


if __name__ == "__main__":
    sys.exit(main())
