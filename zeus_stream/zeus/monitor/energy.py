"""`ZeusMonitor`: windows with a name, and their time and energy.

    begin_window, end_window -> events to the collector -> the analyzer's answer -> Measurement

``end_window`` does not wait, unless there is a log file: the energy is waited for when it is read.
"""

import atexit
import math
import sys
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TextIO

from zeus_stream.clock import Anchor, anchor, monotonic_ns
from zeus_stream.training.windows import Later, Window
from zeus_stream.zeus.services import MonitoredGpus, connect


@dataclass(eq=False)
class Measurement:
    """The result of one window: Zeus's fields.

    Attributes:
        time: of the window, s.
        gpu_energy: joules by GPU index. NaN: not known, and the logger ``zeus_stream`` has the reason.
        cpu_energy: None. The archive has the joules of CPUs and DRAM in columns of its own.
        dram_energy: None.
        soc_energy: None.

    Example:
        >>> measured = monitor.end_window("epoch")
        >>> measured.total_energy / measured.time      # W
        203.1
    """

    time: float
    gpu_energy: dict[int, float]
    cpu_energy: dict[int, float] | None = None
    dram_energy: dict[int, float] | None = None
    soc_energy: None = None

    def __eq__(self, other: object) -> bool:
        """Tell whether all fields are equal, also if one was pickled and the other waits for its energy."""
        if not isinstance(other, Measurement):
            return NotImplemented
        return all(getattr(self, each.name) == getattr(other, each.name) for each in fields(Measurement))

    __hash__ = None  # type: ignore[assignment]  # its energy may change

    @cached_property
    def total_energy(self) -> float:
        """Joules of all GPUs."""
        return sum(self.gpu_energy.values())


class _Pending(Measurement):
    """A measurement whose energy is under way. It is waited for when it is first read."""

    def __init__(self, time_s: float, gpus: MonitoredGpus, later: Later) -> None:
        self.time = time_s
        self._gpus, self._later = gpus, later

    def __getattr__(self, name: str) -> Any:
        if name != "gpu_energy":
            raise AttributeError(name)
        answer = self._later.wait()
        self._gpus.learn(answer)
        found = {gpu.gpu: gpu.energy_j for gpu in answer.gpus}
        uuids = self._gpus.uuids
        self.gpu_energy = {index: found.get(uuids.get(index, ""), math.nan) for index in self._gpus.indices}
        return self.gpu_energy

    def __repr__(self) -> str:
        return f"Measurement(time={self.time!r}, gpu_energy={self.gpu_energy!r})"

    def __reduce__(self) -> tuple[type[Measurement], tuple[float, dict[int, float]]]:
        """Pickle as a `Measurement` whose energy is known."""
        return Measurement, (self.time, self.gpu_energy)


class ZeusMonitor:
    """A stopwatch for time and GPU energy: windows with names, any number open at a time.

    Args:
        gpu_indices: GPUs by index, counted as CUDA shows them to this process. None: all of those.
        cpu_indices: accepted and not used: the analyzer measures all CPUs that can be read.
        approx_instant_energy: accepted and not needed: short windows have an energy with bounds.
        log_file: CSV file with a line for each window. ``end_window`` then waits for the energy, about 0.2 s.
        sync_execution_with: the framework whose work is waited for at both ends of a window.

    Example:
        >>> monitor = ZeusMonitor(gpu_indices=[0])
        >>> monitor.begin_window("epoch")
        >>> train()
        >>> monitor.end_window("epoch").total_energy
        8124.0
    """

    def __init__(
        self,
        gpu_indices: list[int] | None = None,
        cpu_indices: list[int] | None = None,
        approx_instant_energy: bool = False,
        log_file: str | Path | None = None,
        sync_execution_with: Literal["torch", "jax", "cupy"] = "torch",
    ) -> None:
        self.approx_instant_energy = approx_instant_energy
        self.sync_with: Literal["torch", "jax", "cupy"] = sync_execution_with
        self.gpus = connect(gpu_indices)
        self.publisher = self.gpus.publisher
        self.gpu_indices = list(self.gpus.indices)
        self.cpu_indices = cpu_indices or []
        self.measurement_states: dict[str, tuple[Window, Anchor]] = {}
        self.log_file: TextIO | None = None
        if log_file is not None:
            Path(log_file).parent.mkdir(parents=True, exist_ok=True)
            self.log_file = Path(log_file).open("w", encoding="utf-8")  # noqa: SIM115  (closed at exit)
            columns = (f"gpu{index}_energy" for index in self.gpu_indices)
            self.log_file.write(f"start_time,window_name,elapsed_time,{','.join(columns)}\n")
            self.log_file.flush()
            atexit.register(self.log_file.close)

    def __repr__(self) -> str:
        opened = ", ".join(map(repr, self.measurement_states)) or "none"
        return f"<ZeusMonitor of GPUs {self.gpu_indices}: open windows {opened}>"

    def begin_window(self, key: str, sync_execution: bool = True, restart: bool = False) -> None:
        """Begin a window.

        Args:
            key: its name, unique among the open windows.
            sync_execution: wait until the GPUs have done what they were given so far.
            restart: forget an open window of this name, and begin again.

        Raises:
            ValueError: a window of this name is open.
        """
        if key in self.measurement_states:
            if not restart:
                raise ValueError(f"Measurement window '{key}' already exists")
            self.measurement_states.pop(key)[0].cancel()
        if sync_execution:
            synchronize(self.gpu_indices, self.sync_with)
        window = self.publisher.window(key)
        self.measurement_states[key] = window, anchor()
        window.__enter__()

    def end_window(self, key: str, sync_execution: bool = True, cancel: bool = False) -> Measurement:
        """End a window, and return its time and energy.

        Args:
            key: its name.
            sync_execution: wait until the GPUs have done what they were given so far.
            cancel: forget the window. What is returned holds zeros, as in Zeus.

        Raises:
            ValueError: no window of this name is open.
        """
        if key not in self.measurement_states:
            raise ValueError(f"Measurement window '{key}' does not exist")
        window, began = self.measurement_states.pop(key)
        if sync_execution:
            synchronize(self.gpu_indices, self.sync_with)
        if cancel:
            window.cancel()
            return Measurement(0.0, dict.fromkeys(self.gpu_indices, 0.0))
        window.end()
        elapsed_s = (monotonic_ns() - began.monotonic_ns) / 1e9
        measured = _Pending(elapsed_s, self.gpus, window.energy_later(self.gpus.answer_s))
        if self.log_file is not None:
            joules = ",".join(str(measured.gpu_energy[index]) for index in self.gpu_indices)
            self.log_file.write(f"{began.wall_ns / 1e9},{key},{elapsed_s},{joules}\n")
            self.log_file.flush()
        return measured

    def reset_windows(self) -> None:
        """Forget all open windows."""
        for window, _ in self.measurement_states.values():
            window.cancel()
        self.measurement_states.clear()


def synchronize(gpu_indices: list[int], sync_with: Literal["torch", "jax", "cupy"]) -> None:
    """Wait until GPUs have done what a framework gave them. One that was not imported gave nothing."""
    framework: Any = sys.modules.get(sync_with)
    if framework is None or not gpu_indices:
        return
    if sync_with == "torch":
        if framework.cuda.is_initialized():
            for index in gpu_indices:
                framework.cuda.synchronize(index)
    elif sync_with == "jax":
        framework.block_until_ready(
            [framework.device_put(0.0, device) + 0 for device in framework.local_devices()]
        )
    else:
        for index in gpu_indices:
            framework.cuda.Device(index).synchronize()
