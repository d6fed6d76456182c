"""The batch size of a job that recurs, as Zeus chooses it: pruning, then Gaussian Thompson sampling. Pure.

    tries so far -> the next step of pruning: the default size, downwards until one fails, upwards until one
                    fails, twice; the cheapest of the first round is the second one's default
                 -> then the least of a draw from each size's belief about its mean cost

A try ends when it costs more than beta times the least that one has cost.

What was mended, and `Reference.faithful` undoes for comparison:

- Only costs of tries that converged set the bound; the reference counts those that failed, and for ever.
- What a try that failed has cost is not what its size costs: that is all that its recurrence cost from there
  on, the tries that followed with it. The reference takes it for a cost like any other.
- A size that has failed is not drawn again before one has converged.
- When every size that is left has failed since one last converged, the job has become harder: no earlier
  try counts any more, and there is no bound until one converges.

A try that was lost says nothing: the step of pruning that it was for is done again. Costs of another GPU
model say nothing here either.

Source: Zeus (NSDI 2023), section 4.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from math import inf, sqrt
from random import Random
from statistics import fmean

from msgspec import Struct

from analyzers.batch_size.belief.try_summary import JobHistory
from analyzers.batch_size.policy import Choice, Job, Try, TryVerdict


class CostNormal(Struct, frozen=True):
    """A normal distribution of a mean cost, J."""

    mean: float
    variance: float


def observe(seen: Sequence[float]) -> CostNormal:
    """Return the belief in a mean after values were seen, one or more; before them it was flat.

    The variance of all values is taken to be that of these.
    """
    mean = fmean(seen)
    return CostNormal(mean, sum((value - mean) ** 2 for value in seen) / len(seen) ** 2)


def draw(beliefs: Iterable[tuple[int, CostNormal]], rng: Random) -> int:
    return min((rng.gauss(belief.mean, sqrt(belief.variance)), size) for size, belief in beliefs)[1]


class Pruning(Struct, frozen=True):
    """The progress of the rounds of pruning."""

    sizes: tuple[int, ...]
    """Those that are left."""
    step: int | None
    """The size to be tried next; None: pruning is over."""
    busy: bool = False
    """Whether it is being tried."""
    round: int = 0


def prune(job: Job, tries: Iterable[Try], rounds: int) -> Pruning:
    """Return how far pruning is by these tries.

    A step is answered by the first try of its size, by number, after the one that answered the step before
    it. A round in which no size converged prunes none.
    """
    sizes, default, later = job.batch_sizes, job.default, iter(tries)
    for number in range(rounds):
        converged: dict[int, float] = {}
        down = [size for size in reversed(sizes) if size <= default]
        up = [size for size in sizes if size > default]
        for way in (down, up):
            for size in way:
                answer = next((t for t in later if t.batch_size == size and t.ended != "lost"), None)
                if answer is None or answer.ended == "running":
                    return Pruning(sizes, size, busy=answer is not None, round=number + 1)
                if answer.ended != "converged":
                    break
                converged[size] = answer.cost_j
        if converged:
            sizes = tuple(sorted(converged))
            default = min(converged, key=converged.__getitem__)
    return Pruning(sizes, None)


class Reference(Struct, frozen=True):
    """Zeus's policy. Beta and window are the job's."""

    faithful: bool = False
    """Also in its faults, as far as its figures depend on them."""
    rounds: int = 2
    """Of pruning; 0: none."""
    stop: bool = True
    """Early."""

    def choose(self, history: JobHistory, setup: str, rng: Random) -> Choice:
        pruning, known = self._now(history, setup)
        bound = history.job.beta * known.least if self.stop else inf
        if pruning.step is None:
            size = _sample(pruning.sizes, known, history.job.default, rng)
            return Choice(size, bound, f"Thompson sampling among {len(pruning.sizes)} sizes")
        if pruning.busy:
            means = {size: fmean(known.costs[size]) for size in known.converged}
            best = min(means, key=means.__getitem__, default=history.job.default)
            return Choice(best, bound, f"the best size known, while {pruning.step} is being tried")
        return Choice(pruning.step, bound, f"pruning, round {pruning.round} of {self.rounds}")

    def beliefs(self, history: JobHistory, setup: str) -> dict[int, CostNormal]:
        pruning, known = self._now(history, setup)
        return {size: observe(known.costs[size]) for size in pruning.sizes if size in known.costs}

    def verdict(self, history: JobHistory, a_try: Try) -> TryVerdict:  # noqa: ARG002  (the words are the protocol's)
        """Return that it goes on: the bound is in `Choice.stop_cost_j`."""
        return TryVerdict(go_on=True)

    def _now(self, history: JobHistory, setup: str) -> tuple[Pruning, "_Known"]:
        tries = [a_try for a_try in history.tries if a_try.setup == setup]
        pruning = prune(history.job, tries, self.rounds)
        done = [a_try for a_try in tries if a_try.ended not in {"running", "lost"}]
        if self.faithful:
            return pruning, _taken(done, history.job.window)
        return pruning, _mended(done, pruning.sizes, history.job.window)


def _sample(arms: Sequence[int], known: "_Known", default: int, rng: Random) -> int:
    """Return a draw; a size that was never tried goes first, the default before all."""
    fresh = [size for size in arms if size not in known.failed] or arms
    unseen = [size for size in fresh if size not in known.costs]
    if not unseen:
        return draw([(size, observe(known.costs[size])) for size in fresh], rng)
    return default if default in unseen and not known.costs else rng.choice(unseen)


class _Known(Struct, frozen=True):
    """The knowledge from tries."""

    costs: dict[int, Sequence[float]]
    """By batch size, J; none is empty."""
    failed: AbstractSet[int]
    """Batch sizes, since a try last converged."""
    converged: AbstractSet[int]
    """Batch sizes, ever."""
    least: float
    """J; infinite: none."""


def _taken(done: Sequence[Try], window: int) -> _Known:
    """Return what the reference takes from tries that have ended."""
    costs: dict[int, list[float]] = {}
    for a_try in done:
        costs.setdefault(a_try.batch_size, []).append(a_try.cost_j)
    # A budget that does not cover an epoch costs nothing in the reference's game.
    least = min((a_try.cost_j for a_try in done if a_try.cost_j > 0), default=inf)
    converged = {a_try.batch_size for a_try in done if a_try.ended == "converged"}
    return _Known({size: seen[-window:] for size, seen in costs.items()}, frozenset(), converged, least)


def _mended(done: Sequence[Try], arms: Sequence[int], window: int) -> _Known:
    since, failed, converged = 0, set[int](), False
    for at, a_try in enumerate(done):
        if a_try.ended == "converged":
            failed, converged = set(), True
        else:
            failed.add(a_try.batch_size)
            if converged and failed.issuperset(arms):
                since, failed, converged = at + 1, set(), False
    to_go: dict[int, float] = {}
    costs: dict[int, list[float]] = {}
    own: dict[int, list[float]] = {}
    for a_try in reversed(done[since:]):
        to_go[a_try.recurrence] = to_go.get(a_try.recurrence, 0.0) + a_try.cost_j
        costs.setdefault(a_try.batch_size, []).append(to_go[a_try.recurrence])
        if a_try.ended == "converged":
            own.setdefault(a_try.batch_size, []).append(a_try.cost_j)
    latest = slice(window or None)
    least = min((min(seen[latest]) for seen in own.values()), default=inf)
    return _Known({size: seen[latest] for size, seen in costs.items()}, failed, own.keys(), least)
