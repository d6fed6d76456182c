"""The game of recurring jobs: a policy chooses batch sizes for trainings that were recorded. Pure.

    world, policy, seed -> what every try of every recurrence took

A world is a workload on a GPU model. How many epochs a training needs is drawn from the recorded runs of its
batch size. What an epoch takes was recorded for each batch size and power limit. What had to be decided to
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

Overlapping recurrences are synthetic, but those of a table of submissions (`clusters`).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf, log
from statistics import fmean
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct, field
from msgspec.structs import astuple, replace

from analyzers.batch_size.policy import Job

# ---- tables ---------------------------------------------------------------------------------------------


Count: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Epochs: TypeAlias = Annotated[int, Meta(ge=1, le=100_000)]
Amount: TypeAlias = Annotated[float, Meta(gt=0, le=1e12)]
Level: TypeAlias = Annotated[float, Meta(ge=-1e12, le=1e12)]
Time: TypeAlias = Level
"""Figures of a file."""


class Trained(Struct, frozen=True, kw_only=True, rename={"level": "target_metric", "epoch": "target_epoch"}):
    """One recorded run of a training: when it first reached a level of its metric."""

    dataset: str
    network: str
    batch_size: Count
    optimizer: str
    learning_rate: str
    run: str
    level: Level
    epoch: Epochs | None = None
    """Whole epochs; None: never."""


class Powered(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"limit_w": "power_limit", "epoch_s": "time_per_epoch", "power_w": "average_power"},
):
    """One epoch, recorded at a power limit."""

    dataset: str
    network: str
    batch_size: Count
    optimizer: str
    limit_w: Count
    epoch_s: Amount
    power_w: Amount


class RecordedWorkload(
    Struct, frozen=True, kw_only=True, rename={"default": "default_batch_size", "target": "target_metric"}
):
    """A training task and its target."""

    dataset: str
    default: Count
    """Batch size."""
    optimizer: str
    target: Level
    max_epochs: Epochs
    lower_is_better: bool = False


class Traces(Struct, frozen=True):
    """Recorded trainings and the power of their epochs."""

    trained: tuple[Trained, ...]
    powered: Mapping[str, tuple[Powered, ...]]
    """By GPU model."""
    workloads: Mapping[str, RecordedWorkload] = field(default_factory=dict)
    """By dataset, in the order of the file."""


# ---- worlds ---------------------------------------------------------------------------------------------


class SpentByTry(Struct, frozen=True):
    energy_j: float
    time_s: float
    cost_j: float

    def times(self, factor: float) -> "SpentByTry":
        return SpentByTry(self.energy_j * factor, self.time_s * factor, self.cost_j * factor)

    def plus(self, other: "SpentByTry") -> "SpentByTry":
        return SpentByTry(
            self.energy_j + other.energy_j, self.time_s + other.time_s, self.cost_j + other.cost_j
        )


NOTHING = SpentByTry(0.0, 0.0, 0.0)


class RecordedTraining(Struct, frozen=True):
    """A recorded run, seen from a target."""

    epochs: int | None
    """Until the target; None: never."""
    metrics: tuple[float, ...]
    """After each epoch, as far as the world's epochs go: the best level of the table reached by then; before
    the first one a step less than that."""


class Size(Struct, frozen=True):
    """A batch size in a world."""

    trainings: tuple[RecordedTraining, ...]
    epochs: tuple[SpentByTry, ...]
    """One epoch's, by power limit, the highest first."""
    limits_w: tuple[int, ...] = ()
    """Of the epochs."""

    @property
    def best(self) -> SpentByTry:
        return min(self.epochs, key=lambda spent: spent.cost_j)

    @property
    def profiling(self) -> SpentByTry:
        """An epoch's over which all limits are tried."""
        return SpentByTry(
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


class World(Struct, frozen=True, kw_only=True):
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

    submissions: tuple[tuple[float, float], ...] = ()
    """Of a job group of a cluster: when each recurrence begins, s, and how many times as much it takes."""

    @property
    def recurrences(self) -> int:
        """Their number; but of a job group, as many as the reference's figures are of."""
        return len(self.submissions) or 2 * len(self.sizes) * len(self.limits_w)

    def scale(self, recurrence: int) -> float:
        return self.submissions[recurrence][1] if self.submissions else 1.0

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
    def by_default(self) -> SpentByTry:
        """Energy, time and cost of a recurrence on average, at the default size and the highest limit."""
        if self.pool:
            of = [member.by_default for member in self.pool]
            return SpentByTry(*(fmean(values) for values in zip(*map(astuple, of), strict=True)))
        size = self.sizes[self.job.default]
        usual = fmean(scale for _, scale in self.submissions) if self.submissions else 1.0
        return size.epochs[0].times(size.mean_epochs * usual)


def world(
    traces: Traces,
    gpu: str,
    workload: RecordedWorkload,
    *,
    eta: float = 0.5,
    beta: float = 2.0,
    window: int = 0,
) -> World:
    """Return a workload on a GPU model as a world. Raises ValueError: the tables do not have it."""
    of_gpu = traces.powered.get(gpu, ())
    max_power_w = max((row.limit_w for row in of_gpu), default=0)
    by_size: dict[int, dict[int, SpentByTry]] = {}
    for row in of_gpu:
        if (row.dataset, row.optimizer) == (workload.dataset, workload.optimizer):
            energy_j = row.epoch_s * row.power_w
            cost_j = eta * energy_j + (1 - eta) * max_power_w * row.epoch_s
            by_size.setdefault(row.batch_size, {})[row.limit_w] = SpentByTry(energy_j, row.epoch_s, cost_j)
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
        batch_sizes=tuple(sizes),
        default=workload.default,
        max_epochs=workload.max_epochs,
        eta=eta,
        beta=beta,
        window=window,
        target=workload.target,
        lower_is_better=workload.lower_is_better,
        metric_step=_metric_step(traces, workload.dataset),
    )
    limits = sorted({limit for size in sizes for limit in by_size[size]}, reverse=True)
    return World(
        name=f"{gpu} {workload.dataset}",
        gpu=gpu,
        dataset=workload.dataset,
        job=job,
        sizes=sizes,
        limits_w=tuple(limits),
    )


def pooled(members: Sequence[World]) -> World:
    """Return a pool of GPU models as one world, with the batch sizes of all. Raises ValueError: none.

    The default is the size nearest to the first one's at which every run of every member converges.
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


def recorded_sizes(traces: Traces, gpu: str, workload: RecordedWorkload) -> tuple[int, ...]:
    """Return the batch sizes that both tables have, ascending."""
    trained = _trainings(traces, gpu, workload)
    of_both = {row.batch_size for row in traces.powered.get(gpu, ()) if row.batch_size in trained}
    return tuple(sorted(of_both))


def recorded_workload(traces: Traces, gpu: str, workload: RecordedWorkload) -> RecordedWorkload | None:
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


def _metric_step(traces: Traces, dataset: str) -> float:
    """Return the least distance of the levels of a metric that were recorded; 0: there is one."""
    return min((after - level for level, after in pairwise(levels(traces, dataset))), default=0.0)


def _trainings(traces: Traces, gpu: str, workload: RecordedWorkload) -> dict[int, list[RecordedTraining]]:
    """Return the runs of a workload by batch size; those that say something of the target."""
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
    found: dict[int, list[RecordedTraining]] = {}
    for (batch_size, _, _), run in runs.items():
        if workload.target in run:
            training = RecordedTraining(run[workload.target], _metrics(run, workload))
            found.setdefault(batch_size, []).append(training)
    return found


def _metrics(run: Mapping[float, int | None], workload: RecordedWorkload) -> tuple[float, ...]:
    ladder = sorted(run, reverse=workload.lower_is_better)
    level = ladder[0] - (ladder[1] - ladder[0]) if len(ladder) > 1 else ladder[0]
    reached = {epoch: step for step in ladder if (epoch := run[step]) is not None}
    metrics = []
    for epoch in range(1, workload.max_epochs + 1):
        level = reached.get(epoch, level)
        metrics.append(level)
    return tuple(metrics)


def sweep(worlds: Iterable[World]) -> list[dict[str, Any]]:
    """Return a row for each configuration at which every recorded run reaches the target.

    Energy, time and cost are means over the runs, relative to the default batch size at the highest limit.
    Of several worlds with the same recordings the first counts; of a pool, each GPU model.
    ``limit_rank`` and ``size_rank`` count from the lowest; ``best_limit`` is that of least cost of the size.
    """
    rows: list[dict[str, Any]] = []
    seen = set[tuple[str, str]]()
    for made in (member for one in worlds for member in one.pool or (one,)):
        if (made.gpu, made.dataset) in seen:
            continue
        seen.add((made.gpu, made.dataset))
        default = made.by_default
        limits = sorted(made.limits_w)
        for rank, batch_size in enumerate(made.competing):
            size = made.sizes[batch_size]
            best = size.limits_w[size.epochs.index(size.best)]
            rows += [
                {
                    "gpu": made.gpu,
                    "workload": made.dataset,
                    "batch_size": batch_size,
                    "size_rank": rank,
                    "limit_w": limit_w,
                    "limit_rank": limits.index(limit_w),
                    "default": (batch_size, limit_w) == (made.job.default, limits[-1]),
                    "default_size": batch_size == made.job.default,
                    "best_limit": limit_w == best,
                    "energy": size.mean_epochs * epoch.energy_j / default.energy_j,
                    "time": size.mean_epochs * epoch.time_s / default.time_s,
                    "cost": size.mean_epochs * epoch.cost_j / default.cost_j,
                }
                for limit_w, epoch in zip(size.limits_w, size.epochs, strict=True)
            ]
    return rows
