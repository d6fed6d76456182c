"""Plays a policy on recorded jobs: recurrences, tries and what they take; and jobs that change. Pure.

    worlds by recurrence, policy, seed -> what every try of every recurrence took

The rules are those of `analyzers.simulation.recorded_jobs`.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import ceil, exp, floor, inf, log, sqrt
from random import Random
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from analyzers.batch_size.belief.try_summary import JobHistory
from analyzers.batch_size.policy import Policy, Try
from analyzers.results.job_rows import Ended
from analyzers.simulation.recorded_jobs import NOTHING, RecordedTraining, Size, SpentByTry, World

TRIES = 20
"""Of a recurrence, at most."""
EXACT = 1 + 1e-9
"""A bound of two epochs' cost pays two epochs, however they were added up."""

# ---- what changes while it recurs -----------------------------------------------------------------------

Drift = Literal["none", "abrupt", "slow", "harder 1.4", "harder 2.2"]
DRIFTS: tuple[Drift, ...] = ("none", "abrupt", "slow", "harder 1.4", "harder 2.2")
"""abrupt, slow: the best size moves by a factor of four, at half-time or from a quarter to three quarters of
the recurrences. harder: from half-time on a training needs so many times the epochs."""
MOVE = 4.0


def drifting(start: World, drift: Drift) -> list[World]:
    """Return the world of each recurrence; of a pool, each recurrence draws a member, the same in every game.

    A size becomes what the one a quarter of it was, or four times it where the best size lies in the upper
    half: the nearest that was recorded; beyond the ends the last, with as many more epochs as the root of the
    ratio. A job that gets harder may have so many more epochs from the start.
    """
    if start.pool:
        of_members = [_drifting(member, drift, start.recurrences) for member in start.pool]
        dice = Random(start.name)  # noqa: S311  (dice of a game)
        return [of_members[dice.randrange(len(of_members))][at] for at in range(start.recurrences)]
    return _drifting(start, drift, start.recurrences)


def _drifting(start: World, drift: Drift, count: int) -> list[World]:
    if drift == "none":
        return [start] * count
    if drift in {"abrupt", "slow"}:
        sizes = start.job.batch_sizes
        best = min(start.competing, key=start.competing.__getitem__)
        way = -1 if 2 * sizes.index(best) >= len(sizes) else 1
        made: dict[tuple[tuple[int, float], ...], World] = {}
        worlds = []
        for recurrence in range(count):
            share = (recurrence / count - 0.25) / 0.5 if drift == "slow" else floor(2 * recurrence / count)
            factor = MOVE ** (way * min(1.0, max(0.0, share)))
            sources = tuple(_moved(start.sizes, size / factor) for size in sizes)
            if sources not in made:
                moved = (_harder(start.sizes[source], times) for source, times in sources)
                made[sources] = replace(start, sizes=dict(zip(sizes, moved, strict=True)))
            worlds.append(made[sources])
        return worlds
    factor = float(drift.removeprefix("harder "))
    job = replace(start.job, max_epochs=ceil(start.job.max_epochs * factor))
    before = replace(start, job=job)
    after = replace(before, sizes={b: _harder(size, factor) for b, size in start.sizes.items()})
    half = count // 2
    return [before] * half + [after] * (count - half)


def _moved(sizes: Mapping[int, Size], wanted: float) -> tuple[int, float]:
    """Return the recorded size nearest by ratio, and how many times its epochs one beyond the ends needs."""
    nearest = min(sizes, key=lambda size: abs(log(size / wanted)))
    beyond = max(wanted / max(sizes), min(sizes) / wanted, 1.0)
    return nearest, sqrt(beyond)


def _harder(size: Size, factor: float) -> Size:
    if factor == 1:
        return size
    trainings = (
        RecordedTraining(
            None if run.epochs is None else round(run.epochs * factor),
            tuple(run.metrics[floor(at / factor)] for at in range(ceil(len(run.metrics) * factor))),
        )
        for run in size.trainings
    )
    return replace(size, trainings=tuple(trainings))


# ---- playing --------------------------------------------------------------------------------------------


class Rules(Struct, frozen=True):
    faithful: bool = False
    """To the reference's game; see above."""
    profiling: Literal["just in time", "by runs", "never"] = "just in time"
    """by runs: as many tries of a size as there are limits each run at one of them, from the highest down.
    never: all run at the highest."""
    overlap: float = 0.0
    """Trainings at the default size that run at a time, on average; submitted at random. 0: one after the
    other."""


DEFAULT = Rules()


class Played(Struct, frozen=True):
    """One try of a game."""

    recurrence: int
    batch_size: int
    epochs: int
    spent: SpentByTry
    ended: Ended
    metrics: tuple[float, ...] = ()
    """After each epoch."""


def play(
    worlds: Sequence[World],
    policy: Policy[JobHistory],
    seed: int,
    rules: Rules = DEFAULT,
) -> list[Played]:
    """Return every try of a game, in the order in which they ended. ``worlds``: by recurrence: `drifting`."""
    game = _Game(worlds, policy, seed, rules)
    if rules.overlap == 0 and not worlds[0].submissions:
        for at in range(len(worlds)):
            for _ in game.recurrence(at):
                pass
    else:
        _play_overlapping(game, seed)
    return game.played


def _play_overlapping(game: "_Game", seed: int) -> None:
    """Play recurrences as they were submitted, or at random times: several run at a time."""
    starts_s: Iterable[float] = (at_s for at_s, _ in game.worlds[0].submissions)
    if not game.worlds[0].submissions:
        dice = Random(f"submissions {seed}")  # noqa: S311  (dice of a game)
        rate_hz = game.rules.overlap / game.worlds[0].by_default.time_s
        starts_s = accumulate((dice.expovariate(rate_hz) for _ in game.worlds[1:]), initial=0.0)
    running: list[tuple[float, int, Generator[float, None, None]]] = []
    for at, at_s in enumerate(starts_s):
        heappush(running, (at_s, at, game.recurrence(at)))
    while running:
        at_s, at, rest = heappop(running)
        if (takes_s := next(rest, None)) is not None:
            heappush(running, (at_s + takes_s, at, rest))


class _Game:
    """A game under way: what the policy knows, and the tries that have ended."""

    def __init__(
        self,
        worlds: Sequence[World],
        policy: Policy[JobHistory],
        seed: int,
        rules: Rules,
    ) -> None:
        draws, self._choices, prices = (
            Random(f"{part} {seed}")  # noqa: S311  (dice of a game)
            for part in ("draws", "choices", "prices")
        )
        self.worlds, self.rules = worlds, rules
        self.played: list[Played] = []
        self._policy, self._known = policy, JobHistory(worlds[0].job)
        self._number = 0
        self._lucks = [[draws.random() for _ in range(TRIES)] for _ in worlds]
        self._factors = [
            [exp(here.cost_scatter * prices.gauss(0, 1)) for _ in range(TRIES)] for here in worlds
        ]
        self._profiled: dict[tuple[str, int], int] = {}

    def recurrence(self, at: int) -> Generator[float, None, None]:
        """Play a recurrence; yield how long it goes on, s, before anything else happens to it."""
        for luck, factor in zip(self._lucks[at], self._factors[at], strict=True):
            ended = yield from self._try(at, luck, factor)
            if ended == "converged":
                return

    def _try(self, at: int, luck: float, factor: float) -> Generator[float, None, Ended]:
        """Play one try; return how it ended."""
        here, rules, policy = self.worlds[at], self.rules, self._policy
        max_epochs = self.worlds[0].job.max_epochs
        choice = policy.choose(self._known, here.gpu, self._choices)
        size = here.sizes[choice.batch_size]
        training = size.trainings[floor(luck * len(size.trainings))]
        before = self._profiled.get((here.gpu, choice.batch_size), 0)
        self._profiled[here.gpu, choice.batch_size] = before + 1
        opening, later = _epochs(size, before, factor, rules)
        scale = here.scale(at)
        a_try = Try(
            number=self._number,
            recurrence=at,
            batch_size=choice.batch_size,
            setup=here.gpu,
            epoch_cost_j=later.cost_j if opening is later else None,
        )
        self._number += 1
        self._known = self._known.heard(a_try)
        epochs, ended = 0, _ended(training, 0, max_epochs)
        spent = NOTHING
        if rules.faithful:
            epochs, ended = _paid(training, choice.stop_cost_j, later.cost_j, max_epochs)
            spent = opening.plus(later.times(epochs - 1)) if epochs else NOTHING
            yield spent.time_s * scale
        while not rules.faithful and ended == "running":
            an_epoch = later if epochs else opening
            yield an_epoch.time_s * scale
            epochs += 1
            spent = spent.plus(an_epoch)
            ended = _ended(training, epochs, max_epochs)
            if ended == "running":
                a_try = _so_far(a_try, training, epochs, spent, later)
                over = spent.cost_j + later.cost_j > choice.stop_cost_j * EXACT
                ended = "stopped" if over or not policy.verdict(self._known, a_try).go_on else "running"
        a_try = replace(_so_far(a_try, training, epochs, spent, later), ended=ended)
        self._known = self._known.heard(a_try)
        self.played.append(Played(at, choice.batch_size, epochs, spent.times(scale), ended, a_try.metrics))
        return ended


def _limit(size: Size, before: int, rules: Rules) -> int:
    """Return the place of the power limit of a try, after its first epoch, once so many began before it."""
    if rules.profiling == "by runs" and before < len(size.epochs):
        return before
    return 0 if rules.profiling == "never" else size.epochs.index(size.best)


def tried_limits_w(here: World, rules: Rules, batch_sizes: Iterable[int]) -> list[int]:
    """Return the power limit of each try after its first epoch, for tries of a game one after the other."""
    begun: Counter[int] = Counter()
    limits_w = []
    for batch_size in batch_sizes:
        size = here.sizes[batch_size]
        limits_w.append(size.limits_w[_limit(size, begun[batch_size], rules)])
        begun[batch_size] += 1
    return limits_w


def _epochs(size: Size, before: int, factor: float, rules: Rules) -> tuple[SpentByTry, SpentByTry]:
    """Return what the first epoch of a try takes, and each later one: ``factor`` times what was recorded."""
    later = size.epochs[_limit(size, before, rules)]
    opening = size.profiling if rules.profiling == "just in time" and before == 0 else later
    if factor == 1:
        return opening, later
    scattered = later.times(factor)
    return scattered if opening is later else opening.times(factor), scattered


def _ended(training: RecordedTraining, epochs: int, max_epochs: int) -> Ended:
    if epochs == training.epochs:
        return "converged"
    return "exhausted" if epochs >= max_epochs else "running"


def _paid(training: RecordedTraining, bound_j: float, epoch_j: float, max_epochs: int) -> tuple[int, Ended]:
    """Return the epochs of a try that a bound pays, and how it ends, by the reference's rules."""
    pays = max_epochs if bound_j == inf else min(max_epochs, floor(bound_j / epoch_j * EXACT))
    if training.epochs is not None and training.epochs <= pays:
        return training.epochs, "converged"
    return pays, "exhausted" if pays == max_epochs else "stopped"


def _so_far(a_try: Try, training: RecordedTraining, epochs: int, spent: SpentByTry, later: SpentByTry) -> Try:
    return Try(
        number=a_try.number,
        recurrence=a_try.recurrence,
        batch_size=a_try.batch_size,
        setup=a_try.setup,
        epochs=epochs,
        cost_j=spent.cost_j,
        epoch_cost_j=later.cost_j,
        metrics=training.metrics[:epochs],
    )


# ---- what came of it ------------------------------------------------------------------------------------


def by_recurrence(played: Sequence[Played], recurrences: int) -> list[SpentByTry]:
    """Return what each recurrence took, its failed tries with it."""
    spent = [NOTHING] * recurrences
    for a_try in played:
        spent[a_try.recurrence] = spent[a_try.recurrence].plus(a_try.spent)
    return spent


def regret(played: Sequence[Played], worlds: Sequence[World]) -> list[float]:
    """Return the cumulative regret after each recurrence, in units of the optimal cost of its world."""
    optimum = {id(world): world.optimum_j for world in worlds}
    spent = by_recurrence(played, len(worlds))
    return list(
        accumulate(took.cost_j / optimum[id(world)] - 1 for took, world in zip(spent, worlds, strict=True))
    )
