"""Iterations of pipelines under a power budget: limits by stage beside equal ones and an oracle.

    python -m benchmarks.pipeline.budgets [--seeds 900 906]

Pipelines as in `groupings`, long. A budget is a share of the highest limits of all stages. The oracle climbs:
it moves power, 1 W in the end, from any stage to any other, as long as iterations become shorter.
"""

from itertools import permutations
from statistics import median

from analyzers.pipeline.frontier import PipelineProfile
from analyzers.pipeline.graph import PipelineGraph
from analyzers.pipeline.plan import unplanned_s
from analyzers.pipeline.stage_limits import are_below, divide, within_limits
from benchmarks.harness import options, table
from benchmarks.pipeline.groupings import GPU, draw
from benchmarks.pipeline.schedules import SCHEDULES

LIMITS_MW = tuple(range(GPU.min_limit_mw, GPU.max_limit_mw + 1, 25_000))
MOVED_W = (50, 20, 5, 1)


def span_s(graph: PipelineGraph, profile: PipelineProfile, limits_w: dict[int, float]) -> float:
    """Return the duration of an iteration; infinite where it is not known."""
    return (
        float("inf") if are_below(profile, limits_w) else unplanned_s(graph, within_limits(profile, limits_w))
    )


def climb(graph: PipelineGraph, profile: PipelineProfile, limits_w: dict[int, float]) -> float:
    """Return the least duration that moving power between stages reaches."""
    best_s = span_s(graph, profile, limits_w)
    for moved_w in MOVED_W:
        better = True
        while better:
            better = False
            for giver, taker in permutations(limits_w, 2):
                tried = limits_w | {giver: limits_w[giver] - moved_w, taker: limits_w[taker] + moved_w}
                if max(tried.values()) <= GPU.max_limit_mw / 1000 and span_s(graph, profile, tried) < best_s:
                    limits_w, best_s, better = tried, span_s(graph, profile, tried), True
    return best_s


def main() -> None:
    """Print the table."""
    given = options(__doc__, seeds=[900, 906])
    rows = []
    for share in (0.65, 0.7, 0.75, 0.8, 0.9):
        mean_mw = min(LIMITS_MW, key=lambda limit_mw: abs(limit_mw - share * GPU.max_limit_mw))
        ours, best = [], []
        for schedule in SCHEDULES:
            for seed in range(*given.seeds):
                graph, profile = draw(seed, schedule, long=True)
                shares = divide(graph, profile, LIMITS_MW, [1] * graph.stages)
                of_stages = shares[LIMITS_MW.index(mean_mw)][0]
                limits_w = {stage: mw / 1000 for stage, mw in enumerate(of_stages)}
                equal_s = span_s(graph, profile, dict.fromkeys(limits_w, mean_mw / 1000))
                ours.append(100 * (1 - span_s(graph, profile, limits_w) / equal_s))
                best.append(100 * (1 - climb(graph, profile, limits_w) / equal_s))
        rows.append(
            [f"{mean_mw / 1000:g}", *(f"{f(of):.1f}" for of in (ours, best) for f in (median, min, max))]
        )
    columns = "W a GPU | shorter, median, % | least, % | most, % | oracle, median, % | least, % | most, %"
    table("Iterations shorter than under equal limits", columns, rows)


if __name__ == "__main__":
    main()
