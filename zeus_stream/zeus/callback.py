"""The callbacks of a training loop, with Zeus's names."""

from collections.abc import Callable, Sequence
from typing import Any


class Callback:
    """A listener of a training loop. Each method does nothing."""

    def on_train_begin(self) -> None:
        """Mark the begin of the training."""

    def on_train_end(self) -> None:
        """Mark the end of the training."""

    def on_epoch_begin(self) -> None:
        """Mark the begin of an epoch."""

    def on_epoch_end(self) -> None:
        """Mark the end of an epoch."""

    def on_step_begin(self) -> None:
        """Mark the begin of a step."""

    def on_step_end(self) -> None:
        """Mark the end of a step."""

    def on_evaluate(self, metric: float) -> None:
        """Pass on the result of an evaluation.

        Args:
            metric: what was evaluated, e.g. the accuracy.
        """

    def on_instruction_begin(self, name: str) -> None:
        """Mark the begin of an instruction of a pipeline.

        Args:
            name: of it, e.g. ``forward``.
        """

    def on_instruction_end(self, name: str) -> None:
        """Mark the end of an instruction of a pipeline.

        Args:
            name: of it.
        """


def _of_each(method: str) -> Callable[..., None]:
    """Return a method that calls this one of each callback of a set."""

    def call(self: "CallbackSet", *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, method)(*arguments)

    return call


class CallbackSet(Callback):
    """Several callbacks, called in their order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = list(callbacks)

    on_train_begin = _of_each("on_train_begin")
    on_train_end = _of_each("on_train_end")
    on_epoch_begin = _of_each("on_epoch_begin")
    on_epoch_end = _of_each("on_epoch_end")
    on_step_begin = _of_each("on_step_begin")
    on_step_end = _of_each("on_step_end")
    on_evaluate = _of_each("on_evaluate")
    on_instruction_begin = _of_each("on_instruction_begin")
    on_instruction_end = _of_each("on_instruction_end")
