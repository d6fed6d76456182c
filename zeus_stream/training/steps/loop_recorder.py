"""The part of a publisher that records the loop of a training: its steps and its epochs."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.events import EpochBegan, EpochEnded, RunPlanned
from zeus_stream.training.identity import batch_of, length_of
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.steps.loop import Loop
from zeus_stream.training.steps.step_boundaries import Boundaries
from zeus_stream.training.steps.step_recorder import StepRecorder

T = TypeVar("T")


class LoopRecorder:
    """The calls of a training loop. A publisher is one."""

    _outbox: Outbox
    _steps: StepRecorder
    _boundaries: Boundaries
    _silent: str
    """Why nothing is published. Empty: it is."""

    def __init__(self, *, by_dispatch: bool) -> None:
        """``by_dispatch``: steps end where Python dispatched them."""
        self._by_dispatch = by_dispatch
        self._epoch = 0
        self._planned: tuple[int | None, int | None] = (None, None)
        """Epochs and steps of the whole run."""

    def steps(self, iterable: Iterable[T]) -> Loop[T]:
        """Return ``iterable``, each turn of whose loop is a step: see `zeus_stream.steps`.

        Args:
            iterable: e.g. torch's ``DataLoader``.
        """
        self.know(batch_of(iterable))
        return Loop(iterable, self._loop)

    def _loop(self, iterable: Iterable[T]) -> Iterator[T]:
        epochs, _ = self._planned
        if self._epoch == 0 or (self._epoch == 1 and epochs == 1):  # as far as is known, it is the whole run
            count = length_of(iterable)
            self.plan(epochs=epochs, steps=None if count is None or self._steps.last is not None else count)
        return self._steps.loop(iterable)

    def plan(self, *, epochs: int | None = None, steps: int | None = None) -> None:
        """Record how long the whole run is to be: forecasts need it.

        Args:
            epochs: of the whole run. None: not known.
            steps: of the whole run. None: not known.
        """
        if (epochs, steps) != self._planned:
            self._planned = (epochs, steps)
            self._outbox.put((RunPlanned, monotonic_ns(), epochs, steps))

    def know(self, batch_size: int | None) -> None:
        """Set the samples of a step, unless they are known, before the first one.

        Args:
            batch_size: samples of one rank's batch. None: nobody says.
        """
        if batch_size is not None:
            self._outbox.know(batch_size)

    def epochs(self, count: int | Iterable[T]) -> Loop[T]:
        """Return ``range(count)``, or an iterable, each turn of whose loop is an epoch.

        Args:
            count: how many epochs, or what to loop over.
        """
        iterable = cast("Iterable[T]", range(count)) if isinstance(count, int) else count
        return Loop(iterable, self._epochs)

    def begin_step(self) -> None:
        """Begin a step, and end the step before if it is open: for loops that `steps` cannot wrap."""
        self._steps.begin()

    def end_step(self, *, pauses: bool = True) -> None:
        """End the step that `begin_step` began.

        Args:
            pauses: False where another is expected at once: both are published with its beginning, as steps
                in a row, whose energies need no reading in between. If none follows, call ``end_step()``.
        """
        self._steps.end(pauses=pauses)

    def cancel_step(self) -> None:
        """Forget the step that `begin_step` began, if it is open: the next has its number."""
        self._steps.cancel()

    def continue_from(self, *, step: int = 0, epoch: int = 0) -> None:
        """Number the next step and epoch so, as a resumed training does; never back, and between steps.

        Args:
            step: number of the next step.
            epoch: number of the next epoch.
        """
        self._steps.continue_from(step)
        self._epoch = max(self._epoch, epoch)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return a context that is a step."""
        self.begin_step()
        try:
            yield
        finally:
            if self._steps.stepping:
                self.end_step()

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Return a context that is an epoch."""
        index = self.begin_epoch()
        try:
            yield
        finally:
            self.end_epoch(index)

    def begin_epoch(self) -> int:
        """Begin an epoch, and return its number: for loops that `epochs` cannot wrap."""
        index, self._epoch = self._epoch, self._epoch + 1
        self._outbox.put((EpochBegan, monotonic_ns(), index))
        return index

    def end_epoch(self, index: int) -> None:
        """End an epoch.

        Args:
            index: its number, as `begin_epoch` returned it.
        """
        self._outbox.put((EpochEnded, monotonic_ns(), index))
        self._boundaries.look()

    def ends_with(self, output: Any) -> None:
        """Let the step under way end when this is ready: an array of JAX, or a tree with one in it.

        It is asked at the boundaries of later steps, and let go when it is ready. Give what is not donated,
        such as the loss.

        Args:
            output: what the step computes last.
        """
        if not self._by_dispatch and not self._silent:
            self._steps.ends_with(output)

    def _epochs(self, iterable: Iterable[T]) -> Iterator[T]:
        if (count := length_of(iterable)) is not None:
            self.plan(epochs=self._epoch + count)
        for item in iterable:
            with self.epoch():
                yield item
