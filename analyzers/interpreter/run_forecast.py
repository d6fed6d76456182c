"""The forecast of one run: what its steps and all between them cost so far, to what is left. Pure.

    plan of the script (epochs, steps) --+
    steps of all ranks, by power limit --+--> left = steps left x step + rounds left x what is between steps
    rounds: epochs, or blocks of steps --+

A round is an epoch, or a block of steps where the script says how many steps there are. What a round takes
besides its steps (data, validation, checkpoints, pauses) is its *rest*; without steps, all of it. Steps count
at the limit that the last step had: trials of other limits say nothing of the steps to come.
"""

from math import ceil

from msgspec import Struct, field

from analyzers.interpreter.batch_means import BatchMeans, Sum, added
from analyzers.results.rows import ForecastRow

BLOCKS = 50
"""Blocks of a run whose steps are known: so many forecasts are made."""
LEAST_BLOCK = 16
"""Steps of a block, at least."""
FEW_STEPS = 8
"""Fewer steps at a limit than these do not make a forecast."""
MAX_LIMITS = 64
UNSEEN, UNSEEN_RESTS = 0.02, 2.0


class Spent(Struct, frozen=True):
    """The state of a run at an instant: since it began, all GPUs."""

    s: float
    j: float | None
    """None: the energy of a GPU is not known."""


class _AtLimit(Struct):
    joules: BatchMeans = field(default_factory=BatchMeans)
    seconds: BatchMeans = field(default_factory=BatchMeans)


class _Round(Struct):
    """The steps of a round."""

    steps: int = 0
    j: float = 0.0
    s: float = 0.0
    measured: int = 0
    """Steps whose energy is known."""


class RunForecast(Struct, kw_only=True):
    """One run: its plan, its steps by power limit, and its rounds so far."""

    run: str
    epochs: int | None = None
    """Of the whole run, as its script says."""
    steps: int | None = None
    epochs_done: int = 0
    steps_done: int = 0
    limit_w: float | None = None
    at_limits: dict[float | None, _AtLimit] = field(default_factory=dict)
    rest_j: BatchMeans = field(default_factory=BatchMeans)
    """By round."""
    rest_s: BatchMeans = field(default_factory=BatchMeans)
    lengths: BatchMeans = field(default_factory=BatchMeans)
    """Steps by round."""
    longest: Spent = Spent(0.0, 0.0)
    """The longest rest, and the dearest."""
    last: Spent | None = None
    """At the end of the last round, or at the begin of the first."""
    earlier: Spent | None = None
    """What earlier attempts of a run that was resumed have spent; None: not known, or there was none."""
    open: _Round = field(default_factory=_Round)

    @property
    def block(self) -> int | None:
        """Steps of a block. None: rounds are epochs."""
        return None if self.steps is None else max(LEAST_BLOCK, ceil(self.steps / BLOCKS))

    def plan(self, epochs: int | None, steps: int | None) -> None:
        if (steps is None) != (self.steps is None):  # rounds are others now
            self.rest_j, self.rest_s, self.lengths = BatchMeans(), BatchMeans(), BatchMeans()
            self.last, self.open = None, _Round()
        self.epochs, self.steps = epochs, steps

    def add_step(self, index: int, joules: float | None, seconds: float, limit_w: float | None) -> None:
        """Take in a step that is measured. ``joules``: of all GPUs. ``seconds``: of the slowest rank."""
        if index == 0:
            self.earlier = None  # it begins from the start: what went before is no part of it
        self.steps_done = max(self.steps_done, index + 1)
        self.limit_w = limit_w
        if limit_w not in self.at_limits and len(self.at_limits) >= MAX_LIMITS:
            del self.at_limits[next(iter(self.at_limits))]
        at = self.at_limits.setdefault(limit_w, _AtLimit())
        at.seconds.add(seconds)
        self.open.steps += 1
        self.open.s += seconds
        if joules is not None:
            at.joules.add(joules)
            self.open.j += joules
            self.open.measured += 1

    @property
    def spent(self) -> Spent:
        """The cost so far, earlier attempts included."""
        of = [each for each in (self.earlier, self.last) if each is not None]
        joules = [each.j for each in of if each.j is not None]
        known = len(joules) == len(of) and self.open.measured == self.open.steps
        return Spent(sum(each.s for each in of) + self.open.s, sum(joules) + self.open.j if known else None)

    def begin_rounds(self, spent: Spent) -> None:
        if self.last is None:
            self.last = spent

    def end_round(self, spent: Spent) -> None:
        ended, self.open = self.open, _Round()
        before, self.last = self.last, spent
        if before is not None:
            rest_s, rest_j = max(0.0, spent.s - before.s - ended.s), 0.0
            self.rest_s.add(rest_s)
            if spent.j is not None and before.j is not None and ended.measured == ended.steps:
                rest_j = max(0.0, spent.j - before.j - ended.j)
                self.rest_j.add(rest_j)
            self.longest = Spent(max(self.longest.s, rest_s), max(self.longest.j or 0.0, rest_j))
        self.lengths.add(ended.steps)

    def _left(self) -> tuple[Sum, float] | None:
        """Return the steps and the rounds that are left. None: nobody knows."""
        if self.block is not None and self.steps is not None:
            steps = max(0, self.steps - self.steps_done)
            return Sum(steps, 0.0, 1), steps / self.block
        epochs = max(0, (self.epochs or 0) - self.epochs_done)
        steps_left = self.lengths.next(epochs)
        return None if self.epochs is None or steps_left is None else (steps_left, epochs)

    def forecast(self, wall_ns: int) -> ForecastRow | None:
        """Return the forecast that the rounds so far allow. ``wall_ns``: UTC, of the end of the last one."""
        left, at, spent = self._left(), self.at_limits.get(self.limit_w), self.last
        if at is None and not self.steps_done:
            at = _AtLimit()  # a script that marks its epochs alone: each is all rest
        elif at is not None and at.seconds.count < FEW_STEPS:
            return None
        if left is None or at is None or spent is None:
            return None
        steps, rounds = left
        seconds = added((*_steps_to_come(at.seconds, steps), self.rest_s.next(rounds)))
        joules = None
        if spent.j is not None:
            joules = added((*_steps_to_come(at.joules, steps), self.rest_j.next(rounds)))
        earlier = self.earlier or Spent(0.0, 0.0)
        spent_s = spent.s + earlier.s
        spent_j = None if spent.j is None or earlier.j is None else spent.j + earlier.j
        low_j, energy_j, high_j = _interval(joules, spent_j, self.longest.j or 0.0)
        low_s, duration_s, high_s = _interval(seconds, spent_s, self.longest.s)
        return ForecastRow(
            run=self.run,
            step=self.steps_done,
            made_wall_ns=wall_ns,
            epochs_done=self.epochs_done,
            epochs=self.epochs,
            steps=self.steps_done + round(steps.mean),
            power_limit_w=self.limit_w,
            spent_j=spent_j,
            spent_s=spent_s,
            energy_j=energy_j,
            energy_p2_5_j=low_j,
            energy_p97_5_j=high_j,
            duration_s=duration_s,
            duration_p2_5_s=low_s,
            duration_p97_5_s=high_s,
        )


def _steps_to_come(cost: BatchMeans, steps: Sum) -> tuple[Sum | None, ...]:
    """Return what the steps that are left take, and what it adds that their number is not known."""
    if not steps.mean:
        return ()
    taken = cost.next(steps.mean)
    if taken is None:
        return (taken,)
    variance = None if steps.variance is None else (taken.mean / steps.mean) ** 2 * steps.variance
    return taken, Sum(0.0, variance, steps.freedom)


def _interval(
    left: tuple[float, float | None] | None, spent: float | None, longest: float
) -> tuple[float | None, float | None, float | None]:
    """Return the whole with its 95 % interval: low, mean, high. It is never less than what is spent."""
    if left is None or spent is None:
        return None, None, None
    mean, half = left
    if half is None:
        return None, spent + mean, None
    unseen = max(UNSEEN_RESTS * longest, UNSEEN * (spent + mean))
    return spent + max(0.0, mean - half), spent + mean, spent + mean + half + unseen
