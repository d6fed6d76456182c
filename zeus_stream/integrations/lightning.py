"""Lightning: a callback of its `Trainer`.

    from zeus_stream.integrations.lightning import LightningCallback
    Trainer(callbacks=[LightningCallback()])

A step of the optimizer is a step, however many batches it takes; validations and tests are windows. The
joules of a step and of a token go to the trainer's loggers, every ``log_every_n_steps``, one interval late.
The archive has what the module logs, once an epoch, in its table ``metrics``. The tokens of each rank so far
are the metric ``tokens``.
"""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from lightning.pytorch import Callback

from zeus_stream.integrations.callbacks import TrainingCallbacks, training
from zeus_stream.training.identity import batch_of
from zeus_stream.training.publisher import Publisher


class LightningCallback(Callback):  # type: ignore[misc, unused-ignore]
    """See above."""

    def __init__(
        self,
        publisher: Publisher | None = None,
        tokens: Callable[[Any], int] | None = None,
        trackers: Sequence[Any] = (),
    ) -> None:
        """``tokens``: counts those in a batch, from its shape: ``lambda batch: batch["input_ids"].numel()``.

        ``publisher``: that of the script, made when the training begins, if not given.
        ``trackers``: energies are logged there as well: see `zeus_stream.log_energy_to`.
        """
        self._publisher = publisher
        self._trackers = trackers
        self._count = tokens
        self._tokens = self._seen = self._steps = self._made = 0

    @property
    def _training(self) -> TrainingCallbacks:
        return training(self._publisher)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._made = self._steps = trainer.global_step
        self._tokens = self._seen = 0
        batch_size = batch_of(trainer.train_dataloader)
        steps = trainer.estimated_stepping_batches  # inf: there is no end
        self._training.begin(
            trainer.global_step,
            batch_size and batch_size * trainer.accumulate_grad_batches,
            epochs=trainer.max_epochs,
            steps=int(steps) if isfinite(steps) else None,
        )
        self._training.report_to(self._trackers)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._training.end()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._training.begin_epoch(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._training.end_epoch()
        self._record(trainer)
        if trainer.checkpoint_callback is None:  # there is no checkpoint to wait for
            self._end_over_budget(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self._end_over_budget(trainer)

    def _end_over_budget(self, trainer: Any) -> None:
        """End the training if it has used its energy budget. All ranks decide as the first one does."""
        if self._training.over_budget(trainer.strategy.broadcast):
            trainer.should_stop = True

    def _record(self, trainer: Any) -> None:
        """Store what the module has logged. Its tensors are waited for, once an epoch."""
        if trainer.is_global_zero:
            ours = {"energy_per_step_j", "energy_per_token_j", "average_power_w"}
            logged = trainer.callback_metrics.items()
            self._training.record({name: value for name, value in logged if name not in ours})

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if not self._training.stepping:  # gradients accumulate
            self._training.begin_step()
        self._training.mark("forward")
        if self._count is not None:
            self._tokens += self._count(batch)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._training.mark("data")
        if trainer.global_step == self._made:
            return
        self._made = trainer.global_step  # several optimizers of one batch make one step of ours
        self._steps += 1
        self._training.end_step()
        if trainer.log_every_n_steps and self._steps % trainer.log_every_n_steps == 0:
            tokens, self._tokens = self._tokens, 0
            self._seen += tokens
            self._training.record({}, self._seen or None)
            self.log_dict(self._training.log(tokens or None))

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self._training.mark("backward")

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self._training.mark("optimizer")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._training.begin_pause("validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._training.end_pause()

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._training.begin_pause("test")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._training.end_pause()
