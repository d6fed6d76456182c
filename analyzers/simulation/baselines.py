"""Players of the game of recurring jobs: Zeus's policy as it is and mended, and baselines. Pure."""

from collections import Counter
from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from analyzers.batch_size.adaptive import Adaptive
from analyzers.batch_size.belief.try_summary import JobHistory
from analyzers.batch_size.policy import Choice, Policy, Try, TryVerdict
from analyzers.batch_size.registry import Default
from analyzers.batch_size.thompson import Reference
from analyzers.simulation.recorded_jobs import World
from analyzers.simulation.simulated_jobs import DEFAULT, Rules


class _Bounded(Struct, frozen=True):
    """A policy that stops no try but by its bound."""

    def verdict(self, history: JobHistory, a_try: Try) -> TryVerdict:  # noqa: ARG002  (the protocol's words)
        return TryVerdict(go_on=True)


class Grid(_Bounded, Struct, frozen=True):
    """Every size so many times, from the default downwards and then upwards; then the best for good.

    A size whose first try fails is left out; a later failure leaves out what was tried, a lower limit.
    """

    times: int
    stop: bool

    def choose(self, history: JobHistory, setup: str, rng: Random) -> Choice:  # noqa: ARG002  (see above)
        job = history.job
        tried: Counter[int] = Counter()
        least: dict[int, float] = {}
        for a_try in history.tries:
            size, converged = a_try.batch_size, a_try.ended == "converged"
            tried[size] += 1 if converged or size in least else self.times
            if converged:
                least[size] = min(a_try.cost_j, least.get(size, inf))
        best = min(least, key=least.__getitem__, default=job.default)
        bound = job.beta * least.get(best, inf) if self.stop else inf
        down = [size for size in reversed(job.batch_sizes) if size <= job.default]
        up = [size for size in job.batch_sizes if size > job.default]
        wanted = (size for size in (*down, *up) if tried[size] < self.times)
        return Choice(next(wanted, best), bound, "grid search")


class Known(_Bounded, Struct, frozen=True):
    """The default size once, and then one that was known to be the best: the floor of all costs."""

    best: int

    def choose(self, history: JobHistory, setup: str, rng: Random) -> Choice:  # noqa: ARG002  (see above)
        return Choice(self.best if history.tries else history.job.default, reason="known beforehand")


class Player(Struct, frozen=True):
    """A policy and the game it plays."""

    policy: Policy[Any]
    rules: Rules = DEFAULT


AS_PUBLISHED = Rules(faithful=True)
PLAYERS: dict[str, Callable[[World], Player]] = {
    "default": lambda _: Player(Default(), Rules(profiling="never")),
    "known": lambda world: Player(Known(min(world.competing, key=world.competing.__getitem__))),
    "grid": lambda world: Player(
        Grid(len(world.limits_w), stop=False), replace(AS_PUBLISHED, profiling="by runs")
    ),
    "grid-stop": lambda world: Player(
        Grid(len(world.limits_w), stop=True), replace(AS_PUBLISHED, profiling="by runs")
    ),
    "zeus": lambda _: Player(Reference(faithful=True), AS_PUBLISHED),
    "reference": lambda _: Player(Reference()),
    "adaptive": lambda _: Player(Adaptive()),
    "reference-no-stop": lambda _: Player(Reference(stop=False)),
    "reference-no-pruning": lambda _: Player(Reference(rounds=0)),
    "reference-no-profiling": lambda _: Player(Reference(), Rules(profiling="by runs")),
}
"""By name. default: the default size at the highest limit. known: the floor. grid: every size at every limit,
those that failed left out. zeus: the reference's policy with its faults, in the reference's game. reference:
the same, mended, as a training lives it; and without one of its parts. adaptive: `batch_size.adaptive`."""
