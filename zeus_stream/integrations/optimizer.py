"""Plain torch, and what is built on it: a step is what lies between two steps of an optimizer.

    energy = zeus_stream.auto()
    for batch in loader:
        ...
        optimizer.step()
        log(**energy.log())

It needs no loop of ours, and with gradient accumulation it counts what the optimizer does. Accelerate's and
other wrappers call the optimizer below when, and only when, a step is made.
"""

from typing import Any
from weakref import ReferenceType, ref

from zeus_stream.integrations.callbacks import TrainingCallbacks
from zeus_stream.training.default import default_publisher
from zeus_stream.training.publisher import Publisher


class OptimizerSteps(TrainingCallbacks):
    """Training that ends a step, and begins the next, whenever an optimizer has made one.

    Of several that take turns one counts: what they do, to two networks, is one step of the training. It is
    the first, until it is gone, or until another makes two steps in a row.

    Example:
        >>> energy = zeus_stream.auto()
        >>> with energy.pause("validation"):
        ...     evaluate()
        >>> energy.log()
        {'energy_per_step_j': 4.42, 'average_power_w': 215.1}
    """

    def __init__(self, publisher: Publisher) -> None:
        from torch.compiler import disable  # noqa: PLC0415  (`auto` alone needs no torch)
        from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415

        super().__init__(publisher)
        self._leader: ReferenceType[Any] | None = None
        self._last: ReferenceType[Any] | None = None
        self._hook = register_optimizer_step_post_hook(disable(self._made))
        self.begin_step()

    def begin_pause(self, name: str) -> None:
        self.cancel_step()  # the optimizer's last one has just begun it
        super().begin_pause(name)

    def end_pause(self) -> None:
        super().end_pause()
        self.begin_step()

    def close(self) -> None:
        self._hook.remove()
        super().close()

    def _made(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        leader, last = (None if r is None else r() for r in (self._leader, self._last))
        self._last = ref(optimizer)
        if leader in {None, optimizer} or last is optimizer:
            self._leader = self._last
            self.end_step()
            self.begin_step()


def auto(publisher: Publisher | None = None) -> OptimizerSteps:
    """Measure the steps of torch's optimizers from now on; the first step begins here.

    The loop stays as it is. A second call returns the same object.

    Args:
        publisher: the run that the steps belong to. Default: that of the script.

    Returns:
        An object whose ``log()`` returns joules for a log, and whose ``pause(name)`` is a context for what
        belongs to no step.

    Example:
        >>> energy = zeus_stream.auto()
        >>> for batch in loader:
        ...     train(batch)                       # calls optimizer.step()
        ...     wandb.log(energy.log())
    """
    publisher = publisher or default_publisher()
    return publisher.follow(OptimizerSteps, lambda: OptimizerSteps(publisher))
