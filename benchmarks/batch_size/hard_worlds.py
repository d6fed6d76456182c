"""Worlds of recurring jobs that no published trace shows, drawn once, before the policy was changed.

Each is made up, but for the pools of recorded GPU models. Kinds:

    scatter      what an epoch costs scatters from try to try, by 3 to 15 %
    failing      a run never reaches the target with probability 5, 20 or 50 %, at some sizes or at all
    heavy tails  epochs are log-normal with a deviation of 0.3 to 0.7, or some runs take 3 to 6 times as many
    drift        the best size moves, or the job gets harder
    flat         all sizes cost nearly the same
    misleading   a second, deeper valley far from the default; or one size much better than its neighbours
    few epochs   a training takes 1 to 6 epochs; a continuous metric tells fractions
    pool         recurrences run on one of two or three GPU models
    mixed        scatter, failing runs and tails together
    chance       any run fails with a probability of 20, 30 or 45 %, at every size

The policy was improved on draws 1 to 8 and 21, and of 101 to 106 on the kind `chance`. 11 was played once at
the end of a change, and so were the kinds with failing runs, tails and drift of 12 to 17.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import ceil, exp, inf, log, log2
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from analyzers.batch_size.policy import Job
from analyzers.simulation.recorded_jobs import (
    RecordedTraining,
    Size,
    SpentByTry,
    Traces,
    World,
    pooled,
    recorded_workload,
    world,
)
from analyzers.simulation.simulated_jobs import Drift

RUNS = 20
"""Of each batch size; a try draws one of them."""
MAX_EPOCHS = 100
TARGET = 0.8
LIMITS_W = {250: 1.2, 200: 1.05, 150: 1.0, 100: 1.15}
"""Cost of an epoch at each limit over that at the best."""
MOST = 6.0
"""Cost at the default size, over that at the optimum, at most."""
EACH = {
    "scatter": 16,
    "failing": 18,
    "heavy tails": 14,
    "drift": 14,
    "flat": 12,
    "misleading": 14,
    "few epochs": 12,
    "pool": 14,
    "mixed": 10,
    "chance": 18,
}
DRIFTS: tuple[Drift, ...] = ("abrupt", "slow", "harder 1.4", "harder 2.2")
"""Of the worlds that drift, in turn."""
Runs = Mapping[int, Sequence[float]]
"""Exact epochs to the target, by batch size; infinite: never."""


class Hard(Struct, frozen=True):
    """A world, its kind and what changes in it."""

    kind: str
    world: World
    drift: Drift


def hard_worlds(draw: int, traces: Traces) -> list[Hard]:
    """Return the worlds of a draw."""
    dice = Random(f"hard worlds {draw}")
    return [
        Hard(
            kind,
            replace(_KINDS[kind](dice, number, traces), name=f"{kind} {number}"),
            DRIFTS[number % len(DRIFTS)] if kind == "drift" else "none",
        )
        for kind, count in EACH.items()
        for number in range(count)
    ]


# ---- curves ------------------------------------------------------------------------------------------------


class _Curve(Struct, frozen=True):
    """Mean epochs and the cost of an epoch, by batch size."""

    epochs: Mapping[int, float]
    epoch_j: Mapping[int, float]

    @property
    def cost_j(self) -> dict[int, float]:
        return {size: self.epochs[size] * self.epoch_j[size] for size in self.epochs}


def _curve(dice: Random, *, least: float | None = None, sizes: int | None = None) -> _Curve:
    """Return a curve as trainings have: fewer epochs for smaller sizes, cheaper epochs for larger ones."""
    of = [2 ** (3 + at) for at in range(sizes or dice.randint(5, 11))]
    best, full, over = dice.choice(of), dice.choice(of), dice.uniform(0.0, 0.15)
    slope, bend, rough = dice.uniform(-0.05, 0.25), dice.uniform(0.0, 0.1), dice.choice((0.0, 0.03, 0.08))
    epochs = least or dice.uniform(5, 30)
    return _Curve(
        {
            b: min(
                MAX_EPOCHS / 2,
                epochs * exp(slope * log2(b / best) + bend * log2(b / best) ** 2 / 2 + dice.gauss(0, rough)),
            )
            for b in of
        },
        {b: 1000 * (1 + full / b) * exp(over * log2(max(1, b / full))) for b in of},
    )


def _valley(dice: Random, cost: Callable[[float], float], sizes: int) -> _Curve:
    """Return a curve whose cost over the sizes, by octave from the smallest, is given up to a factor."""
    of = [2 ** (3 + at) for at in range(sizes)]
    cheaper = dice.uniform(0.05, 0.15)
    epoch_j = {b: 1000 * exp(-cheaper * at) for at, b in enumerate(of)}
    raw = {b: cost(at) / epoch_j[b] for at, b in enumerate(of)}
    least = dice.uniform(5, 12) / min(raw.values())
    return _Curve({b: least * one for b, one in raw.items()}, epoch_j)


def _scattered(curve: _Curve, dice: Random, deviation: float) -> Runs:
    return {
        b: [mean * exp(dice.gauss(0, deviation)) for _ in range(RUNS)] for b, mean in curve.epochs.items()
    }


def _failing(runs: Runs, dice: Random, rate: float, sizes: Sequence[int]) -> Runs:
    """Return the runs, a share of which never reaches the target at some sizes."""
    lost = round(rate * RUNS)
    return {
        b: [inf if b in sizes and at in bad else one for at, one in enumerate(its)]
        for b, its in runs.items()
        for bad in [set(dice.sample(range(RUNS), lost))]
    }


# ---- worlds ------------------------------------------------------------------------------------------------


def _made(
    dice: Random,
    curve: _Curve,
    runs: Runs,
    *,
    default: int | None = None,
    scatter: float = 0.0,
    prices: Mapping[str, float] | None = None,
) -> World:
    """Return a world of such runs.

    Args:
        dice: draws the default size and the noise of the metric.
        curve: cost of an epoch at the best limit.
        runs: exact epochs.
        default: size; None: drawn among those that are not too dear.
        scatter: of the cost of an epoch.
        prices: by GPU model of a pool, what the cost of an epoch is multiplied with for each octave.
    """
    noise = dice.choice((0.0, 0.0, 0.01))
    trainings = {b: tuple(_training(one, dice, noise) for one in its) for b, its in runs.items()}

    def size(b: int, factor: float) -> Size:
        costs = [factor * curve.epoch_j[b] * at for at in LIMITS_W.values()]
        spent = tuple(SpentByTry(cost, cost / max(LIMITS_W), cost) for cost in costs)
        return Size(trainings[b], spent, tuple(LIMITS_W))

    sizes = {b: size(b, 1.0) for b in runs}
    least = {b: _with_restarts(one) * one.best.cost_j for b, one in sizes.items()}
    fit = [b for b, cost in least.items() if cost <= MOST * min(least.values())]
    start = default or dice.choice(fit)
    job = Job(batch_sizes=tuple(sizes), default=start, max_epochs=MAX_EPOCHS, target=TARGET)
    failing = any(run.epochs is None for one in sizes.values() for run in one.trainings)
    base = World(
        name="", gpu="made up", dataset="made up", job=job, sizes=sizes, limits_w=tuple(LIMITS_W),
        cost_scatter=scatter, least_j=min(least.values()) if failing else None,
    )  # fmt: skip
    if prices is None:
        return base
    members = [
        replace(base, gpu=gpu, sizes={b: size(b, exp(slope * log2(b / start))) for b in runs})
        for gpu, slope in prices.items()
    ]
    return pooled(members)


def _training(exact: float, dice: Random, noise: float) -> RecordedTraining:
    """Return a run whose metric passes the target after so many epochs, part of one included."""
    whole = None if exact > MAX_EPOCHS else max(1, ceil(exact))
    rate = -log(1 - TARGET) / min(exact, 3.0 * MAX_EPOCHS)
    metrics = []
    for epoch in range(1, MAX_EPOCHS + 1):
        metric = (1 - exp(-rate * epoch)) * (1 + dice.gauss(0, noise))
        reached = whole is not None and epoch >= whole
        metrics.append(round(max(metric, TARGET) if reached else min(metric, TARGET - 1e-4), 5))
    return RecordedTraining(whole, tuple(metrics[: (whole or MAX_EPOCHS)]))


def _with_restarts(size: Size) -> float:
    """Return the mean epochs of a recurrence that always tries a size and gives up after the best number."""
    runs = [run.epochs or inf for run in size.trainings]
    if inf not in runs:
        return sum(runs) / len(runs)
    found = []
    for cut in {one for one in runs if one < inf}:
        share = sum(one <= cut for one in runs) / len(runs)
        found.append(sum(min(one, cut) for one in runs) / len(runs) / share)
    return min(found, default=inf)


def _usual(dice: Random) -> float:
    return dice.choice((0.03, 0.08, 0.15))


def _of_scatter(dice: Random, _number: int, _traces: Traces) -> World:
    curve = _curve(dice)
    runs = _scattered(curve, dice, _usual(dice))
    return _made(dice, curve, runs, scatter=dice.uniform(0.03, 0.15))


def _of_failing(dice: Random, number: int, _traces: Traces) -> World:
    curve = _curve(dice)
    runs = _scattered(curve, dice, _usual(dice))
    rate = (0.05, 0.2, 0.5)[number % 3]
    sizes = sorted(runs)
    cut = dice.randint(1, len(sizes) - 1)
    at_all = number % 2 == 0 and rate < 0.5
    bad = sizes if at_all else dice.choice((sizes[cut:], sizes[:cut], dice.sample(sizes, cut)))
    cost = curve.cost_j
    if not at_all:  # otherwise no default might be near the optimum and sure
        bad = [b for b in bad if b != min(sizes, key=cost.__getitem__)]
    sure = [b for b in sizes if b not in bad] or sizes
    near = [b for b in sure if cost[b] <= MOST * min(cost.values())]
    default = dice.choice(near) if near else min(sure, key=cost.__getitem__)
    return _made(dice, curve, _failing(runs, dice, rate, bad), default=default)


def _of_tails(dice: Random, number: int, _traces: Traces) -> World:
    curve = _curve(dice)
    if number % 2:
        runs = _scattered(curve, dice, dice.uniform(0.3, 0.7))
    else:
        share, times = dice.choice((0.05, 0.1, 0.2)), dice.uniform(3, 6)
        usual = _scattered(curve, dice, _usual(dice))
        runs = {b: [one * (times if dice.random() < share else 1) for one in its] for b, its in usual.items()}
    capped = {b: [min(one, MAX_EPOCHS) for one in its] for b, its in runs.items()}
    return _made(dice, curve, capped)


def _of_drift(dice: Random, _number: int, _traces: Traces) -> World:
    curve = _curve(dice, least=dice.uniform(5, 15), sizes=dice.randint(6, 10))
    return _made(dice, curve, _scattered(curve, dice, _usual(dice)), scatter=dice.choice((0.0, 0.05)))


def _of_flat(dice: Random, _number: int, _traces: Traces) -> World:
    count = dice.randint(6, 11)
    away = [dice.uniform(0, 0.05) for _ in range(count)]
    curve = _valley(dice, lambda x: 1 + away[round(x)], count)
    return _made(dice, curve, _scattered(curve, dice, _usual(dice)))


def _of_misleading(dice: Random, number: int, _traces: Traces) -> World:
    count = dice.randint(8, 12)
    near, deep = dice.randint(0, 2), dice.uniform(0.35, 0.75)
    far = dice.randint(near + 4, count - 1)
    if dice.random() < 0.5:
        near, far = count - 1 - near, count - 1 - far
    hill = dice.uniform(0.1, 0.8)

    def two_valleys(x: float) -> float:
        return min(
            1 + hill * min(1.0, abs(x - near) / 2), deep + (1 + hill - deep) * min(1.0, abs(x - far) / 2)
        )

    def flat_then_one(x: float) -> float:
        return deep if round(x) == far else 1 + 0.02 * abs(x - near)

    curve = _valley(dice, (two_valleys, flat_then_one)[number % 2], count)
    default = sorted(curve.epochs)[near]
    return _made(dice, curve, _scattered(curve, dice, _usual(dice)), default=default)


def _of_few_epochs(dice: Random, _number: int, _traces: Traces) -> World:
    curve = _curve(dice, least=dice.uniform(0.8, 4))
    return _made(dice, curve, _scattered(curve, dice, dice.choice((0.03, 0.1, 0.2))))


def _of_pool(dice: Random, number: int, traces: Traces) -> World:
    if number % 2:
        curve = _curve(dice)
        prices = {f"gpu {at}": dice.uniform(-0.15, 0.15) for at in range(dice.randint(2, 3))}
        return _made(dice, curve, _scattered(curve, dice, _usual(dice)), prices=prices)
    pools = [
        pooled(members)
        for name in traces.workloads
        for gpus in combinations(sorted(traces.powered), 2)
        for members in [[_recorded(traces, gpu, name) for gpu in gpus]]
        if len(set.intersection(*(set(member.competing) for member in members))) >= 3
    ]
    Random("pools").shuffle(pools)  # none comes twice in a draw
    return pools[(number // 2 * 2 + dice.randrange(2)) % len(pools)]


def _recorded(traces: Traces, gpu: str, name: str) -> World:
    fit = recorded_workload(traces, gpu, traces.workloads[name])
    if fit is None:
        raise ValueError(f"{name} on {gpu} was not recorded.")
    return world(traces, gpu, fit)


def _of_mixed(dice: Random, _number: int, _traces: Traces) -> World:
    curve = _curve(dice)
    runs = _scattered(curve, dice, dice.uniform(0.1, 0.4))
    capped = {b: [min(one, MAX_EPOCHS) for one in its] for b, its in runs.items()}
    bad = dice.sample(sorted(runs), dice.randint(1, len(runs)))
    failing = _failing(capped, dice, dice.choice((0.05, 0.1, 0.2)), bad)
    return _made(dice, curve, failing, scatter=dice.uniform(0.03, 0.12))


def _of_chance(dice: Random, number: int, _traces: Traces) -> World:
    curve = _curve(dice)
    runs = _scattered(curve, dice, _usual(dice))
    return _made(dice, curve, _failing(runs, dice, (0.2, 0.3, 0.45)[number % 3], sorted(runs)))


_KINDS: dict[str, Callable[[Random, int, Traces], World]] = {
    "scatter": _of_scatter,
    "failing": _of_failing,
    "heavy tails": _of_tails,
    "drift": _of_drift,
    "flat": _of_flat,
    "misleading": _of_misleading,
    "few epochs": _of_few_epochs,
    "pool": _of_pool,
    "mixed": _of_mixed,
    "chance": _of_chance,
}
