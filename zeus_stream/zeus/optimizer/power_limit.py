"""`GlobalPowerLimitOptimizer`: finds the power limit during the training, with Zeus's names.

    on_step_begin, on_epoch_end -> steps of a run -> the analyzer's search -> limits, set under a lease

Nothing here touches a GPU. The analyzer measures each limit and chooses; the collector sets it, and returns
to the limit found when the run ends.
"""

import atexit
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import ZeusStreamError
from zeus_stream.protocol.events import SearchWanted
from zeus_stream.zeus.callback import Callback
from zeus_stream.zeus.device.gpu import GPUs, ZeusGPUInitError
from zeus_stream.zeus.monitor.energy import ZeusMonitor
from zeus_stream.zeus.optimizer.profile_file import decided, read_profile, write_profile
from zeus_stream.zeus.optimizer.selectors import (
    Energy,
    MaxSlowdownConstraint,
    OptimumSelector,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
)

if TYPE_CHECKING:
    from zeus_stream.zeus.optimizer.huggingface import HFGlobalPowerLimitOptimizer

__all__ = [
    "Done",
    "Energy",
    "GlobalPowerLimitOptimizer",
    "HFGlobalPowerLimitOptimizer",
    "MaxSlowdownConstraint",
    "OptimumSelector",
    "PowerLimitMeasurement",
    "Profiling",
    "Ready",
    "Time",
    "Warmup",
    "ZeusCost",
]

LOOK_S = 1.0
"""Between two looks for the decision."""
_log = logging.getLogger("zeus_stream")


@dataclass(frozen=True)
class Ready:
    """Steps are left until the first limit is measured. Limits of states are in mW, as in Zeus."""

    next_power_limit: int
    steps: int


@dataclass(frozen=True)
class Warmup:
    """A limit is in force, and its first steps do not count yet. The analyzer counts them."""

    current_power_limit: int
    steps: int


@dataclass(frozen=True)
class Profiling:
    """A limit is in force, and is being measured. The analyzer counts the steps."""

    current_power_limit: int
    steps: int


@dataclass(frozen=True)
class Done:
    """The limit is chosen."""

    optimal_power_limit: int


class GlobalPowerLimitOptimizer(Callback):
    """A search for the power limit of all GPUs of a training. Call it from the training loop.

    Args:
        monitor: its GPUs are those of this rank.
        optimum_selector: `Energy`, `Time`, `ZeusCost` or `MaxSlowdownConstraint`. Default: ``ZeusCost(0.5)``.
        wait_steps: steps before the first limit is measured.
        warmup_steps: steps at each limit that do not count.
        profile_steps: steps at each limit that count. They may lie in several epochs.
        pl_step: distance between two limits, W. The lowest limit is always among them.
        profile_path: a JSON file. If it exists, its measurements choose the limit; else it is written.

    Raises:
        ValueError: an argument is out of range, or the file is no profile.
        TypeError: the selector is a class of your own, and there is no profile yet.

    Example:
        >>> plo = GlobalPowerLimitOptimizer(ZeusMonitor(gpu_indices=[0]), Energy())
        >>> for epoch in range(10):
        ...     for batch in loader:
        ...         plo.on_step_begin()
        ...         train(batch)
        ...     plo.on_epoch_end()
    """

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
        for name, value, least in (
            ("wait_steps", wait_steps, 0), ("warmup_steps", warmup_steps, 0),
            ("profile_steps", profile_steps, 1), ("pl_step", pl_step, 1),
        ):  # fmt: skip
            if value < least:
                raise ValueError(f"{name} = {value}: could not be used: it is at least {least}.")
        self.monitor = monitor
        self.optimum_selector = optimum_selector or ZeusCost(0.5, max(1, len(monitor.gpu_indices)))
        self.wait_steps = wait_steps
        self.warmup_steps = warmup_steps
        self.profile_steps = profile_steps
        self.pl_step = pl_step * 1000
        self.profile_path = None if profile_path is None else Path(profile_path)
        self.measurements: Sequence[PowerLimitMeasurement] = ()
        self.optimal_power_limit: int | None = None
        """W. None: not chosen yet."""
        self._publisher = monitor.publisher
        self._epoch: int | None = None
        self._steps = 0
        self._ended = threading.Event()
        only_mw = self._read_profile()
        if only_mw is None and not self.optimum_selector.text:
            raise TypeError(
                f"{type(self.optimum_selector).__name__}: could not be used: the analyzer chooses, and has no"
                " such selector. docs/how-to/add-a-selector.md says how to add one."
            )
        select = self.optimum_selector.text or "energy"
        search = partial(
            SearchWanted,
            t_ns=monotonic_ns(),
            select=select,
            wait_steps=wait_steps,
            warmup_steps=warmup_steps,
            profile_steps=profile_steps,
            stride_mw=self.pl_step,
            only_mw=only_mw,
        )
        self._publisher.want_search(search)
        if only_mw is None:
            threading.Thread(target=self._watch, name="zeus-stream-decision", daemon=True).start()
            atexit.register(self._finish)

    def __repr__(self) -> str:
        chosen = "not chosen yet" if self.optimal_power_limit is None else f"{self.optimal_power_limit} W"
        return f"<GlobalPowerLimitOptimizer by {self.optimum_selector!r}: {chosen}>"

    @property
    def state(self) -> Ready | Warmup | Profiling | Done:
        """The phase of the search, with Zeus's classes. Raises ZeusGPUInitError: no limit is known."""
        if self.optimal_power_limit is not None:
            return Done(1000 * self.optimal_power_limit)
        if not self.monitor.gpu_indices:
            raise ZeusGPUInitError("state: could not be read: no GPU is measured. See `zeus-stream doctor`.")
        limit_mw = GPUs(self.monitor.gpus).get_power_management_limit(self.monitor.gpu_indices[0])
        if self._steps <= self.wait_steps:
            return Ready(limit_mw, self.wait_steps + 1 - self._steps)
        return Profiling(limit_mw, self.profile_steps)

    def on_epoch_begin(self) -> None:
        """Begin an epoch. The first step begins one as well."""
        if self._epoch is None:
            self._epoch = self._publisher.begin_epoch()

    def on_step_begin(self) -> None:
        """Begin a step, and end the one before."""
        self.on_epoch_begin()
        self._steps += 1
        self._publisher.begin_step()

    def on_step_end(self) -> None:
        """End a step. A loop that does not call this ends it with the next step or the epoch."""
        self._publisher.end_step(pauses=False)

    def on_epoch_end(self) -> None:
        """End the last step of an epoch, and the epoch. The search goes on in the next one."""
        self._publisher.end_step()
        if self._epoch is not None:
            self._publisher.end_epoch(self._epoch)
            self._epoch = None

    def _read_profile(self) -> int | None:
        """Return the limit that the file's measurements choose, mW. None: there is no file."""
        if self.profile_path is None or not self.profile_path.exists():
            return None
        self.measurements = read_profile(self.profile_path)
        self.optimal_power_limit = self.optimum_selector.select(self.measurements)
        return 1000 * self.optimal_power_limit

    def _watch(self) -> None:
        """Look for the decision until it is there. In a thread of its own: the training waits for nothing."""
        while not self._ended.wait(LOOK_S):
            if self._look():
                return

    def _look(self) -> bool:
        try:
            limit_w, measured = decided(self._publisher.started.run, self.profile_steps)
        except (ZeusStreamError, ImportError):
            return False
        if limit_w is None or not measured:
            return False
        self.measurements, self.optimal_power_limit = measured, limit_w
        if self.profile_path is not None and self._publisher.started.rank == 0:
            try:
                write_profile(self.profile_path, measured)
            except OSError as wrong:
                _log.warning("zeus-stream: %s: could not be written: %s.", self.profile_path, wrong.strerror)
        return True

    def _finish(self) -> None:
        """Look once more when the script ends: the decision may have come since."""
        self._ended.set()
        if self.optimal_power_limit is None:
            self._look()


def __getattr__(name: str) -> Any:
    """Import the callback for Hugging Face, and transformers with it, when it is first used."""
    if name != "HFGlobalPowerLimitOptimizer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from zeus_stream.zeus.optimizer.huggingface import HFGlobalPowerLimitOptimizer  # noqa: PLC0415

    return HFGlobalPowerLimitOptimizer
