"""A summary of a job's tries: epochs, costs of an epoch, and the eras between lasting changes. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import exp, inf, isfinite, log, sqrt
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from analyzers.batch_size.belief.failing_runs import failing_rate
from analyzers.batch_size.policy import Job, Try

LEAST = 0.1
"""Epochs of the cheapest size that any metric stands for, at least."""
PACE_EXACT, PACE_EXTRAPOLATED = 0.05, 0.35
"""Standard deviation of the log of the expected epochs, and more of it for each factor e that lies ahead."""


class MetricPace(Struct, frozen=True):
    """The epochs to the target that a metric lets expect."""

    log_epochs: float
    deviation: float
    """Standard deviation."""


def pace_behind(metrics: Sequence[float], of_best: Sequence[float], paid: float) -> MetricPace | None:
    """Return the pace of a try whose metric is not better than the cheapest size's at the same cost.

    Metrics are one an epoch. ``paid``: how many epochs of the cheapest size would have cost as much. None:
    the try is ahead, or that is not known.
    """
    if not metrics or not 1 <= paid < len(of_best):
        return None
    sign = 1 if of_best[-1] >= of_best[0] else -1
    rising = [sign * one for one in of_best]
    metric, low = sign * metrics[-1], int(paid)
    if not metric <= rising[low - 1] + (paid - low) * (rising[low] - rising[low - 1]):
        return None
    at = next((at for at, one in enumerate(rising) if one >= metric), len(rising) - 1)
    if at:
        then = at + (metric - rising[at - 1]) / (rising[at] - rising[at - 1])
    else:
        then = metric / rising[0] if 0 < metric < rising[0] else 1.0
    ahead = log(len(of_best) / max(LEAST, then))
    return MetricPace(log(len(metrics)) + ahead, PACE_EXACT + PACE_EXTRAPOLATED * ahead)


LEAST_FRACTION = 0.05
"""Of the last epoch, at least."""
RESOLVED = 4.0
"""Steps of the metric that the last epoch gains at least, if its fraction is to be known."""


def epochs_to_target(epochs: int, metrics: Sequence[float], job: Job) -> float:
    """Return after how many epochs a try has reached its target, by a straight line through the last epoch.

    The line begins at the best metric of the epochs before. Where two or three epochs are enough, whole ones
    hide how batch sizes differ. It is ``epochs`` where the metrics, one an epoch, do not tell.
    """
    target = job.target
    if target is None or epochs < 2 or len(metrics) != epochs or not all(map(isfinite, metrics)):
        return float(epochs)
    sign = -1.0 if job.lower_is_better else 1.0
    before, after, aim = max(sign * one for one in metrics[:-1]), sign * metrics[-1], sign * target
    if not before < aim <= after or after - before < RESOLVED * job.metric_step:
        return float(epochs)
    share = (aim - before) / (after - before)
    return epochs - 1 + max(LEAST_FRACTION, share) if isfinite(share) else float(epochs)


EXACT = 0.001
"""Least standard deviation of the log of an epoch's cost, once the power limit is chosen."""
PRICES, PRICES_DOF = 0.03, 1.0
"""Standard deviation of the log of an epoch's cost from try to try, before any was seen; worth so many."""
HORIZON = 10
MOST = 20
"""Tries that did not converge are remembered, the latest."""
ERAS = 3
"""Are remembered, the latest."""
USUAL, ALARM, CLIP = 0.5, 8.0, 4.0
"""An era ends when deviations beyond `USUAL` standard deviations add up to `ALARM`; one counts `CLIP` at most
(Page, "Continuous Inspection Schemes", Biometrika 41, 1954). Failures before a usual run of any size count no
more."""
JUMP, PRICE_CLIP = 0.15, 6.0
"""An era also ends when the log of an epoch's cost has left its level, by the same sum, and by `JUMP`."""
EXPECTED, EXPECTED_DOF = 0.15, 4
"""Standard deviation of a run's log epochs for those alarms, before any were seen; worth so many runs."""


class Tally(Struct, frozen=True):
    """Count, mean and sum of squared deviations of values."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def and_(self, value: float) -> "Tally":
        off = value - self.mean
        mean = self.mean + off / (self.count + 1)
        return Tally(self.count + 1, mean, self.squares + off * (value - mean))


Group: TypeAlias = tuple[int, str]
"""Price era and setup."""


class TrySummary(Struct, frozen=True, eq=False, kw_only=True):
    """A summary of the tries that have ended, in the order of their numbers. None equals another."""

    epochs: Mapping[tuple[int, int], Tally] = field(default_factory=dict)
    """Logarithms, by era and batch size, of those that converged."""
    more: tuple[tuple[int, float], ...] = ()
    """In this era: batch size, and the log of the epochs that were not enough."""
    price: Mapping[tuple[Group, int], Tally] = field(default_factory=dict)
    """Log of an epoch's cost at the chosen limit, by batch size."""
    whole: Mapping[tuple[Group, int], float] = field(default_factory=dict)
    """The same of tries that had not chosen a limit; the latest."""
    cheapest_j: Mapping[str, float] = field(default_factory=dict)
    """Least cost of a try that converged in this era, by setup."""
    era: int = 0
    price_era: int = 0
    first: int = 0
    """Recurrence of this era."""
    last: int = -1
    up: float = 0.0
    down: float = 0.0
    """By how much epochs were above and below what they used to be, lately."""
    dearer: float = 0.0
    cheaper: float = 0.0
    """The same of the cost of an epoch."""
    failed: frozenset[int] = frozenset()
    """Batch sizes that failed since one last converged."""
    metrics: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """Metrics of the latest try of this era that converged, by batch size."""
    behind: Mapping[int, MetricPace] = field(default_factory=dict)
    """Batch sizes of which the latest try of this era that was given up was behind the cheapest size."""
    spent_j: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """Cost of all tries of this era, by setup and batch size."""
    reached: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Number of those that converged."""
    converged: Mapping[int, int] = field(default_factory=dict)
    """Tries of all eras that converged, by batch size: how often runs fail is a property of a size; ..."""
    missed: Mapping[int, int] = field(default_factory=dict)
    """... those that failed between two that converged; ..."""
    whole_epochs: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """Mean of the log of whole epochs over those with a fraction, by era and batch size."""
    pending: Mapping[int, int] = field(default_factory=dict)
    """... and those of this era that failed since the size last converged."""
    fractional: bool = False
    """Some of the epochs have a fraction; see `fractional_epochs`."""

    @property
    def horizon(self) -> int:
        """Recurrences that are expected to come."""
        return HORIZON + self.last + 1 - self.first

    @property
    def scatter(self) -> float:
        """Standard deviation of a run's log epochs."""
        return _pooled(self.epochs.values(), EXPECTED, EXPECTED_DOF)

    @property
    def price_scatter(self) -> float:
        """Standard deviation of the log of an epoch's cost, from try to try."""
        return max(EXACT, _pooled(self.price.values(), PRICES, PRICES_DOF))

    def and_(self, a_try: Try, job: Job) -> "TrySummary":
        """Return it with a try of a job that has ended."""
        size, converged = a_try.batch_size, a_try.ended == "converged"
        seen = replace(self, last=max(self.last, a_try.recurrence)).priced(a_try, ended=True)
        if a_try.ended == "lost":
            return seen
        of, pace = (a_try.setup, size), seen.pace_behind(a_try)
        needed = float(a_try.epochs)
        if converged:
            needed = epochs_to_target(a_try.epochs, a_try.metrics, job)
        took = log(needed)
        if known := seen.epochs.get((seen.era, size)):
            off = (took - known.mean) / (seen.scatter * sqrt(1 + 1 / known.count))
            off = max(-CLIP if converged else 0.0, min(CLIP, off))
            if not converged and (rate := seen.failing_rate(size)):
                off = min(off, USUAL - log(rate))
            above = 0.0 if converged and off <= USUAL and seen.pending else seen.up
            up, down = max(0.0, above + off - USUAL), max(0.0, seen.down - off - USUAL)
            seen = seen.changed(a_try) if max(up, down) > ALARM else replace(seen, up=up, down=down)
        seen = replace(seen, spent_j={**seen.spent_j, of: seen.spent_j.get(of, 0.0) + a_try.cost_j})
        if not converged:
            more = (*seen.more, (size, log(a_try.epochs + 0.5)))[-MOST:]
            behind = seen.behind if pace is None else {**seen.behind, size: pace}
            pending = seen.pending
            if (seen.era, size) in seen.epochs:
                pending = {**pending, size: pending.get(size, 0) + 1}
            return replace(seen, more=more, failed=seen.failed | {size}, behind=behind, pending=pending)
        tally = seen.epochs.get((seen.era, size), Tally()).and_(took)
        epochs = {**seen.epochs, (seen.era, size): tally}
        before = seen.whole_epochs.get((seen.era, size), 0.0)
        rounded = before + (log(a_try.epochs / needed) - before) / tally.count
        cheapest_j = min(seen.cheapest_j.get(a_try.setup, inf), a_try.cost_j)
        cheapest = {**seen.cheapest_j, a_try.setup: cheapest_j}
        return replace(
            seen,
            epochs=epochs,
            whole_epochs={**seen.whole_epochs, (seen.era, size): rounded},
            cheapest_j=cheapest,
            failed=frozenset(),
            metrics={**seen.metrics, size: a_try.metrics},
            reached={**seen.reached, of: seen.reached.get(of, 0) + 1},
            converged={**seen.converged, size: seen.converged.get(size, 0) + 1},
            missed={**seen.missed, size: seen.missed.get(size, 0) + seen.pending.get(size, 0)},
            pending={of: number for of, number in seen.pending.items() if of != size},
            fractional=seen.fractional or needed < a_try.epochs,
        )

    def failing_rate(self, size: int, *, pending: bool = True) -> float:
        """Return the probability that a run of a size fails, by all runs of sizes that have converged.

        Failures since the size last converged count as runs of the job as it was: else the first streak of a
        job whose runs fail by chance would end an era, and what failed would be taken for a dear size.
        Without ``pending`` they do not: tries of a job that has become harder are not to end sooner.
        """
        streaks = self.pending if pending else {}
        missed = {of: self.missed.get(of, 0) + streaks.get(of, 0) for of in self.converged}
        runs = {of: count + missed[of] for of, count in self.converged.items()}
        return failing_rate(missed, runs, size)

    def cheapest(self, setup: str) -> int | None:
        """Return the batch size whose tries of this era were the cheapest on a setup."""
        costs = {
            size: tally.mean + self.price[(self.price_era, setup), size].mean
            for (era, size), tally in self.epochs.items()
            if era == self.era and ((self.price_era, setup), size) in self.price
        }
        return min(costs, key=costs.__getitem__, default=None)

    def pace_behind(self, a_try: Try) -> MetricPace | None:
        """Return the pace of a try whose metric is not better than the cheapest size's at the same cost."""
        best, epoch_j = self.cheapest(a_try.setup), a_try.epoch_cost_j
        if best is None or best == a_try.batch_size or not epoch_j or len(a_try.metrics) < a_try.epochs:
            return None
        paid = a_try.epochs * epoch_j / exp(self.price[(self.price_era, a_try.setup), best].mean)
        return pace_behind(a_try.metrics[: a_try.epochs], self.metrics[best], paid)

    def priced(self, a_try: Try, *, ended: bool = False) -> "TrySummary":
        """Return it with what an epoch of a try costs; the level is watched when it has ended."""
        epoch_j = a_try.epoch_cost_j or a_try.cost_j / max(1, a_try.epochs)
        key = (self.price_era, a_try.setup), a_try.batch_size
        if not 0 < epoch_j < inf:
            return self
        price = log(epoch_j)
        if a_try.epoch_cost_j is None:
            return replace(self, whole={**self.whole, key: price})
        known = self.price.get(key)
        seen = self
        if known and ended:
            off = (price - known.mean) / (self.price_scatter * sqrt(1 + 1 / known.count))
            off = max(-PRICE_CLIP, min(PRICE_CLIP, off))
            dearer = max(0.0, self.dearer + off - USUAL)
            cheaper = max(0.0, self.cheaper - off - USUAL)
            if max(dearer, cheaper) > ALARM:
                if abs(price - known.mean) > JUMP:
                    return self.changed(a_try).priced(a_try)
                seen = replace(self, price_era=self.price_era + 1, dearer=0.0, cheaper=0.0)
                key, known = ((seen.price_era, a_try.setup), a_try.batch_size), None
            else:
                seen = replace(self, dearer=dearer, cheaper=cheaper)
        return replace(seen, price={**seen.price, key: (known or Tally()).and_(price)})

    def changed(self, a_try: Try) -> "TrySummary":
        """Return it with an era that begins with a try."""
        oldest, oldest_price = self.era + 2 - ERAS, self.price_era + 2 - ERAS
        return TrySummary(
            epochs={key: tally for key, tally in self.epochs.items() if key[0] >= oldest},
            price={key: tally for key, tally in self.price.items() if key[0][0] >= oldest_price},
            era=self.era + 1,
            price_era=self.price_era + 1,
            first=a_try.recurrence,
            last=self.last,
            fractional=self.fractional,
            missed=self.missed,
            converged=self.converged,
        )


def _pooled(tallies: Iterable[Tally], expected: float, dof: float) -> float:
    """Return the pooled standard deviation, with an expected one that counts as ``dof`` values."""
    squares = dof * expected**2
    for tally in tallies:
        dof += tally.count - 1
        squares += tally.squares
    return sqrt(squares / dof)


_WEIGHT = {"running": 0, "lost": 1, "stopped": 2, "exhausted": 2, "converged": 3}


class JobHistory(Struct, frozen=True):
    """A job and its tries, each with what is best known of it.

    Converged outweighs stopped, an end outweighs lost, and lost outweighs running. So no order of reports
    matters, and one that comes late changes what follows from it.
    """

    job: Job
    tries: tuple[Try, ...] = ()
    """By number."""
    seen: TrySummary = TrySummary()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHistory) and (other.job, other.tries) == (self.job, self.tries)

    def __hash__(self) -> int:
        return hash((self.job, self.tries))

    def heard(self, a_try: Try) -> "JobHistory":
        """Return the history with this report of a try, unless more is known of it already."""
        at = bisect_left(self.tries, a_try.number, key=_number)
        before = [one for one in self.tries[at : at + 1] if one.number == a_try.number]
        if before and _weight(before[0]) >= _weight(a_try):
            return self
        after = self.tries[at + len(before) :]
        tries = (*self.tries[:at], a_try, *after)
        if a_try.ended == "running":
            return replace(self, tries=tries)
        again = any(one.ended != "running" for one in (*before, *after))
        seen = TrySummary() if again else self.seen
        for one in tries if again else (a_try,):
            if one.ended != "running" and one.epochs > 0 and one.batch_size > 0:
                seen = seen.and_(one, self.job)
        return JobHistory(self.job, tries, seen)


def _number(a_try: Try) -> int:
    return a_try.number


def _weight(a_try: Try) -> tuple[int, int, float, str]:
    """Return what decides which of two reports of a try holds; the last part only tells equals apart."""
    return _WEIGHT[a_try.ended], a_try.epochs, a_try.cost_j, repr(a_try)
