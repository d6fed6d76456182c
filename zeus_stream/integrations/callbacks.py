"""The common part of the frameworks' callbacks: steps, epochs and pauses in, energies for their logs out.

    begin_step, end_step, begin_step, ...  -> steps, and windows of the name INTERVAL over steps in a row
    log                                    -> the interval ends, and what earlier ones cost

Nothing waits: a log has what the analyzer has answered by then.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

from msgspec import Struct

from zeus_stream.integrations.run_budget import Agree, over_budget
from zeus_stream.integrations.trackers import EnergyLog, log_energy_to
from zeus_stream.training.answers import WindowEnergy
from zeus_stream.training.default import default_publisher
from zeus_stream.training.identity import counted
from zeus_stream.training.publisher import Publisher
from zeus_stream.training.windows import Later, Window

INTERVAL = "logging interval"
TOKENS = "tokens"
ANSWER_S = 60.0
"""A question is given up after this; its interval is in no log then."""
MAX_UNANSWERED = 100
"""Intervals that wait for their energy; of more, the oldest is in no log."""


class Interval(Struct, frozen=True):
    """Steps whose energy was asked for."""

    steps: int
    tokens: int | None
    """None: nobody counted them."""
    energies: tuple[Later, ...]
    """Of the parts between its pauses."""

    @property
    def answered(self) -> bool:
        return all([energy() is not None for energy in self.energies])  # noqa: C419  (all are looked at)

    @property
    def costs(self) -> Sequence[WindowEnergy] | None:
        """The cost of its parts. None: that of one is missing, and a sum without it would be another sum."""
        known = [cost for energy in self.energies if isinstance(cost := energy(), WindowEnergy)]
        return known if len(known) == len(self.energies) else None


def averages(intervals: Sequence[Interval]) -> dict[str, float]:
    """Return what a step and a token cost, in joules, and the power, in watts, over answered intervals.

    What is missing has no key. Energies are those of this process's GPUs: with several ranks, ``tokens`` is
    this rank's share.
    """
    known = [(interval, costs) for interval in intervals if (costs := interval.costs)]
    if not known:
        return {}
    energy_j = sum(cost.energy_j for _, costs in known for cost in costs)
    duration_s = sum(cost.duration_s for _, costs in known for cost in costs)
    found = {"energy_per_step_j": energy_j / sum(interval.steps for interval, _ in known)}
    if all(interval.tokens for interval, _ in known):
        found["energy_per_token_j"] = energy_j / sum(interval.tokens or 0 for interval, _ in known)
    if duration_s > 0:
        found["average_power_w"] = energy_j / duration_s
    return found


class TrainingCallbacks:
    """The training that a framework runs in this process."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._epoch: int | None = None
        self._stepping = self._untold = False
        self._part: Window | None = None
        """Of the interval: it ends at the next pause."""
        self._steps = self._part_steps = 0
        """Of the interval, and of its part."""
        self._energies: list[Later] = []
        self._intervals: deque[Interval] = deque(maxlen=MAX_UNANSWERED)
        self._pause: Window | None = None
        self._energy_log: EnergyLog | None = None

    def __repr__(self) -> str:
        doing = "pausing" if self.pausing else "in a step" if self.stepping else "between steps"
        return f"<{type(self).__name__} of {self._publisher!r}: {doing}>"

    def report_to(self, trackers: Sequence[Any]) -> None:
        """Log energies to trackers until the training ends: see `zeus_stream.log_energy_to`."""
        self._close_log()  # of a training that was interrupted
        if trackers:
            self._energy_log = log_energy_to(*trackers, publisher=self._publisher)

    def begin(
        self,
        step: int,
        batch_size: int | None = None,
        *,
        epochs: int | None = None,
        steps: int | None = None,
    ) -> None:
        """Begin a training with a step of this number. What an interrupted one left open is forgotten.

        Args:
            step: number of its first step.
            batch_size: samples of this rank in a step of the optimizer.
            epochs: of the whole training, and its steps; None, as above: the framework does not say.
            steps: see there.
        """
        self._publisher.know(batch_size)
        self.forget()
        self._publisher.continue_from(step=step)
        self._publisher.plan(epochs=counted(epochs), steps=counted(steps))

    def over_budget(self, agree: Agree | None = None) -> bool:
        """Return whether the training is to end: call it in every rank, after a checkpoint.

        Args:
            agree: see `zeus_stream.over_budget`.
        """
        return over_budget(self._publisher, agree)

    def end(self) -> None:
        """End the training."""
        self.forget()
        self._close_log()

    def _close_log(self) -> None:
        if self._energy_log is not None:
            self._energy_log.close()
            self._energy_log = None

    def close(self) -> None:
        """Forget what is under way: nothing more is to come."""
        self.forget()

    def forget(self) -> None:
        """Leave what is under way: an epoch ends here, no other end is known. Steps that ended have been."""
        self._end_phase()
        self.cancel_pause()
        self.cancel_step()
        self._rest()
        self.end_epoch()
        self._steps = 0
        self._energies.clear()
        self._intervals.clear()

    # ---- epochs and steps

    def begin_epoch(self, number: int) -> None:
        """Begin an epoch.

        Args:
            number: of it; a higher one counts where an earlier training had this one.
        """
        self._publisher.continue_from(epoch=number)
        self._epoch = self._publisher.begin_epoch()

    def end_epoch(self) -> None:
        """End the epoch that is open, if one is."""
        if self._epoch is not None:
            self._publisher.end_epoch(self._epoch)
            self._epoch = None

    @property
    def stepping(self) -> bool:
        """A step is open."""
        return self._stepping

    def begin_step(self) -> None:
        """Begin a step: its batch is there. A pause that was not ended was none."""
        self.cancel_pause()
        self._publisher.begin_step()
        self._stepping, self._untold = True, False
        self._begin_part()

    def end_step(self, steps: int = 1) -> None:
        """End a step: the optimizer has made it.

        Args:
            steps: that it made in one go.
        """
        self._publisher.end_step(pauses=False)
        self._stepping, self._untold = False, True
        self._count(steps)

    def _count(self, steps: int) -> None:
        self._steps += steps
        self._part_steps += steps

    def cancel_step(self) -> None:
        """Forget the step that is open, if one is."""
        if self._stepping:
            self._publisher.cancel_step()
            self._stepping = False

    # ---- what is not steps

    def mark(self, phase: str) -> None:
        """Let a phase of the steps be under way from here on.

        Args:
            phase: its name, such as ``forward``.
        """
        self._publisher.phases.mark(phase)

    def _end_phase(self) -> None:
        if self._publisher.phases.open:
            self._publisher.phases.mark(None)

    def begin_pause(self, name: str) -> None:
        """Begin what belongs to no step: a window.

        Args:
            name: of the window.
        """
        self._end_phase()
        self.cancel_pause()
        self._rest()
        self._pause = self._publisher.window(name).restart()

    def end_pause(self) -> None:
        """End what belongs to no step, if it has begun."""
        if self._pause is not None:
            self._pause.end()
            self._pause = None
        if self._stepping:
            self._begin_part()

    def cancel_pause(self) -> None:
        """Forget what belongs to no step: it was none."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    @property
    def pausing(self) -> bool:
        """True while something that belongs to no step is under way."""
        return self._pause is not None

    @contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """Return a context that belongs to no step: a window.

        Args:
            name: of the window.
        """
        self.begin_pause(name)
        try:
            yield
        finally:
            self.end_pause()

    # ---- logs

    def log(self, tokens: int | None = None) -> dict[str, float]:
        """End an interval, and return what has been answered since the last call about earlier ones.

        Args:
            tokens: that this rank trained on since the last interval ended.

        Returns:
            ``energy_per_step_j``, ``energy_per_token_j`` and ``average_power_w``, for a log.
            What is not known is not there: at first nothing is.
        """
        self.end_interval(tokens)
        answered = [interval for interval in self._intervals if interval.answered]
        for interval in answered:
            self._intervals.remove(interval)
        return averages(answered)

    def record(self, values: Mapping[str, Any], tokens: int | None = None) -> None:
        """Store numbers of a framework's log as metrics of the step and the epoch that began last.

        Args:
            values: numbers by name; what is not a number is left out.
            tokens: that this rank has trained on so far, the metric `TOKENS`. The sum over the ranks of a run
                is what the run has trained on.
        """
        for name, value in values.items():
            if isinstance(value, Real) or hasattr(value, "item"):
                self._publisher.metric(name, value)
        if tokens is not None:
            self._publisher.metric(TOKENS, tokens)

    def end_interval(self, tokens: int | None = None) -> None:
        """Ask for the energy of the steps since the last call. Never waits.

        Args:
            tokens: that this rank trained on since then.
        """
        if self._steps == 0:
            return
        goes_on = self._part is not None
        self._end_part()
        self._intervals.append(Interval(self._steps, tokens, tuple(self._energies)))
        self._energies.clear()
        self._steps = 0
        if goes_on:
            self._begin_part()

    def _rest(self) -> None:
        """No step follows at once."""
        if self._untold:
            self._publisher.end_step()
            self._untold = False
        self._end_part()

    def _begin_part(self) -> None:
        if self._part is None:
            self._part = self._publisher.window(INTERVAL).restart()

    def _end_part(self) -> None:
        if self._part is None:
            return
        if self._part_steps or self._stepping:
            self._part.end()
            self._energies.append(self._part.energy_later(ANSWER_S))
        else:
            self._part.cancel()
        self._part, self._part_steps = None, 0


def training(publisher: Publisher | None) -> TrainingCallbacks:
    """Return the training of this publisher. None: of the script's."""
    publisher = publisher or default_publisher()
    return publisher.follow(TrainingCallbacks, lambda: TrainingCallbacks(publisher))
