"""The NVIDIA driver's GPUs: NVML is started and stopped here. `nvml` has its rules.

Run as a program, it prints the UUIDs of the GPUs that answer: so a GPU that was lost is looked for in a
process of its own, and the GPUs that work wait for nothing until it is back.
"""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pynvml

from collectors.devices.nvml import PCI, NvmlDevice
from collectors.devices.nvml_calls import ask_driver
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import DeviceError, LostError, RetryError
from zeus_stream.service_packages import python_child

AGAIN_NS, AGAIN_MOST_NS = 3_000_000_000, 300_000_000_000
"""Between two looks for a GPU that stays lost: this, twice that, ... up to the second."""
LOOK_S = 60.0
"""A look that takes longer says nothing."""
_log = logging.getLogger(__name__)


class NvmlBus:
    """The driver's GPUs. Safe to use from many threads; NVML is started and stopped here alone."""

    def __init__(
        self,
        patience_s: float = 2.0,
        now: Callable[[], int] = monotonic_ns,
        look: Callable[[], frozenset[str] | None] | None = None,
        pci: Path = PCI,
    ) -> None:
        """``patience_s``: for a driver call under way before a restart. ``look``: see `_look_aside`.

        ``pci``: the directory of Linux with the devices.
        """
        self._pci = pci
        self._look = look or _look_aside
        self._patience_s = patience_s
        self._now = now
        self._again_ns = 0
        """Not before this is a lost GPU looked for, while others work."""
        self._wait_ns = 0
        self._lock = threading.Lock()
        self._started = False
        self._devices: dict[str, NvmlDevice] = {}
        self._unopened: dict[int, str] = {}

    def discover(self) -> tuple[NvmlDevice, ...]:
        """Return every GPU there is now, in PCI order: the same object as before for the same UUID.

        Starts NVML, and starts it again if a GPU was lost or could not be opened. While other GPUs work, and
        would have to wait for that, the lost one is first looked for in another process: ever more seldom, up
        to AGAIN_MOST_NS. A GPU that cannot be opened is left out, with a warning in the log; if none can be,
        its error is raised.
        Raises LostError while there is no driver, and RetryError while a driver call does not end.
        """
        with self._lock:
            working = tuple(device for device in self._devices.values() if not device.lost)
            if self._missing() and working and not self._is_back(working):
                return working
            with self._all_gates():
                if self._missing():
                    self._put_off()
                    self._stop()
                try:
                    self._start()
                    found = self._enumerate()
                except LostError:
                    self._stop()
                    raise
            return found

    def _is_back(self, working: tuple[NvmlDevice, ...]) -> bool:
        """Look for lost GPUs, if it is time to; return whether a start of NVML would change anything."""
        if self._now() < self._again_ns:
            return False
        with suppress(subprocess.TimeoutExpired):  # a dead GPU may hang a process that starts NVML
            if self._look() != frozenset(device.gpu for device in working):
                return True  # one is back, or the driver itself is gone
        self._put_off()
        return False

    def _put_off(self) -> None:
        """Double the wait for the next look. A GPU that opens may still be lost at its first call."""
        now_ns = self._now()
        steady = now_ns - self._again_ns > AGAIN_MOST_NS  # none was lost for a while
        self._wait_ns = AGAIN_NS if steady else min(max(2 * self._wait_ns, AGAIN_NS), AGAIN_MOST_NS)
        self._again_ns = now_ns + self._wait_ns

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
            device = self._devices.setdefault(gpu, NvmlDevice(gpu, self.discover, self._pci))
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


def _look_aside() -> frozenset[str] | None:
    """Return the UUIDs of the GPUs that answer in another process; None: not known. Raises TimeoutExpired."""
    try:
        done = subprocess.run(  # noqa: S603  (this interpreter, this package)
            python_child("collectors.devices.nvml_bus"),
            capture_output=True,
            timeout=LOOK_S,
            text=True,
            check=False,
        )
    except OSError as wrong:
        _log.warning("NVIDIA driver: could not look for lost GPUs aside: %s.", wrong.strerror)
        return None
    return frozenset(done.stdout.split()) if done.returncode == 0 else None


def main() -> None:
    """Print the UUIDs of the GPUs that answer."""
    with closing(NvmlBus()) as bus, suppress(DeviceError):
        sys.stdout.write(" ".join(device.gpu for device in bus.discover() if _answers(device)))


def _answers(device: NvmlDevice) -> bool:
    """Tell whether a device can be described: one that needs a reset opens as well."""
    try:
        device.describe()
    except DeviceError:
        return not device.lost
    return True


if __name__ == "__main__":
    main()
