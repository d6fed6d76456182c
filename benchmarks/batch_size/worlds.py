"""Other worlds than those of the golden figures.

`holdout_worlds`, that no policy was designed on: other targets, default sizes and etas of the published
traces. Frozen before the adaptive policy was written: who looks at them to improve a policy has spent
them. They were played twice: before there were the worlds below, and after the policy was improved on those.

`development_worlds`, to improve a policy on: targets between the recorded ones, which no frozen world has,
and made up ones of the kinds that were hard: runs that fall into two groups, and trainings of a few epochs.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from math import ceil, exp, log2
from random import Random
from statistics import fmean

from msgspec.structs import replace

from analyzers.batch_size.policy import Job
from analyzers.simulation.recorded_jobs import (
    RecordedTraining,
    RecordedWorkload,
    Size,
    SpentByTry,
    Traces,
    Trained,
    World,
    levels,
    world,
)

GPUS = ("v100", "a40")
SEED = 2026
EACH = 7
"""Worlds of a workload on a GPU model, at most."""
FAR = 12
ETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
FROZEN = "d1af983f7d95a8c6"
"""Of their names."""

DEVELOPMENT_EACH = 4
DEVELOPMENT_ETAS = (0.1, 0.4, 0.6, 0.9)
MADE_UP = 12
"""Of each kind."""
MAX_EPOCHS = 100
LIMITS = {250: 1.2, 200: 1.05, 150: 1.0, 100: 1.15}
"""Of made up worlds: cost of an epoch at each, W, over that at the best."""


def holdout_worlds(traces: Traces) -> list[World]:
    """Return the worlds; raises ValueError when they are not those that were frozen.

    Of every workload and GPU model `EACH` pairs of target and default size are drawn, not those of the
    golden figures: from the default every run reaches the target, in two epochs or more on average, for at
    most `FAR` times the optimum (the first recurrence would be all of the regret), and at least three sizes
    compete.
    """
    dice = Random(SEED)
    chosen = list(_drawn(traces, dice, EACH, ETAS))
    digest = sha256("\n".join(made.name for made in chosen).encode()).hexdigest()[:16]
    if digest != FROZEN:
        raise ValueError(f"these are other worlds than those that were frozen: {digest}, not {FROZEN}.")
    return chosen


def development_worlds(traces: Traces) -> list[World]:
    """Return the worlds; raises ValueError when one has a target of a frozen or a golden world."""
    dice = Random(SEED + 1)
    known = [
        *holdout_worlds(traces),
        *(world(traces, gpu, one) for gpu in GPUS for one in traces.workloads.values()),
    ]
    spent = {(made.dataset, made.job.target) for made in known}
    chosen = list(_drawn(_between(traces), dice, DEVELOPMENT_EACH, DEVELOPMENT_ETAS))
    if again := [made.name for made in chosen if (made.dataset, made.job.target) in spent]:
        raise ValueError(f"these have targets of worlds that are not to be designed on: {', '.join(again)}.")
    return [
        *chosen,
        *(_two_groups(at, dice) for at in range(MADE_UP)),
        *(_short(at, dice) for at in range(MADE_UP)),
    ]


def _drawn(traces: Traces, dice: Random, each: int, etas: Sequence[float]) -> Iterator[World]:
    for gpu in GPUS:
        for workload in traces.workloads.values():
            its = tuple(row for row in traces.trained if row.dataset == workload.dataset)
            fit = [one for one in _others(replace(traces, trained=its), gpu, workload) if _fits(one)]
            lots = sorted(fit, key=lambda _: dice.random())
            for one in lots[:each]:
                eta = etas[int(dice.random() * len(etas))]
                other = replace(workload, target=one.job.target, default=one.job.default)
                made = world(traces, gpu, other, eta=eta)
                name = f"{made.name} to {other.target:g} from {other.default}, eta {eta:g}"
                yield replace(made, name=name)


def _between(traces: Traces) -> Traces:
    """Return traces of levels halfway between those recorded, reached halfway between their epochs."""
    runs: dict[tuple[str, str, int, str, str, str], dict[float, int | None]] = {}
    for row in traces.trained:
        of = row.dataset, row.network, row.batch_size, row.optimizer, row.learning_rate, row.run
        runs.setdefault(of, {})[row.level] = row.epoch
    trained = []
    for of, reached in runs.items():
        for low, high in pairwise(sorted(reached)):
            ends = reached[low], reached[high]
            epoch = None if None in ends else ceil(fmean(end for end in ends if end is not None))
            names = Trained.__struct_fields__
            values = (*of, round((low + high) / 2, 5), epoch)
            trained.append(Trained(**dict(zip(names, values, strict=True))))
    return replace(traces, trained=tuple(trained))


def _two_groups(number: int, dice: Random) -> World:
    """Return a world where at some sizes one to three runs of five need several times the epochs."""
    least, slope, bend = dice.uniform(5, 20), dice.uniform(-0.05, 0.2), dice.uniform(0.0, 0.08)
    times, scatter = dice.uniform(1.6, 4.5), dice.choice((0.03, 0.1))
    sizes = [2 ** (4 + at) for at in range(dice.randint(5, 9))]
    bad = {size: dice.choice((0, 0, 1, 2, 2, 3)) for size in sizes}
    best = dice.choice(sizes)

    def epochs(size: int, run: int) -> float:
        away = log2(size / best)
        group = times if run < bad[size] else 1.0
        return least * exp(slope * away + bend * away**2 / 2 + dice.gauss(0, scatter)) * group

    return _made_up(f"two groups {number}", dice, {b: [epochs(b, run) for run in range(5)] for b in sizes})


def _short(number: int, dice: Random) -> World:
    """Return a world whose trainings take a few epochs."""
    least, slope, bend = dice.uniform(0.8, 4), dice.uniform(-0.05, 0.2), dice.uniform(0.0, 0.1)
    scatter = dice.choice((0.03, 0.1, 0.2))
    sizes = [2 ** (4 + at) for at in range(dice.randint(5, 12))]
    best = dice.choice(sizes)

    def epochs(size: int) -> float:
        away = log2(size / best)
        return least * exp(slope * away + bend * away**2 / 2 + dice.gauss(0, scatter))

    return _made_up(f"short {number}", dice, {size: [epochs(size) for _ in range(5)] for size in sizes})


def _made_up(name: str, dice: Random, epochs: Mapping[int, Sequence[float]]) -> World:
    """Return a world of runs of so many epochs by batch size.

    An epoch of a larger size costs less, to a point.
    """
    full, over = dice.choice(list(epochs)), dice.uniform(0.0, 0.15)

    def size(batch_size: int) -> Size:
        epoch_j = 1000 * (1 + full / batch_size) * exp(over * log2(max(1, batch_size / full)))
        costs = [epoch_j * factor for factor in LIMITS.values()]
        runs = (min(ceil(run), MAX_EPOCHS) for run in epochs[batch_size])
        trainings = tuple(
            RecordedTraining(run, tuple(min(1.0, at / run) for at in range(1, MAX_EPOCHS + 1)))
            for run in runs
        )
        return Size(trainings, tuple(SpentByTry(cost, cost / max(LIMITS), cost) for cost in costs))

    sizes = {batch_size: size(batch_size) for batch_size in epochs}
    mean = {b: one.mean_epochs * one.best.cost_j for b, one in sizes.items()}
    fit = [b for b, cost in mean.items() if cost <= FAR * min(mean.values()) and sizes[b].mean_epochs >= 2]
    job = Job(
        batch_sizes=tuple(sizes), default=dice.choice(fit or list(sizes)), max_epochs=MAX_EPOCHS, target=1.0
    )
    return World(name=name, gpu="made up", dataset=name, job=job, sizes=sizes, limits_w=tuple(LIMITS))


def _others(traces: Traces, gpu: str, workload: RecordedWorkload) -> Iterator[World]:
    """Yield the worlds of other targets and default sizes."""
    for level in levels(traces, workload.dataset):
        made = world(traces, gpu, replace(workload, target=level))
        for size in made.sizes:
            if (level, size) != (workload.target, workload.default):
                yield replace(made, job=replace(made.job, default=size))


def _fits(made: World) -> bool:
    if made.job.default not in made.competing or len(made.competing) < 3:
        return False
    default = made.sizes[made.job.default]
    return default.mean_epochs >= 2 and made.by_default.cost_j <= FAR * made.optimum_j
