"""`HFGlobalPowerLimitOptimizer`: the optimizer of the power limit as a callback of a Hugging Face trainer."""

from functools import wraps
from typing import Any

from transformers import TrainerCallback

from zeus_stream.zeus.optimizer.power_limit import GlobalPowerLimitOptimizer


class HFGlobalPowerLimitOptimizer(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """A callback for ``Trainer(callbacks=[...])``. The arguments are those of `GlobalPowerLimitOptimizer`."""

    @wraps(GlobalPowerLimitOptimizer.__init__)  # type: ignore[misc]  # with its signature, as Zeus has it
    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.optimizer = GlobalPowerLimitOptimizer(*arguments, **named)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.optimizer.on_epoch_end()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.optimizer.on_step_begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.optimizer.on_step_end()
