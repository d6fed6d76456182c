"""Many games of recurring jobs, and one player's regret over another's with its interval."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import exp, log
from random import Random
from statistics import fmean

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.batch_size.adaptive import Adaptive
from analyzers.batch_size.belief.try_summary import JobHistory
from analyzers.batch_size.policy import Choice, Try, TryVerdict
from analyzers.simulation.recorded_jobs import World
from analyzers.simulation.runner import Game, play_all
from analyzers.simulation.simulated_jobs import Played, by_recurrence, drifting, play, regret

ADAPTIVE = Adaptive()
COUNTS = (5, 10, 20, 50)
"""First recurrences, whose mean cost is kept."""
LEAST_RATIO = 0.01
"""Regrets may be nothing or less by luck; a geometric mean takes them for so much of the reference's."""
RESAMPLED = 1000


class Came(Struct, frozen=True):
    """The results of a player in a world, by seed."""

    regret: list[float]
    last_five: list[float]
    """Energy relative to the default's."""
    first: dict[int, list[float]]
    """Cost relative to the default's, by number of recurrences."""
    missed: int
    """Recurrences that did not reach the target."""


def tournament(worlds: Iterable[World], players: Sequence[str], seeds: int) -> dict[tuple[str, str], Came]:
    """Return what came of all games, by world and player."""
    return played_out(
        [Game(world=w, player=p, seed=s) for w in worlds for p in players for s in range(seeds)]
    )


def played_out(games: Sequence[Game]) -> dict[tuple[str, str], Came]:
    """Return what came of games, by world and player."""
    came: dict[tuple[str, str], Came] = defaultdict(lambda: Came([], [], {n: [] for n in COUNTS}, 0))
    for game, played in play_all(games):
        key = game.world.name, game.player
        came[key] = _with(came[key], game, played)
    return came


@lru_cache(maxsize=1)
def _whole(past: tuple[Try, ...], history: JobHistory) -> JobHistory:
    """Return a history after tries of another world."""
    whole, first = JobHistory(history.job), len(past)
    later = (
        replace(a_try, number=first + a_try.number, recurrence=first + a_try.recurrence)
        for a_try in history.tries
    )
    for a_try in (*past, *later):
        whole = whole.heard(a_try)
    return whole


class Taught(Struct, frozen=True):
    """The adaptive policy, which begins with the tries of another world."""

    past: tuple[Try, ...]

    def choose(self, history: JobHistory, setup: str, rng: Random) -> Choice:
        return ADAPTIVE.choose(_whole(self.past, history), setup, rng)

    def verdict(self, history: JobHistory, a_try: Try) -> TryVerdict:
        return ADAPTIVE.verdict(_whole(self.past, history), a_try)


def taught(before: Sequence[World], worlds: Sequence[World], seeds: int) -> dict[tuple[str, str], Came]:
    """Return what came of the adaptive policy, which begins with what it learned in another world."""
    came: dict[tuple[str, str], Came] = defaultdict(lambda: Came([], [], {n: [] for n in COUNTS}, 0))
    for first, made in zip(before, worlds, strict=True):
        for seed in range(seeds):
            game = Game(world=made, player="adaptive", seed=seed)
            policy = Taught(tuple(tries(first, replace(game, world=first).play())))
            played = play(drifting(made, "none"), policy, seed)
            came[made.name, game.player] = _with(came[made.name, game.player], game, played)
    return came


def tries(world: World, played: Sequence[Played]) -> list[Try]:
    """Return the tries of a game in a world as a policy hears of them when they have ended."""
    return [
        Try(
            number=number,
            recurrence=one.recurrence,
            batch_size=one.batch_size,
            setup=world.gpu,
            epochs=one.epochs,
            cost_j=one.spent.cost_j,
            epoch_cost_j=world.sizes[one.batch_size].best.cost_j,
            metrics=one.metrics,
            ended=one.ended,
        )
        for number, one in enumerate(played)
    ]


def _with(came: Came, game: Game, played: Sequence[Played]) -> Came:
    worlds = drifting(game.world, game.drift)
    default, spent = game.world.by_default, by_recurrence(played, len(worlds))
    came.regret.append(regret(played, worlds)[-1])
    came.last_five.append(fmean(took.energy_j for took in spent[-5:]) / default.energy_j)
    for count, costs in came.first.items():
        costs.append(fmean(took.cost_j for took in spent[:count]) / default.cost_j)
    missed = len(worlds) - len({a_try.recurrence for a_try in played if a_try.ended == "converged"})
    return replace(came, missed=came.missed + missed)


def geometric(values: Iterable[float]) -> float:
    return exp(fmean(log(value) for value in values))


class Over(Struct, frozen=True):
    """The adaptive policy's regret over another's."""

    by_world: list[float]
    mean: float
    """Geometric."""
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def over_of(came: Mapping[tuple[str, str], Came], worlds: Sequence[World], name: str) -> Over:
    """Return the ratios of mean regrets, and a bootstrap interval (over seeds) of their geometric mean."""
    rng = np.random.default_rng(0)

    def means(player: str) -> np.ndarray:
        regrets = np.array([came[made.name, player].regret for made in worlds])
        drawn = rng.integers(regrets.shape[1], size=(len(worlds), RESAMPLED, regrets.shape[1]))
        again = np.take_along_axis(regrets[:, None], drawn, axis=2).mean(axis=2)
        return np.concatenate([regrets.mean(axis=1, keepdims=True), again], axis=1)

    ratios = np.maximum(means("adaptive") / np.maximum(means(name), 1e-9), LEAST_RATIO)
    mean, *others = np.exp(np.log(ratios).mean(axis=0)).tolist()
    low, high = np.quantile(others, [0.025, 0.975]).tolist()
    return Over(ratios[:, 0].tolist(), mean, low, high)
