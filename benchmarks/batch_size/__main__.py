"""Recurring jobs in worlds that no trace shows: the adaptive policy's regret over the reference's, by kind.

python -m benchmarks.batch_size [--draw 1] [--seeds 3]

`hard_worlds.py` has the kinds and which draws were tuned on. `zeus-stream simulate` plays recorded worlds.
Rules: ``analyzers/simulation/recorded_jobs.py``; players: ``analyzers/simulation/baselines.py``. Regret is in
units of the optimal cost, cumulative over 2 x sizes x limits recurrences. A world is left out of the ratios
where the reference's regret is below 0, by luck.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import exp, log
from statistics import fmean

from analyzers.simulation.runner import Game, play_all
from analyzers.simulation.simulated_jobs import drifting, regret
from analyzers.simulation.traces import PUBLISHED, read
from benchmarks.batch_size.hard_worlds import hard_worlds
from benchmarks.harness import options, table

PLAYERS = ("reference", "adaptive", "default")
LEAST_RATIO = 0.01
"""Regret may be nothing or less by luck; a geometric mean takes it for so much of the reference's."""
WORST = 1.5
"""Regret over the reference's in a world, at most."""
Ratios = tuple[float | None, float]
"""The adaptive policy's regret over the reference's, and its cost over always the default's."""


def row(kind: str, pairs: Sequence[Ratios]) -> list[object]:
    """Return the figures of some worlds."""
    regrets = [over for over, _ in pairs if over is not None]
    mean = exp(fmean(map(log, regrets)))
    left_out, above = len(pairs) - len(regrets), sum(over > WORST for over in regrets)
    dearest = max(over for _, over in pairs)
    return [kind, len(pairs), left_out, f"{mean:.3f}", f"{max(regrets):.2f}", above, f"{dearest:.3f}"]


def main() -> None:
    given = options(__doc__, traces=PUBLISHED, draw=1, seeds=3)
    worlds = hard_worlds(given.draw, read(given.traces))
    games = [
        Game(world=one.world, player=name, seed=seed, drift=one.drift)
        for one in worlds
        for name in PLAYERS
        for seed in range(given.seeds)
    ]
    regrets: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    costs: defaultdict[tuple[str, str], float] = defaultdict(float)
    for game, played in play_all(games):
        key = game.world.name, game.player
        regrets[key].append(regret(played, drifting(game.world, game.drift))[-1])
        costs[key] += sum(one.spent.cost_j for one in played)
    by_kind: defaultdict[str, list[Ratios]] = defaultdict(list)
    for one in worlds:
        name = one.world.name
        theirs, ours = (fmean(regrets[name, player]) for player in ("reference", "adaptive"))
        over = max(LEAST_RATIO, ours / theirs) if theirs > 0 else None
        by_kind[one.kind].append((over, costs[name, "adaptive"] / costs[name, "default"]))
    rows = [row(*of) for of in by_kind.items()]
    rows.append(row("all", [pair for pairs in by_kind.values() for pair in pairs]))
    head = "kind | worlds | left out | regret over reference's | worst | above 1.5 | dearest over default"
    title = f"Hard worlds, draw {given.draw}, {given.seeds} seeds; goals 0.30, {WORST}, 0, 1.02"
    table(title, head, rows)


if __name__ == "__main__":
    main()
