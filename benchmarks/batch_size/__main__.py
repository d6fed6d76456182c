"""The game of recurring jobs on Zeus's published traces: its figures reproduced, others beside them.

python -m benchmarks.batch_size [--traces DIR] [--seeds 50] [--draw 1] [--only PART ...]

Rules: ``analyzers/simulation/recorded_jobs.py``; players: ``analyzers/simulation/baselines.py``.
"zeus" is the reference's policy with its faults, "reference" the same policy mended, as a training lives it.
Regret is in units of the optimal cost, cumulative over 2 x sizes x limits recurrences. Means of all seeds;
intervals are of 95 %.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import erfc, sqrt
from statistics import fmean, stdev, variance

from analyzers.simulation.baselines import PLAYERS
from analyzers.simulation.recorded_jobs import Traces, World, recorded_workload, world
from analyzers.simulation.runner import Game, play_all
from analyzers.simulation.simulated_jobs import drifting, regret
from analyzers.simulation.traces import PUBLISHED, read
from benchmarks.batch_size.hard_worlds import hard_worlds
from benchmarks.batch_size.tournament import LEAST_RATIO, geometric, over_of, taught, tournament
from benchmarks.harness import options, table

GPUS = ("v100", "a40")
DATASETS = ("cifar100", "imagenet", "squad", "librispeech", "movielens-1m", "sentiment140")
LAST_FIVE: dict[str, tuple[float | tuple[float, float], ...]] = {
    "v100": ((0.243, 0.275), (0.775, 0.823), (0.771, 0.895), (0.581, 0.660), (0.315, 0.378), 0.791),
    "a40": (0.330, 0.866, 0.845, 0.337, 0.398, 0.794),
}
"""Energy of the last five recurrences relative to the default, as published or recorded of the reference."""
REGRET = {"v100": (9.7, 4.5, 1.8, 8.8, 15.3, 1.7), "a40": (10.0, 5.2, 3.2, 8.3, 14.0, 4.4)}
"""Of the reference, by workload as in `DATASETS`."""
FIRST = {5: (1.01, 0.74), 10: (0.96, 0.69), 20: (0.83, 0.67), 50: (0.72, 0.65)}
"""Cost of the first recurrences against always the default: the reference's, and the floor's."""

ADAPTIVE_FIRST = {5: 0.80, 10: 0.73, 20: 0.69, 50: 0.66}
"""Goals of the adaptive policy; those of its regret, over the reference's, are in `main` and below."""
WORST = 1.5
"""Regret over the reference's in a hard world, at most."""


def reference(worlds: Sequence[World], seeds: int) -> None:
    """Print the reference's figures beside those that it is known for."""
    began = time.perf_counter()
    came = tournament(worlds, ["zeus"], seeds)
    zeus_s = time.perf_counter() - began
    came |= tournament(worlds, ["reference"], seeds)
    rows = []
    for made in worlds:
        at = DATASETS.index(made.dataset)
        goal = LAST_FIVE[made.gpu][at]
        low, high = goal if isinstance(goal, tuple) else (0.95 * goal, 1.05 * goal)
        zeus, mended = came[made.name, "zeus"], came[made.name, "reference"]
        rows.append(
            [
                made.name,
                f"{fmean(zeus.last_five):.3f}",
                f"[{low:.3f}, {high:.3f}]",
                "yes" if low <= fmean(zeus.last_five) <= high else "NO",
                f"{fmean(mended.last_five):.3f}",
                f"{fmean(zeus.regret):.1f} +- {1.96 * stdev(zeus.regret) / sqrt(seeds):.1f}",
                f"{REGRET[made.gpu][at]:.1f}",
                f"{fmean(mended.regret):.1f}",
            ]
        )
    head = "world | energy of the last five: zeus | goal | held | reference | regret: zeus | goal | reference"
    table(f"The reference's policy, {seeds} seeds ({zeus_s:.0f} s for zeus)", head, rows)


def two_best_known(here: World) -> float:
    """Return the expected regret of a policy that knows all of the two best sizes, but not which is which.

    It pays the first recurrence at the default size and one profiling of the best. Its t runs before a choice
    mislead it with probability Phi(-sqrt(t) d / 2 s), where d is the difference of the two costs and s the
    scatter of runs: the Bayes error of two equally likely normal means.
    """
    costs = here.competing
    best, second = sorted(costs, key=costs.__getitem__)[:2]
    optimum_j, apart_j = costs[best], costs[second] - costs[best]
    scatter_j = sqrt(
        fmean(
            variance([run.epochs or 0 for run in of.trainings]) * of.best.cost_j**2
            for of in (here.sizes[best], here.sizes[second])
        )
    )
    profiled = [here.sizes[size] for size in {best, here.job.default}]
    profiling_j = sum(of.profiling.cost_j - of.best.cost_j for of in profiled)
    wrong = (
        erfc(sqrt(count / 8) * apart_j / max(scatter_j, 1e-9 * optimum_j)) / 2
        for count in range(here.recurrences - 1)
    )
    return (costs[here.job.default] - optimum_j + profiling_j + apart_j * sum(wrong)) / optimum_j


def players(worlds: Sequence[World], seeds: int) -> None:
    """Print everybody's regret, and what the first recurrences cost against always the default."""
    came = tournament(worlds, list(PLAYERS), seeds)
    rows = []
    for name in PLAYERS:
        regrets = [f"{fmean(came[made.name, name].regret):.1f}" for made in worlds]
        first = [
            f"{geometric(fmean(came[made.name, name].first[count]) for made in worlds):.2f}"
            for count in FIRST
        ]
        missed = sum(came[made.name, name].missed for made in worlds)
        rows.append([name, *regrets, *first, missed])
    rows.append(["goal: zeus", *(f"{REGRET[w.gpu][DATASETS.index(w.dataset)]}" for w in worlds),
                 *(f"{goal[0]:.2f}" for goal in FIRST.values()), 0])  # fmt: skip
    known = (f"{two_best_known(made):.1f}" for made in worlds)
    rows.append(["two best known", *known, *[""] * len(FIRST), ""])
    rows.append(["goal: known", *[""] * len(worlds), *(f"{goal[1]:.2f}" for goal in FIRST.values()), 0])
    head = ["regret", *(made.name for made in worlds), *(f"cost of the first {n}" for n in FIRST), "missed"]
    table(f"Everybody, {seeds} seeds", head, rows)


def adaptive(worlds: Sequence[World], seeds: int, title: str, goal: float, worst: float) -> None:
    """Print the adaptive policy's regret beside the reference's."""
    came = tournament(worlds, ["zeus", "reference"], seeds)
    began = time.perf_counter()
    came |= tournament(worlds, ["adaptive"], seeds)
    took_s = time.perf_counter() - began
    over = {name: over_of(came, worlds, name) for name in ("zeus", "reference")}
    rows = []
    for at, made in enumerate(worlds):
        ours = came[made.name, "adaptive"].regret
        row = [made.name, *(f"{fmean(came[made.name, name].regret):.1f}" for name in over)]
        row.append(f"{fmean(ours):.1f} +- {1.96 * stdev(ours) / sqrt(seeds):.1f}")
        rows.append([*row, *(f"{of.by_world[at]:.2f}" for of in over.values()), ""])
    held = over["zeus"].mean <= goal
    rows.append(["geometric mean", "", "", "", *(str(of) for of in over.values()),
                 f"{'yes' if held else 'NO'}: at most {goal:.2f}"])  # fmt: skip
    most = [max(of.by_world) for of in over.values()]
    rows.append(["worst", "", "", "", *(f"{ratio:.2f}" for ratio in most),
                 f"{'yes' if most[0] <= worst else 'NO'}: at most {worst:.1f}"])  # fmt: skip
    head = "regret | zeus | reference | adaptive | over zeus | over reference | held"
    missed = sum(came[made.name, "adaptive"].missed for made in worlds)
    table(f"{title}, {len(worlds)} worlds, {seeds} seeds ({took_s:.0f} s, {missed} missed)", head, rows)
    rows = []
    for count, most_cost in ADAPTIVE_FIRST.items():
        costs = {
            name: geometric(fmean(came[made.name, name].first[count]) for made in worlds)
            for name in ("zeus", "reference", "adaptive")
        }
        held = costs["adaptive"] <= most_cost
        rows.append(
            [str(count), *(f"{cost:.3f}" for cost in costs.values()), str(most_cost), "yes" if held else "NO"]
        )
    table(f"{title}: cost of the first over always the default's", ["first", *costs, "goal", "held"], rows)


def hard(traces: Traces, seeds: int, draw: int) -> None:
    """Print the adaptive policy's regret over the reference's in worlds that no trace shows, by kind.

    A world is left out of the ratios where the reference's regret is below 0, by luck.
    """
    worlds = hard_worlds(draw, traces)
    names = ("reference", "adaptive", "default")
    came: dict[str, list[tuple[float | None, float]]] = defaultdict(list)
    games = [
        Game(world=one.world, player=name, seed=seed, drift=one.drift)
        for one in worlds
        for name in names
        for seed in range(seeds)
    ]
    regrets: dict[tuple[str, str], list[float]] = defaultdict(list)
    costs: dict[tuple[str, str], float] = defaultdict(float)
    for game, played in play_all(games):
        by_time = drifting(game.world, game.drift)
        key = game.world.name, game.player
        regrets[key].append(regret(played, by_time)[-1])
        costs[key] += sum(one.spent.cost_j for one in played)
    for one in worlds:
        name = one.world.name
        ours, theirs = (fmean(regrets[name, player]) for player in ("adaptive", "reference"))
        ratio = max(LEAST_RATIO, ours / theirs) if theirs > 0 else None
        came[one.kind].append((ratio, costs[name, "adaptive"] / costs[name, "default"]))
    everything = [pair for pairs in came.values() for pair in pairs]
    rows = []
    for kind, pairs in (*came.items(), ("all", everything)):
        ratios = [ratio for ratio, _ in pairs if ratio is not None]
        row = [kind, len(pairs), len(pairs) - len(ratios), f"{geometric(ratios):.3f}", f"{max(ratios):.2f}"]
        rows.append([*row, sum(one > WORST for one in ratios), f"{max(over for _, over in pairs):.3f}"])
    head = "kind | worlds | left out | regret over reference's | worst | above 1.5 | dearest over default"
    table(f"Hard worlds, draw {draw}, {seeds} seeds; goals 0.30, {WORST}, 0, 1.02", head, rows)


def transfer(before: Sequence[World], worlds: Sequence[World], seeds: int) -> None:
    """Print the regret of a start with what was learned on another GPU over the reference's cold start."""
    came = tournament(worlds, ["zeus", "reference"], seeds)
    came |= taught(before, worlds, seeds)
    over = {name: over_of(came, worlds, name) for name in ("zeus", "reference")}
    rows = [
        [made.name, *(f"{fmean(came[made.name, name].regret):.1f}" for name in (*over, "adaptive")),
         *(f"{of.by_world[at]:.2f}" for of in over.values())]
        for at, made in enumerate(worlds)
    ]  # fmt: skip
    rows.append(["geometric mean (at most 0.20)", "", "", "", *(str(of) for of in over.values())])
    head = "regret | zeus | reference | adaptive, taught | over zeus | over reference"
    table(f"Started with what the other GPU has taught, {seeds} seeds", head, rows)


PARTS = ("reference", "players", "adaptive", "recorded", "hard", "transfer")


def main() -> None:
    given = options(
        __doc__, {"only": PARTS}, traces=PUBLISHED, seeds=50, only=PARTS, draw=1
    )  # draw 1 of the hard worlds was tuned on, the others were not
    traces, seeds = read(given.traces), given.seeds
    worlds = [world(traces, gpu, workload) for gpu in GPUS for workload in traces.workloads.values()]
    parts: dict[str, Callable[[], None]] = {
        "reference": lambda: reference(worlds, seeds),
        "players": lambda: players(worlds, seeds),
        "adaptive": lambda: adaptive(worlds, seeds, "Adaptive", 0.30, 1.0),
        "recorded": lambda: adaptive(
            every_recorded(traces), seeds, "Adaptive, every recorded world", 0.25, 1.0
        ),
        "hard": lambda: hard(traces, seeds, given.draw),
        "transfer": lambda: transfer(worlds[: len(DATASETS)], worlds[len(DATASETS) :], seeds),
    }
    for name, part in parts.items():
        if name in given.only:
            part()


def every_recorded(traces: Traces) -> list[World]:
    """Return a world for each workload on each GPU model that was recorded with it."""
    return [
        world(traces, gpu, fit)
        for gpu in traces.powered
        for workload in traces.workloads.values()
        if (fit := recorded_workload(traces, gpu, workload))
    ]


if __name__ == "__main__":
    main()
