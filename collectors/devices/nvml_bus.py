"""The NVIDIA driver's GPUs: NVML is started and stopped here. `nvml` has its rules."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pynvml

from collectors.devices.nvml import NvmlDevice
from collectors.devices.nvml_calls import ask_driver
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import DeviceError, LostError, RetryError

AGAIN_NS, AGAIN_MOST_NS = 3_000_000_000, 300_000_000_000
"""Between two starts of NVML for a GPU that stays lost: this, twice that, ... up to the second."""
_log = logging.getLogger(__name__)


class NvmlBus:
    """The driver's GPUs. Safe to use from many threads; NVML is started and stopped here alone."""

    def __init__(self, patience_s: float = 2.0, now: Callable[[], int] = monotonic_ns) -> None:
        """Make a bus that waits `patience_s` for a driver call under way before it gives up a restart."""
        self._patience_s = patience_s
        self._now = now
        self._again_ns = 0
        """Not before this is NVML started again for a GPU that was lost, while others work."""
        self._wait_ns = 0
        self._lock = threading.Lock()
        self._started = False
        self._devices: dict[str, NvmlDevice] = {}
        self._unopened: dict[int, str] = {}

    def discover(self) -> tuple[NvmlDevice, ...]:
        """Return every GPU there is now, in PCI order: the same object as before for the same UUID.

        Starts NVML, and starts it again if a GPU was lost or could not be opened: at once, and then ever
        more seldom, up to AGAIN_MOST_NS, as long as other GPUs work and would have to wait for it. A GPU
        that cannot be opened is left out, with a warning in the log; if none can be, its error is raised.
        Raises LostError while there is no driver, and RetryError while a driver call does not end.
        """
        with self._lock:
            working = tuple(device for device in self._devices.values() if not device.lost)
            if self._missing() and working and self._now() < self._again_ns:
                return working
            with self._all_gates():
                if self._missing():
                    self._stop()
                try:
                    self._start()
                    found = self._enumerate()
                except LostError:
                    self._stop()
                    raise
            if self._missing():
                self._wait_ns = min(max(2 * self._wait_ns, AGAIN_NS), AGAIN_MOST_NS)
                self._again_ns = self._now() + self._wait_ns
            else:
                self._wait_ns = self._again_ns = 0
            return found

    def _missing(self) -> bool:
        """Return True if a GPU was lost or could not be opened."""
        return bool(self._unopened) or any(device.lost for device in self._devices.values())

    def close(self) -> None:
        """Let go of the driver; every device is lost. Idempotent."""
        with self._lock, self._all_gates():
            self._stop()

    @contextmanager
    def _all_gates(self) -> Iterator[None]:
        """Keep every device out of the driver in the meantime."""
        with ExitStack() as gates:
            for device in self._devices.values():
                if not device.gate.acquire(timeout=self._patience_s):
                    raise RetryError(
                        f"{device.gpu}: could not be interrupted: a driver call has not ended for "
                        f"{self._patience_s:g} s. If it lasts, look into the kernel log."
                    )
                gates.callback(device.gate.release)
            yield

    def _start(self) -> None:
        if not self._started:
            ask_driver("start NVML", pynvml.nvmlInit)
            self._started = True

    def _stop(self) -> None:
        for device in self._devices.values():
            device.lost = True
        if self._started:
            self._started = False
            try:
                ask_driver("stop NVML", pynvml.nvmlShutdown)
            except LostError as error:
                _log.info("%s", error)  # a driver that went away took NVML with it

    def _enumerate(self) -> tuple[NvmlDevice, ...]:
        present: list[NvmlDevice] = []
        unopened: dict[int, DeviceError] = {}
        for index in range(ask_driver("count its GPUs", pynvml.nvmlDeviceGetCount)):
            try:
                what = f"open GPU {index}"
                handle = ask_driver(what, pynvml.nvmlDeviceGetHandleByIndex, index)
                gpu: str = ask_driver(what, pynvml.nvmlDeviceGetUUID, handle)
            except DeviceError as error:
                unopened[index] = error
                continue
            device = self._devices.setdefault(gpu, NvmlDevice(gpu, self.discover))
            device.found(handle, index)
            present.append(device)
        if unopened and not present:
            raise next(iter(unopened.values()))
        self._warn({index: str(error) for index, error in unopened.items()})
        return tuple(present)

    def _warn(self, unopened: dict[int, str]) -> None:
        """Say once, not at every look, which GPUs could not be opened."""
        for index, text in unopened.items():
            if self._unopened.get(index) != text:
                _log.warning("%s", text)
        self._unopened = unopened
