"""`HFGlobalPowerLimitOptimizer`: the optimizer of the power limit as a callback of a Hugging Face trainer."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from zeus_stream.zeus.monitor.energy import ZeusMonitor
from zeus_stream.zeus.optimizer.power_limit import GlobalPowerLimitOptimizer
from zeus_stream.zeus.optimizer.selectors import OptimumSelector


class HFGlobalPowerLimitOptimizer(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """A callback for ``Trainer(callbacks=[...])``. The arguments are those of `GlobalPowerLimitOptimizer`."""

    def __init__(
        self,
        monitor: ZeusMonitor,
        optimum_selector: OptimumSelector | None = None,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        pl_step: int = 25,
        profile_path: str | Path | None = None,
    ) -> None:
        self.optimizer = GlobalPowerLimitOptimizer(
            monitor, optimum_selector, wait_steps, warmup_steps, profile_steps, pl_step, profile_path
        )

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.optimizer.on_epoch_end()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.optimizer.on_step_begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.optimizer.on_step_end()
