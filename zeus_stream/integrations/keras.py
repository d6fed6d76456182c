"""Keras 3: a callback of `Model.fit`, whatever the backend.

    from zeus_stream.integrations.keras import KerasCallback
    model.fit(x, y, callbacks=[KerasCallback()])

A step of the optimizer is a step, however many batches it takes; with ``steps_per_execution`` it is all those
that Keras executes in one go. Evaluations are windows. What a step cost is in the logs of the epochs. The
last second or so of an epoch is in the next one's. Phases of a step are *forward, backward and optimizer* and
*data*.
"""

from collections.abc import Sequence
from typing import Any

from keras.callbacks import Callback

from zeus_stream.clock import monotonic_ns
from zeus_stream.integrations.callbacks import TrainingCallbacks, training
from zeus_stream.training.publisher import Publisher

INTERVAL_NS = 1_000_000_000
"""An epoch is asked about in intervals of so long."""


class KerasCallback(Callback):  # type: ignore[misc, unused-ignore]
    """See above. Put it before callbacks that write logs."""

    def __init__(self, publisher: Publisher | None = None, trackers: Sequence[Any] = ()) -> None:
        """``trackers``: energies are logged there as well: see `zeus_stream.log_energy_to`."""
        super().__init__()
        self._publisher = publisher
        self._trackers = trackers
        self._batch = self._batches = self._asked_ns = 0

    @property
    def _training(self) -> TrainingCallbacks:
        return training(self._publisher)

    @property
    def _accumulated(self) -> int:
        """Batches of one step."""
        optimizer = self.model.optimizer  # or what scales its losses
        return getattr(optimizer, "inner_optimizer", optimizer).gradient_accumulation_steps or 1

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._batches, self._asked_ns = 0, monotonic_ns()
        self._training.begin(int(self.model.optimizer.iterations), epochs=self.params.get("epochs"))
        self._training.report_to(self._trackers)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._training.end()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._training.begin_epoch(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._training.end_epoch()
        self._training.record(logs or {})
        found = self._training.log()
        if logs is not None:
            logs.update(found)
        if self._training.over_budget():  # callbacks that save do it now as well
            self.model.stop_training = True

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._batch = batch
        if not self._training.stepping:  # gradients accumulate
            self._training.begin_step()
        self._training.mark("forward, backward and optimizer")  # no hook lies between them

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._training.mark("data")
        self._batches += batch - self._batch + 1
        steps, self._batches = divmod(self._batches, self._accumulated)
        if steps:
            self._training.end_step(steps)
            if (now_ns := monotonic_ns()) - self._asked_ns > INTERVAL_NS:
                self._asked_ns = now_ns
                self._training.end_interval()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._training.begin_pause("evaluation")

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._training.end_pause()
