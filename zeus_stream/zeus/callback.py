"""The callbacks of a training loop, with Zeus's names."""

from collections.abc import Sequence


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


class CallbackSet(Callback):
    """Several callbacks, called in their order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = list(callbacks)

    def on_train_begin(self) -> None:
        for callback in self.callbacks:
            callback.on_train_begin()

    def on_train_end(self) -> None:
        for callback in self.callbacks:
            callback.on_train_end()

    def on_epoch_begin(self) -> None:
        for callback in self.callbacks:
            callback.on_epoch_begin()

    def on_epoch_end(self) -> None:
        for callback in self.callbacks:
            callback.on_epoch_end()

    def on_step_begin(self) -> None:
        for callback in self.callbacks:
            callback.on_step_begin()

    def on_step_end(self) -> None:
        for callback in self.callbacks:
            callback.on_step_end()

    def on_evaluate(self, metric: float) -> None:
        for callback in self.callbacks:
            callback.on_evaluate(metric)

    def on_instruction_begin(self, name: str) -> None:
        for callback in self.callbacks:
            callback.on_instruction_begin(name)

    def on_instruction_end(self, name: str) -> None:
        for callback in self.callbacks:
            callback.on_instruction_end(name)
