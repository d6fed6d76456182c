"""The batch size of a job that recurs, chosen by what is believed about all of them. Pure.

    tries so far -> epochs to the target and cost of an epoch, each a curve over the batch sizes
                 -> the size whose try, with what it teaches, is expected to cost least from here on
                 -> after how many epochs that try is given up

What a training costs is epochs times the cost of an epoch. The logarithm of each is a Gaussian process over
the logarithm of the batch size. Epochs scatter from run to run; an epoch's cost is known once one was run. A
try that ended before the target says that it needs more epochs than that. On another GPU model epochs to the
target are the same, and the cost of an epoch is the same curve but for a smooth deviation.

A size is worth a try when what the recurrences to come may save is more than it costs now: the knowledge
gradient (Ryzhov, Powell, Frazier, "The Knowledge Gradient Algorithm for a General Class of Online Learning
Problems", Operations Research 60, 2012). To come are as many recurrences as there were, `HORIZON` at least. A
try can be given up after any epoch, and the job is then trained at the best other size; whatever the try
shows until then is reckoned with.

Where epochs or their cost leave their level for good, an era ends: what was seen before it tells how the
curve runs and no longer where.

The figures of the processes are fitted to Zeus's published V100 traces.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, erfc, exp, inf, log, log2, pi, sqrt
from random import Random
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from analyzers.batch_size import History
from analyzers.recurring import Choice, Job, Try, Verdict

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Process:
    """A Gaussian process over x, the binary logarithm of a batch size over the default one."""

    slope: float
    """By octave; of the mean, like `bend`."""
    bend: float
    level: float
    """Standard deviations, like all that follow: of everything, ..."""
    line: float
    """... by x, ..."""
    parabola: float
    """... by half its square, ..."""
    smooth: float
    length: float
    """... of a smooth part, and how far that reaches in octaves, ..."""
    rough: float
    """... and of each size by itself."""

    def mean(self, x: Floats) -> Floats:
        return self.slope * x + self.bend * x**2 / 2

    def covariance(self, x: Floats) -> Floats:
        apart = np.sqrt(3) * np.abs(x[:, None] - x) / self.length
        found = self.level**2 + self.line**2 * np.outer(x, x) + self.parabola**2 * np.outer(x**2, x**2) / 4
        found += self.smooth**2 * (1 + apart) * np.exp(-apart)
        return np.asarray(found)


EPOCHS = Process(slope=0.05, bend=0.08, level=10, line=0.25, parabola=0.03, smooth=0.3, length=1.6, rough=0.02)
COST = Process(slope=-0.05, bend=0.08, level=10, line=0.17, parabola=0.02, smooth=0.5, length=8, rough=0.015)
"""Of epochs to the target, and of an epoch's cost."""
CHANGED = Process(slope=0, bend=0, level=0.5, line=0.15, parabola=0.02, smooth=0.2, length=2, rough=0.03)
OTHER = Process(slope=0, bend=0, level=1, line=0.1, parabola=0.01, smooth=0.2, length=2.4, rough=0.03)
"""By how much an era, or a GPU model, deviates from what they have in common."""
TEMPERS = ((0.04, 0.02), (0.12, 0.03), (0.35, 0.1))
"""Hypotheses: standard deviations of a run's log epochs, and of what a size deviates by itself."""
BAD, ODD = 0.1, 1.0
INSURED = 10000
HOPE = 3.0
TWICE, NEAR = 2, 1
INSURANCE = 1.3
NOISE, NOISE_DOF = 0.15, 4
"""Standard deviation of a run's log epochs before any were seen, and how many runs that is worth."""
EXACT = 1e-6
"""Variance with which the log of an epoch's cost is seen."""
NEVER = 0.06
"""By each octave from the nearest that did, so likely a size never reaches the target."""
PROFILING = 1.1
"""What the first epoch at a size costs, by what later ones cost."""
HORIZON, GROWING = 10.0, 1.0
"""Recurrences to come, at least."""
NODES, COST_NODES = 15, 5
"""Equally likely epochs, and epoch costs, over which is summed."""
USUAL, ALARM, CLIP = 0.5, 8.0, 4.0
"""A change is when deviations beyond `USUAL` add up to `ALARM`; in standard deviations, one `CLIP` at most."""
CHANGED_COST = 0.15
"""The log of an epoch's cost differs by this when it has changed."""


# ---- what was seen ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tally:
    """Count, mean and sum of squared deviations of values."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def and_(self, value: float) -> "_Tally":
        off = value - self.mean
        mean = self.mean + off / (self.count + 1)
        return _Tally(self.count + 1, mean, self.squares + off * (value - mean))


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What tries that have ended have shown, in the order of their numbers. Sizes are indices."""

    epochs: Mapping[tuple[int, int], _Tally] = field(default_factory=dict)
    """Logarithms, by era and size, of those that converged."""
    more: tuple[tuple[int, float], ...] = ()
    """In this era: size, and log of the epochs that were not enough."""
    cost: Mapping[tuple[tuple[int, str], int], float] = field(default_factory=dict)
    """Log of an epoch's cost, J, by era and setup, and size; the latest."""
    era: int = 0
    first: int = 0
    """Recurrence of this era."""
    last: int = -1
    up: float = 0.0
    down: float = 0.0
    """By how much epochs were above and below what they were before, lately."""
    failed: frozenset[int] = frozenset()
    """Sizes that failed since one last converged."""

    @property
    def deviation(self) -> float:
        """Of a run's log epochs."""
        dof = NOISE_DOF + sum(tally.count - 1 for tally in self.epochs.values())
        return sqrt((NOISE_DOF * NOISE**2 + sum(tally.squares for tally in self.epochs.values())) / dof)

    def priced(self, at: int, setup: str, epoch_j: float, recurrence: int) -> "_Seen":
        """Return it with what an epoch costs; an era ends where that has changed."""
        if not 0 < epoch_j < inf:
            return self
        price = log(epoch_j)
        if abs(price - self.cost.get(((self.era, setup), at), price)) > CHANGED_COST:
            return self.changed(recurrence).priced(at, setup, epoch_j, recurrence)
        return replace(self, cost={**self.cost, ((self.era, setup), at): price})

    def changed(self, recurrence: int) -> "_Seen":
        """Return it at the beginning of another era."""
        return replace(self, era=self.era + 1, first=recurrence, up=0.0, down=0.0, more=(), failed=frozenset())

    def and_(self, at: int, a_try: Try) -> "_Seen":
        """Return it with a try that has ended."""
        seen = replace(self, last=max(self.last, a_try.recurrence))
        seen = seen.priced(at, a_try.setup, _epoch_j(a_try), a_try.recurrence)
        if a_try.ended == "lost":
            return seen
        took, converged = log(a_try.epochs), a_try.ended == "converged"
        if known := seen.epochs.get((seen.era, at)):
            off = (took - known.mean) / (seen.deviation * sqrt(1 + 1 / known.count))
            off = max(-CLIP if converged else 0.0, min(CLIP, off))
            up, down = max(0.0, seen.up + off - USUAL), max(0.0, seen.down - off - USUAL)
            seen = seen.changed(a_try.recurrence) if max(up, down) > ALARM else replace(seen, up=up, down=down)
        if not converged:
            return replace(seen, more=(*seen.more, (at, log(a_try.epochs + 0.5))), failed=seen.failed | {at})
        tally = seen.epochs.get((seen.era, at), _Tally()).and_(took)
        return replace(seen, epochs={**seen.epochs, (seen.era, at): tally}, failed=frozenset())


def _epoch_j(a_try: Try) -> float:
    return a_try.epoch_cost_j or a_try.cost_j / max(1, a_try.epochs)


@dataclass(frozen=True, slots=True)
class State:
    """A job, its tries, and what those that ended have shown."""

    history: History
    seen: _Seen = field(default=_Seen(), compare=False)

    def heard(self, a_try: Try) -> "State":
        """Return it with what is said of a try; if that comes late, all is gone through again."""
        history = self.history.heard(a_try)
        if history is self.history:
            return self
        if a_try.ended == "running":
            return State(history, self.seen)
        later = any(t.ended != "running" for t in history.tries if t.number > a_try.number)
        seen, tries = (_Seen(), history.tries) if later else (self.seen, (a_try,))
        sizes = history.job.batch_sizes
        for one in tries:
            if one.ended != "running" and one.epochs > 0 and one.batch_size in sizes:
                seen = seen.and_(sizes.index(one.batch_size), one)
        return State(history, seen)


# ---- what is believed ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Curves:
    """Normal distributions of curves over n sizes, by h hypotheses."""

    mean: Floats
    """Shape (h, n)."""
    covariance: Floats
    """Shape (h, n, n)."""
    evidence: Floats
    """Log of it; shape (h,)."""
    noise: Floats
    """Variance of what is seen of them next, and their weights; shape (h,)."""
    weight: Floats

    @property
    def variance(self) -> Floats:
        return np.maximum(np.diagonal(self.covariance, axis1=1, axis2=2), 0)

    def given_more(self, at: int, least: float) -> "_Curves":
        """Return them once a value seen at a size is known to be above ``least``; moments are matched."""
        deviation = np.sqrt(self.variance[:, at] + self.noise)
        z = (least - self.mean[:, at]) / deviation
        hazard = np.array([_hazard(one) for one in z.tolist()])
        gain = self.covariance[:, at] / deviation[:, None]
        shrink = np.minimum(0.999, hazard * (hazard - z))[:, None, None]
        return replace(
            self,
            mean=self.mean + gain * hazard[:, None],
            covariance=self.covariance - shrink * gain[:, :, None] * gain[:, None],
        )


def _hazard(z: float) -> float:
    """Return the mean of a standard normal beyond z."""
    beyond = 0.5 * erfc(z / sqrt(2))
    return exp(-(z**2) / 2) / sqrt(2 * pi) / beyond if beyond > 1e-12 else z + 1 / z


@dataclass(frozen=True, slots=True)
class _Point:
    """Something seen of a curve."""

    group: Hashable
    at: int
    """Index of the size."""
    value: float
    variance: tuple[float, ...]
    """By hypothesis."""


def _curves(
    x: Floats, common: Process, own: Process, group: Hashable, points: Sequence[_Point], rough: Sequence[float]
) -> _Curves:
    """Return a group's curve, given what was seen of all, by hypotheses about what each size has by itself."""
    apart = own.covariance(x) if any(point.group != group for point in points) else np.zeros((len(x), len(x)))
    shared = common.covariance(x) + np.array(rough)[:, None, None] ** 2 * np.eye(len(x))
    at = np.array([point.at for point in points], dtype=int)
    number = {of: i for i, of in enumerate(dict.fromkeys([group, *(point.group for point in points)]))}
    of = np.array([number[point.group] for point in points], dtype=int)
    noise = np.array([point.variance for point in points]).T
    total = shared[:, at[:, None], at] + np.where(of[:, None] == of, apart[at[:, None], at], 0)
    total += noise[:, :, None] * np.eye(len(at))
    cross = shared[:, at] + np.where((of == 0)[:, None], apart[at], 0)
    off = np.array([point.value for point in points]) - common.mean(x)[at]
    solved = np.linalg.solve(total, np.concatenate([cross, np.broadcast_to(off[:, None], (*cross.shape[:2], 1))], axis=2))
    mean = common.mean(x) + np.einsum("hmn,hm->hn", cross, solved[:, :, -1])
    covariance = shared + apart - np.swapaxes(cross, 1, 2) @ solved[:, :, :-1]
    evidence = -0.5 * (solved[:, :, -1] @ off + np.linalg.slogdet(total)[1])
    return _Curves(mean, covariance, evidence, np.zeros(len(rough)), np.ones(len(rough)))


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of n batch sizes on a setup."""

    job: Job
    epochs: _Curves
    cost: _Curves
    """There is one hypothesis."""
    never: Floats
    """Probability that a size does not reach the target."""
    tried: tuple[int, ...]
    """Tries of this era that converged, by size."""
    first: int
    last: int
    failed: frozenset[int]

    @property
    def horizon(self) -> float:
        return HORIZON + GROWING * (self.last + 1.0 - self.first)

    def insured(self, recurrence: int) -> bool:
        since = recurrence - self.first
        return since >= INSURED and since & (since - 1) == 0

    @property
    def hopeful(self) -> int | None:
        log_cost, best = self.log_cost, self.best
        variance = self.epochs.weight @ self.epochs.variance + self.cost.variance[0]
        off = (log_cost - log_cost[best]) / np.sqrt(variance + 1e-6)
        off[best] = inf
        away = np.abs(np.arange(len(off)) - best)
        off[(np.array(self.tried) >= TWICE) | (away > NEAR)] = inf
        return int(np.argmin(off)) if off.min() < HOPE else None

    @property
    def log_cost(self) -> Floats:
        """Log of the expected cost, J."""
        logs = self.epochs.mean + self.epochs.variance / 2 + np.log(self.epochs.weight)[:, None]
        most = logs.max(axis=0)
        by_cost = self.cost.mean[0] + self.cost.variance[0] / 2
        return np.asarray(most + np.log(np.exp(logs - most).sum(axis=0)) + by_cost)

    @property
    def best(self) -> int:
        return int(np.argmin(self.log_cost))


def _believe(job: Job, seen: _Seen, setup: str) -> Belief:
    """Return the belief after one try at least converged."""
    octaves = tuple(log2(size / job.default) for size in job.batch_sizes)
    epochs = _epochs(octaves, seen.era, tuple(seen.epochs.items()), seen.more)
    cost = _cost(octaves, (seen.era, setup), tuple(seen.cost.items()))
    tried = [seen.epochs.get((seen.era, at), _Tally()).count for at in range(len(octaves))]
    reached = {octaves[at] for _, at in seen.epochs}
    away = np.array([min((abs(x - other) for other in reached), default=0.0) for x in octaves])
    return Belief(
        job, epochs, cost, 1 - np.exp(-NEVER * away), tuple(tried),
        seen.first, seen.last, seen.failed,
    )  # fmt: skip


@lru_cache(maxsize=8)
def _epochs(octaves: tuple[float, ...], era: int, tallies: tuple[tuple[tuple[int, int], _Tally], ...], more: tuple[tuple[int, float], ...]) -> _Curves:
    once = [i for i, (_, tally) in enumerate(tallies) if tally.count == 1] if len(tallies) > 1 else []
    tempers = [(noise, rough, -1) for noise, rough in TEMPERS] + [(*TEMPERS[1], i) for i in once]
    dof = sum(tally.count - 1 for _, tally in tallies)
    squares = sum(tally.squares for _, tally in tallies)
    points = [
        _Point(of, at, tally.mean, tuple(noise**2 / tally.count + ODD**2 * (i == odd) for noise, _, odd in tempers))
        for i, ((of, at), tally) in enumerate(tallies)
    ]
    found = _curves(np.array(octaves), EPOCHS, CHANGED, era, points, [rough for _, rough, _ in tempers])
    noise = np.array([noise for noise, *_ in tempers])
    bad = np.array([log(BAD) * (odd >= 0) for *_, odd in tempers])
    evidence = found.evidence + bad - dof * np.log(noise) - squares / noise**2 / 2
    weight = np.exp(evidence - evidence.max())
    kept = weight > 0.01 * weight.sum()
    found = _Curves(
        found.mean[kept], found.covariance[kept], evidence[kept], noise[kept] ** 2, weight[kept] / weight[kept].sum()
    )
    for at, least in more:
        found = found.given_more(at, least)
    return found


@lru_cache(maxsize=8)
def _cost(octaves: tuple[float, ...], group: Hashable, seen: tuple[tuple[tuple[Hashable, int], float], ...]) -> _Curves:
    points = [_Point(of, at, value, (EXACT,)) for (of, at), value in seen]
    return _curves(np.array(octaves), COST, OTHER, group, points, [COST.rough])


# ---- what follows ----------------------------------------------------------------------------------------


def _nodes(count: int) -> Floats:
    z = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
    return z / np.sqrt(np.mean(z**2))


Z = _nodes(NODES)
Z_COST = _nodes(COST_NODES)
LEFT = 1 - np.arange(NODES + 1) / NODES
"""Share of runs that go on after so many of the nodes."""
LEFT_Z = np.array([0, *(Z[k:].mean() for k in range(1, NODES)), Z[-1]])
LEFT_SHRINK = np.array([0, *(1 - Z[k:].var() for k in range(1, NODES)), 1])
"""Mean of those, and the share of variance that knowing it takes away."""


def _outlook(belief: Belief) -> tuple[Floats, Floats]:
    """Return what a try of each size is expected to cost, with all that follows, and when to give it up.

    Returns:
        Costs relative to one another, of this recurrence and those to come; epochs. Shapes (n,).
    """
    epochs, cost, cost_variance, horizon = belief.epochs, belief.cost.mean[0], belief.cost.variance[0], belief.horizon
    unit = float(belief.log_cost.min())
    unknown = cost_variance > 1e-4
    deviation, cost_deviation = np.sqrt(epochs.variance + epochs.noise[:, None]), np.sqrt(cost_variance) * unknown
    by_epochs = epochs.covariance / deviation[:, :, None]  # (h, i, j)
    by_cost = belief.cost.covariance[0] / np.maximum(cost_deviation, 1e-2)[:, None] * unknown[:, None]
    log_cost = epochs.mean + cost + (epochs.variance + cost_variance) / 2 - unit
    known = (log_cost[:, None] - by_cost**2 / 2)[:, :, None] + by_cost[:, None] * Z_COST[:, None]  # (h, i, c, j)
    after = known[:, :, :, None] + _shift(by_epochs, Z, np.ones(NODES))[:, :, None]  # (h, i, c, k, j)
    given_up = known[:, :, :, None] + _shift(by_epochs, LEFT_Z, LEFT_SHRINK)[:, :, None]
    reached = _least(after) / NODES
    left = _least(given_up)
    proven = [at for at, count in enumerate(belief.tried) if count]
    instead = _least(given_up[..., proven]) if proven else left
    per_epoch = np.exp(_bounded(cost - unit)[:, None] + cost_deviation[:, None] * Z_COST)  # (i, c)
    takes = np.maximum(1, np.exp(_bounded(epochs.mean[:, :, None] + deviation[:, :, None] * Z)))  # (h, i, k)
    until = np.concatenate([np.ones((*takes.shape[:2], 1)), takes], axis=2)
    converged = (1 - belief.never)[:, None]
    paid = converged * np.concatenate([0 * takes[:, :, :1], takes.cumsum(axis=2) / NODES], axis=2)
    paid += (converged * LEFT + 1 - converged) * until
    to_come = np.concatenate([0 * reached[..., :1], reached.cumsum(axis=3)], axis=3)
    goes_on = converged[:, None] * (horizon * to_come + LEFT * (instead + horizon * left))
    goes_on += (1 - converged)[:, None] * (instead[..., :1] + horizon * left[..., :1])
    total = np.tensordot(epochs.weight, per_epoch[:, :, None] * paid[:, :, None] + goes_on, axes=1)  # (i, c, k)
    first = (PROFILING - 1) * per_epoch * unknown[:, None]
    stop = total.mean(axis=1).argmin(axis=1)
    epochs_then = np.exp(epochs.weight @ np.log(until[:, np.arange(len(stop)), stop]))
    return (total.min(axis=2) + first).mean(axis=1), epochs_then


def _shift(by: Floats, z: Floats, shrink: Floats) -> Floats:
    """Return how the log of all expected costs moves when a size's epochs are known; shape (h, i, k, j)."""
    return by[:, :, None] * z[:, None] - by[:, :, None] ** 2 * shrink[:, None] / 2


def _least(log_costs: Floats) -> Floats:
    return np.exp(_bounded(log_costs.min(axis=-1)))


def _bounded(log_value: Floats) -> Floats:
    return np.clip(log_value, -80, 80)


class Adaptive:
    """The policy."""

    def start(self, job: Job) -> State:
        return State(History(job))

    def began(self, state: State, a_try: Try) -> State:
        return state.heard(a_try)

    def ended(self, state: State, a_try: Try) -> State:
        return state.heard(a_try)

    def choose(self, state: State, setup: str, rng: Random) -> Choice:  # noqa: ARG002  (nothing is drawn)
        job, seen = state.history.job, state.seen
        if not seen.epochs:
            return Choice(job.default)
        belief = _believe(job, seen, setup)
        if not belief.failed and belief.insured(belief.last + 1) and belief.hopeful is not None:
            return Choice(job.batch_sizes[belief.hopeful], stop_cost_j=exp(belief.log_cost.min()))
        value, _ = _outlook(belief)
        if len(belief.failed) < len(value):
            value[list(belief.failed)] = inf
        at = int(np.argmin(value))
        return Choice(job.batch_sizes[at])

    def verdict(self, state: State, a_try: Try) -> Verdict:
        job, seen = state.history.job, state.seen
        if not seen.epochs or a_try.batch_size not in job.batch_sizes:
            return Verdict(go_on=True)
        at = job.batch_sizes.index(a_try.batch_size)
        most = _most_epochs(job, seen, at, a_try.setup, _epoch_j(a_try), a_try.recurrence)
        return Verdict(a_try.epochs < most)


@lru_cache(maxsize=64)
def _most_epochs(job: Job, seen: _Seen, at: int, setup: str, epoch_j: float, recurrence: int) -> int:
    belief = _believe(job, seen.priced(at, setup, epoch_j, recurrence), setup)
    bound = belief.job.beta * exp(belief.log_cost.min() - belief.cost.mean[0, at])
    if not belief.failed and belief.insured(recurrence):
        return max(1, int(bound / belief.job.beta * INSURANCE))
    if belief.tried[at]:
        return max(1, ceil(bound))
    return max(1, min(ceil(bound), ceil(_outlook(belief)[1][at] - 1e-9)))
