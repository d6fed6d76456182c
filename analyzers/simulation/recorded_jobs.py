"""The game of recurring jobs: a policy chooses batch sizes for trainings that were recorded. Pure.

    world, policy, seed -> what every try of every recurrence took

A world is a workload on a GPU model. How many epochs a training needs is drawn from the recorded runs of its
batch size; what an epoch takes was recorded for each batch size and power limit. What had to be decided to
reach the reference's published figures:

- A training's power and epochs are joined on dataset, network, batch size and optimizer. The batch sizes of
  a world are those that both tables have, whether they reach the target or not.
- An epoch takes what it takes at the limit of least cost. The first try of a size profiles: its first epoch
  takes the mean over all limits. That is known at once, and by one try: the second of a size never profiles.
- MAXPOWER is the highest limit recorded for the GPU model, of any workload.
- A recurrence tries up to 20 times. The optimum that regret is measured by is the least mean cost, of a
  size at which every recorded run reaches the target within the epoch limit.
- Draws are the policy's or the world's, from generators of their own: policies with the same seed meet the
  same runs, as far as they make the same choices.

Two readings of how a try ends (`Rules.faithful`):

- The reference's: a try has as many epochs as its bound pays at the best limit, the dearer first one not
  reckoned with, and `max_epochs` at most. One that it pays none of costs nothing, and its size is profiled.
- Ours, as a training lives it: an epoch at least; then it ends before the one that would take its cost,
  profiling included, above the bound, or by the policy's verdict.

Overlapping recurrences are synthetic: nobody published when such jobs were submitted.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from heapq import heappop, heappush
from itertools import accumulate
from math import ceil, exp, floor, inf, log, sqrt
from random import Random
from statistics import fmean
from typing import Literal, TypeVar

from analyzers.batch_size.policy import Job, Policy, Try
from analyzers.results.rows import Ended

TRIES = 20
"""Of a recurrence, at most."""
EXACT = 1 + 1e-9
"""A bound of two epochs' cost pays two epochs, however they were added up."""

S = TypeVar("S")


# ---- tables ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trained:
    """One recorded run of a training: when it first reached a level of its metric."""

    dataset: str
    network: str
    batch_size: int
    optimizer: str
    learning_rate: str
    run: str
    level: float
    epoch: int | None
    """Whole epochs; None: never."""


@dataclass(frozen=True, slots=True)
class Powered:
    """One epoch, recorded at a power limit."""

    dataset: str
    network: str
    batch_size: int
    optimizer: str
    limit_w: int
    epoch_s: float
    power_w: float


@dataclass(frozen=True, slots=True)
class Workload:
    """A training task and its target."""

    dataset: str
    default: int
    """Batch size."""
    optimizer: str
    target: float
    max_epochs: int
    lower_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Traces:
    """Recorded trainings and the power of their epochs."""

    trained: tuple[Trained, ...]
    powered: Mapping[str, tuple[Powered, ...]]
    """By GPU model."""
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    """By dataset, in the order of the file."""


# ---- worlds ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spent:
    energy_j: float
    time_s: float
    cost_j: float

    def times(self, factor: float) -> "Spent":
        return Spent(self.energy_j * factor, self.time_s * factor, self.cost_j * factor)

    def plus(self, other: "Spent") -> "Spent":
        return Spent(self.energy_j + other.energy_j, self.time_s + other.time_s, self.cost_j + other.cost_j)


NOTHING = Spent(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Training:
    """A recorded run, seen from a target."""

    epochs: int | None
    """Until the target; None: never."""
    metrics: tuple[float, ...]
    """After each epoch, as far as the world's epochs go: the best level of the table reached by then; before
    the first one a step less than that."""


@dataclass(frozen=True, slots=True)
class Size:
    """A batch size in a world."""

    trainings: tuple[Training, ...]
    epochs: tuple[Spent, ...]
    """One epoch's, by power limit, the highest first."""
    limits_w: tuple[int, ...] = ()
    """Of the epochs."""

    @property
    def best(self) -> Spent:
        return min(self.epochs, key=lambda spent: spent.cost_j)

    @property
    def profiling(self) -> Spent:
        """An epoch's over which all limits are tried."""
        return Spent(
            fmean(spent.energy_j for spent in self.epochs),
            fmean(spent.time_s for spent in self.epochs),
            fmean(spent.cost_j for spent in self.epochs),
        )

    def reaches(self, max_epochs: int) -> bool:
        """Return whether every run reaches the target in so many epochs."""
        return all(run.epochs is not None and run.epochs <= max_epochs for run in self.trainings)

    @property
    def mean_epochs(self) -> float:
        """Only where all `reaches`."""
        return fmean(run.epochs or inf for run in self.trainings)


@dataclass(frozen=True, slots=True)
class World:
    name: str
    """Unique among those of a tournament."""
    gpu: str
    dataset: str
    job: Job
    sizes: Mapping[int, Size]
    limits_w: tuple[int, ...]
    """Descending."""
    cost_scatter: float = 0.0
    """Standard deviation of the log of what an epoch takes, from try to try."""
    least_j: float | None = None
    """Mean cost of a recurrence at the optimum, where it is not that of a competing size."""
    pool: tuple["World", ...] = ()
    """GPU models with the same batch sizes; each recurrence runs on one. `sizes` are those of the first."""

    count: int | None = None
    """Recurrences; None: as many as the reference's figures are of."""

    @property
    def recurrences(self) -> int:
        return 2 * len(self.sizes) * len(self.limits_w) if self.count is None else self.count

    @property
    def competing(self) -> dict[int, float]:
        """Mean cost, J, by batch size, of those at which every run reaches the target."""
        if self.pool:
            costs = [member.competing for member in self.pool]
            return {
                size: fmean(of[size] for of in costs) for size in costs[0] if all(size in of for of in costs)
            }
        return {
            batch_size: size.mean_epochs * size.best.cost_j
            for batch_size, size in self.sizes.items()
            if size.reaches(self.job.max_epochs)
        }

    @property
    def optimum_j(self) -> float:
        return min(self.competing.values()) if self.least_j is None else self.least_j

    @property
    def by_default(self) -> Spent:
        """Energy, time and cost of a recurrence on average, at the default size and the highest limit."""
        if self.pool:
            of = [member.by_default for member in self.pool]
            return Spent(*(fmean(values) for values in zip(*map(astuple, of), strict=True)))
        size = self.sizes[self.job.default]
        return size.epochs[0].times(size.mean_epochs)


def world(
    traces: Traces, gpu: str, workload: Workload, *, eta: float = 0.5, beta: float = 2.0, window: int = 0
) -> World:
    """Return a workload on a GPU model as a world.

    Raises:
        ValueError: the tables do not have it.
    """
    of_gpu = traces.powered.get(gpu, ())
    max_power_w = max((row.limit_w for row in of_gpu), default=0)
    by_size: dict[int, dict[int, Spent]] = {}
    for row in of_gpu:
        if (row.dataset, row.optimizer) == (workload.dataset, workload.optimizer):
            energy_j = row.epoch_s * row.power_w
            cost_j = eta * energy_j + (1 - eta) * max_power_w * row.epoch_s
            by_size.setdefault(row.batch_size, {})[row.limit_w] = Spent(energy_j, row.epoch_s, cost_j)
    trainings = _trainings(traces, gpu, workload)
    sizes = {
        size: Size(tuple(trainings[size]), tuple(by_size[size][w] for w in limits_w), limits_w)
        for size in sorted(by_size)
        if size in trainings and (limits_w := tuple(sorted(by_size[size], reverse=True)))
    }
    if workload.default not in sizes:
        raise ValueError(
            f"{gpu} {workload.dataset}: could not make a world: batch size {workload.default} was not"
            f" recorded with {workload.optimizer} and target {workload.target:g}. Name another."
        )
    job = Job(
        tuple(sizes), workload.default, workload.max_epochs, eta, beta, window, workload.target,
        workload.lower_is_better,
    )  # fmt: skip
    limits = sorted({limit for size in sizes for limit in by_size[size]}, reverse=True)
    return World(f"{gpu} {workload.dataset}", gpu, workload.dataset, job, sizes, tuple(limits))


def pooled(members: Sequence[World]) -> World:
    """Return a pool of GPU models as one world: with the batch sizes that all of them have.

    The default is the size nearest to the first one's at which every run of every member reaches the target.

    Raises:
        ValueError: there is no such size.
    """
    first = members[0]
    common = set.intersection(*(set(member.sizes) for member in members))
    sure = set.intersection(*(set(member.competing) for member in members))
    if not sure:
        raise ValueError("no batch size reaches the target on all of them")
    default = min(sure, key=lambda size: (abs(log(size / first.job.default)), size))
    shrunk = []
    for member in members:
        sizes = {size: of for size, of in member.sizes.items() if size in common}
        job = replace(member.job, batch_sizes=tuple(sizes), default=default)
        shrunk.append(replace(member, job=job, sizes=sizes))
    gpu = "+".join(member.gpu for member in members)
    limits = sorted({limit for member in members for limit in member.limits_w}, reverse=True)
    return replace(
        shrunk[0],
        name=f"{gpu} {first.dataset}",
        gpu=gpu,
        limits_w=tuple(limits),
        pool=tuple(shrunk),
    )


def recorded_sizes(traces: Traces, gpu: str, workload: Workload) -> tuple[int, ...]:
    """Return the batch sizes that both tables have, ascending."""
    trained = _trainings(traces, gpu, workload)
    of_both = {row.batch_size for row in traces.powered.get(gpu, ()) if row.batch_size in trained}
    return tuple(sorted(of_both))


def recorded_workload(traces: Traces, gpu: str, workload: Workload) -> Workload | None:
    """Return the workload with the nearest default size that was recorded on a GPU model; None: none was.

    A smaller GPU has no room for the usual default. Only sizes at which every run reaches the target count.
    """
    trained = _trainings(traces, gpu, workload)
    sure = [
        size
        for size in recorded_sizes(traces, gpu, workload)
        if all(run.epochs is not None and run.epochs <= workload.max_epochs for run in trained[size])
    ]
    nearest = min(sure, key=lambda size: abs(log(size / workload.default)), default=None)
    return None if nearest is None else replace(workload, default=nearest)


def levels(traces: Traces, dataset: str) -> tuple[float, ...]:
    """Return the levels of a dataset's metric that were recorded, ascending."""
    return tuple(sorted({row.level for row in traces.trained if row.dataset == dataset}))


def _trainings(traces: Traces, gpu: str, workload: Workload) -> dict[int, list[Training]]:
    """Return the runs of a workload by batch size; those that say something of the target.

    Their network is the one that the power table of the GPU model has.
    """
    networks = {
        (row.network, row.batch_size)
        for row in traces.powered.get(gpu, ())
        if (row.dataset, row.optimizer) == (workload.dataset, workload.optimizer)
    }
    runs: dict[tuple[int, str, str], dict[float, int | None]] = {}
    for row in traces.trained:
        if (row.dataset, row.optimizer) == (workload.dataset, workload.optimizer) and (
            row.network, row.batch_size,
        ) in networks:  # fmt: skip
            run = runs.setdefault((row.batch_size, row.learning_rate, row.run), {})
            run[row.level] = row.epoch
    found: dict[int, list[Training]] = {}
    for (batch_size, _, _), run in runs.items():
        if workload.target in run:
            training = Training(run[workload.target], _metrics(run, workload))
            found.setdefault(batch_size, []).append(training)
    return found


def _metrics(run: Mapping[float, int | None], workload: Workload) -> tuple[float, ...]:
    ladder = sorted(run, reverse=workload.lower_is_better)
    level = ladder[0] - (ladder[1] - ladder[0]) if len(ladder) > 1 else ladder[0]
    reached = {epoch: step for step in ladder if (epoch := run[step]) is not None}
    metrics = []
    for epoch in range(1, workload.max_epochs + 1):
        level = reached.get(epoch, level)
        metrics.append(level)
    return tuple(metrics)


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
        Training(
            None if run.epochs is None else round(run.epochs * factor),
            tuple(run.metrics[floor(at / factor)] for at in range(ceil(len(run.metrics) * factor))),
        )
        for run in size.trainings
    )
    return replace(size, trainings=tuple(trainings))


# ---- playing --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rules:
    faithful: bool = False
    """To the reference's game; see above."""
    profiling: Literal["just in time", "by runs", "never"] = "just in time"
    """by runs: as many tries of a size as there are limits each run at one of them, from the highest down.
    never: all run at the highest."""
    overlap: float = 0.0
    """Trainings at the default size that run at a time, on average; submitted at random. 0: one after the
    other."""


DEFAULT = Rules()


@dataclass(frozen=True, slots=True)
class Played:
    """One try of a game."""

    recurrence: int
    batch_size: int
    epochs: int
    spent: Spent
    ended: Ended


def play(
    worlds: Sequence[World],
    policy: Policy[S],
    seed: int,
    rules: Rules = DEFAULT,
    *,
    state: S | None = None,
    first: int = 0,
) -> list[Played]:
    """Return every try of a game, in the order in which they ended.

    Args:
        worlds: by recurrence, of one job; see `drifting`.
        policy: plays.
        seed: of all draws.
        rules: of the game.
        state: what the policy knows before; None: nothing.
        first: number of the first try and recurrence, as the policy hears of them: above those it knows.
    """
    job = worlds[0].job
    now = policy.start(job) if state is None else state
    draws, choices, submissions, prices = (
        Random(f"{part} {seed}")  # noqa: S311  (dice of a game)
        for part in ("draws", "choices", "submissions", "prices")
    )
    lucks = [[draws.random() for _ in range(TRIES)] for _ in worlds]
    factors = [[exp(here.cost_scatter * prices.gauss(0, 1)) for _ in range(TRIES)] for here in worlds]
    profiled: dict[tuple[str, int], int] = {}
    played: list[Played] = []
    number = first

    def recurrence(at: int) -> Generator[float, None, None]:
        """Play a recurrence; yield how long it goes on, s, before anything else happens to it."""
        nonlocal now, number
        here = worlds[at]
        for luck, factor in zip(lucks[at], factors[at], strict=True):
            choice = policy.choose(now, here.gpu, choices)
            size = here.sizes[choice.batch_size]
            training = size.trainings[floor(luck * len(size.trainings))]
            before = profiled.get((here.gpu, choice.batch_size), 0)
            profiled[here.gpu, choice.batch_size] = before + 1
            opening, later = _epochs(size, before, factor, rules)
            known = later.cost_j if opening is later else None
            a_try = Try(number, first + at, choice.batch_size, here.gpu, epoch_cost_j=known)
            number += 1
            now = policy.began(now, a_try)
            epochs, ended = 0, _ended(training, 0, job.max_epochs)
            spent = NOTHING
            if rules.faithful:
                epochs, ended = _paid(training, choice.stop_cost_j, later.cost_j, job.max_epochs)
                spent = opening.plus(later.times(epochs - 1)) if epochs else NOTHING
                yield spent.time_s
            while not rules.faithful and ended == "running":
                an_epoch = later if epochs else opening
                yield an_epoch.time_s
                epochs += 1
                spent = spent.plus(an_epoch)
                ended = _ended(training, epochs, job.max_epochs)
                if ended == "running":
                    a_try = _so_far(a_try, training, epochs, spent, later)
                    over = spent.cost_j + later.cost_j > choice.stop_cost_j * EXACT
                    ended = "stopped" if over or not policy.verdict(now, a_try).go_on else "running"
            a_try = replace(_so_far(a_try, training, epochs, spent, later), ended=ended)
            now = policy.ended(now, a_try)
            played.append(Played(at, choice.batch_size, epochs, spent, ended))
            if ended == "converged":
                return

    if rules.overlap == 0:
        for at in range(len(worlds)):
            for _ in recurrence(at):
                pass
        return played
    rate_hz = rules.overlap / worlds[0].by_default.time_s
    at_s = 0.0
    running: list[tuple[float, int, Generator[float, None, None]]] = []
    for at in range(len(worlds)):
        heappush(running, (at_s, at, recurrence(at)))
        at_s += submissions.expovariate(rate_hz)
    while running:
        at_s, at, rest = heappop(running)
        if (takes_s := next(rest, None)) is not None:
            heappush(running, (at_s + takes_s, at, rest))
    return played


def _epochs(size: Size, before: int, factor: float, rules: Rules) -> tuple[Spent, Spent]:
    """Return what the first epoch of a try takes, and each later one: ``factor`` times what was recorded."""
    if rules.profiling == "by runs" and before < len(size.epochs):
        opening = later = size.epochs[before]
    elif rules.profiling == "never":
        opening = later = size.epochs[0]
    else:
        later = size.best
        opening = size.profiling if rules.profiling == "just in time" and before == 0 else later
    if factor == 1:
        return opening, later
    scattered = later.times(factor)
    return scattered if opening is later else opening.times(factor), scattered


def _ended(training: Training, epochs: int, max_epochs: int) -> Ended:
    if epochs == training.epochs:
        return "converged"
    return "exhausted" if epochs >= max_epochs else "running"


def _paid(training: Training, bound_j: float, epoch_j: float, max_epochs: int) -> tuple[int, Ended]:
    """Return the epochs of a try that a bound pays, and how it ends, by the reference's rules."""
    pays = max_epochs if bound_j == inf else min(max_epochs, floor(bound_j / epoch_j * EXACT))
    if training.epochs is not None and training.epochs <= pays:
        return training.epochs, "converged"
    return pays, "exhausted" if pays == max_epochs else "stopped"


def _so_far(a_try: Try, training: Training, epochs: int, spent: Spent, later: Spent) -> Try:
    return Try(
        a_try.number, a_try.recurrence, a_try.batch_size, a_try.setup, epochs, spent.cost_j, later.cost_j,
        training.metrics[:epochs],
    )  # fmt: skip


# ---- what came of it ------------------------------------------------------------------------------------


def by_recurrence(played: Sequence[Played], recurrences: int) -> list[Spent]:
    """Return what each recurrence took, its failed tries with it."""
    spent = [NOTHING] * recurrences
    for a_try in played:
        spent[a_try.recurrence] = spent[a_try.recurrence].plus(a_try.spent)
    return spent


def tries(world: World, played: Sequence[Played]) -> list[Try]:
    """Return the tries of a game in a world as a policy hears of them when they have ended."""
    return [
        Try(
            number, one.recurrence, one.batch_size, world.gpu, one.epochs, one.spent.cost_j,
            world.sizes[one.batch_size].best.cost_j, ended=one.ended,
        )
        for number, one in enumerate(played)
    ]  # fmt: skip


def regret(played: Sequence[Played], worlds: Sequence[World]) -> list[float]:
    """Return the cumulative regret after each recurrence, in units of the optimal cost of its world."""
    optimum = {id(world): world.optimum_j for world in worlds}
    spent = by_recurrence(played, len(worlds))
    return list(
        accumulate(took.cost_j / optimum[id(world)] - 1 for took, world in zip(spent, worlds, strict=True))
    )
