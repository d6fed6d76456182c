"""Hugging Face `Trainer`, and TRL's trainers, which are subclasses of it.

    from zeus_stream.integrations.huggingface import measure
    measure(trainer)
    trainer.train()

A step of the optimizer is a step, an epoch an epoch; evaluations and checkpoints are windows. The joules of a
step and of a token are in the trainer's logs, one logging interval late. The archive has the numbers of the
logs in its table ``metrics``, and the tokens of each rank so far as the metric ``tokens``. Phases of a step
are *forward and backward*, *optimizer* and *data*.
"""

from collections.abc import Sequence
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import DefaultFlowCallback, TrainerCallback

from zeus_stream.integrations.callbacks import TrainingCallbacks, training
from zeus_stream.training.publisher import Publisher

EVALUATION = "evaluation"
CHECKPOINT = "checkpoint"


class HuggingFaceCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """The callback that `measure` adds. As one of ``callbacks=`` it comes after those that write logs."""

    def __init__(self, publisher: Publisher | None = None, trackers: Sequence[Any] = ()) -> None:
        """``trackers``: energies are logged there as well: see `zeus_stream.log_energy_to`."""
        self._publisher = publisher
        self._trackers = trackers
        self._tokens = 0

    @property
    def _training(self) -> TrainingCallbacks:
        return training(self._publisher)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._tokens = state.num_input_tokens_seen
        batch_size = None if args.auto_find_batch_size else args.train_batch_size
        self._training.begin(
            state.global_step,
            batch_size and batch_size * args.gradient_accumulation_steps,
            epochs=state.num_train_epochs if args.max_steps <= 0 else None,
            steps=state.max_steps,
        )
        self._training.report_to(self._trackers)
        if getattr(args, "eval_on_start", False):
            self._training.begin_pause(EVALUATION)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.end()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.cancel_pause()
        self._training.begin_epoch(int(state.epoch or 0))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.end_epoch()
        if args.save_strategy == "no":  # there is no checkpoint to wait for
            self._end_over_budget(control)
        self._expect(control)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.cancel_step()  # one that the epoch's end cut short
        self._training.begin_step()
        self._training.mark("forward and backward")  # no hook lies between them

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.mark("optimizer")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.end_step()
        self._training.mark("data")
        self._expect(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self._training.pausing:  # its beginning was not reported: its first batch is not in it
            self._training.begin_pause(EVALUATION)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.end_pause()
        if args.save_strategy == "best":  # decided after this; cancelled at the next step if it is not saved
            self._training.begin_pause(CHECKPOINT)
        else:
            self._expect(control)

    def on_predict(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.end_pause()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.end_pause()
        self._end_over_budget(control)

    def _end_over_budget(self, control: Any) -> None:
        """End the training if it has used its energy budget. All ranks decide as the first one does."""
        if self._training.over_budget(lambda over: broadcast_object_list([over])[0]):
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        tokens = self._seen_tokens(state, logs)
        share = tokens // args.world_size if tokens > 0 else None
        self._training.record(logs if state.is_world_process_zero else {}, share)
        if self._training.pausing:  # what an evaluation found
            return
        found = self._training.log(self._new_tokens(args, tokens))
        logs.update(found)
        if state.log_history:
            state.log_history[-1].update(found)
        self._expect(control)

    def _seen_tokens(self, state: Any, logs: dict[str, float]) -> int:
        """Return the tokens of all ranks so far. TRL counts them, others if asked to; else it is 0."""
        return int(logs.get("num_tokens", state.num_input_tokens_seen))

    def _new_tokens(self, args: Any, seen: int) -> int | None:
        """Return this rank's share of the tokens since the last log."""
        new, self._tokens = seen - self._tokens, seen
        return new // args.world_size if new > 0 else None

    def _expect(self, control: Any) -> None:
        """Begin what the trainer is about to do: evaluate, save, in this order, once it has logged."""
        if control.should_log:
            return
        if control.should_evaluate:
            self._training.begin_pause(EVALUATION)
        elif control.should_save:
            self._training.begin_pause(CHECKPOINT)


def measure(
    trainer: Any, publisher: Publisher | None = None, trackers: Sequence[Any] = ()
) -> HuggingFaceCallback:
    """Measure what a `transformers.Trainer` does, and put energies into its logs, wherever it reports to.

    The callback stands before those that write logs, so that they see its figures.
    """
    callback = HuggingFaceCallback(publisher, trackers)
    callbacks = trainer.callback_handler.callbacks
    flow = [place for place, there in enumerate(callbacks) if isinstance(there, DefaultFlowCallback)]
    callbacks.insert(flow[0] + 1 if flow else 0, callback)
    return callback
