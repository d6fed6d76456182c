"""AMD GPUs through amdsmi. The only file that imports amdsmi, and not before such GPUs are looked for.

What a GPU cannot say is found out once, quantity by quantity. Its energy counter has been seen to stand
still, to be off by orders of magnitude and to fall. So it is trusted only after a trial: while its GPU is
described, it has to grow as the power readings say. One that does not is left alone, and energy is that of
the power.

The counter moves every millisecond or so: a device reads it every REFRESH_NS and says the same in between, as
an NVIDIA counter does. All calls are made one after the other, under the bus's lock; a GPU that is lost ends
alone, until `AmdDevice.describe` or `AmdBus.discover` finds it again.
"""

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from statistics import fmean
from typing import Any

from collectors.control import spell_change
from collectors.device import Description, DeviceMemory, Sample, check_limit, watts
from collectors.processes import sees_all_processes
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import (
    DeviceError,
    LostError,
    PermissionMissingError,
    RetryError,
    UnsupportedError,
)
from zeus_stream.protocol.fields import Control

_log = logging.getLogger(__name__)

REFRESH_NS = 50_000_000
TRUSTED = (0.5, 2.0)
"""A counter is trusted if it grew by so much of what the power readings say. Both are rough at rest, so this
finds what is off by a factor, not by a gain of some percent."""
TRIAL_S = 0.5
TRIAL_READS = 10
LEAST_SHARE = 0.4
"""Of the highest limit: the lowest, where the driver names 0 W, which means that it does not know."""
_SELDOM = 10
"""Clock, temperature and utilization are asked at every tenth read."""
_AGAIN = "It is asked again at the next turn."
_WITHOUT = "The collector goes on without it."
_RETURNS = "It is taken up again when it returns."
_INSTALL = "Install ROCm's amd-smi-lib, and amdsmi of its version (the extra `amd`)."
_NOT_LOADED = f"Load the amdgpu driver (modprobe amdgpu). {_RETURNS}"
_ANSWERS: dict[int, tuple[type[DeviceError], str]] = {  # amdsmi_status_t; any other: asked again
    1: (UnsupportedError, _WITHOUT),  # INVAL: so old drivers refuse what they do not know
    2: (UnsupportedError, _WITHOUT),  # NOT_SUPPORTED
    3: (UnsupportedError, _WITHOUT),  # NOT_YET_IMPLEMENTED
    4: (LostError, _INSTALL),  # FAIL_LOAD_MODULE
    5: (LostError, _INSTALL),  # FAIL_LOAD_SYMBOL
    6: (LostError, _NOT_LOADED),  # DRM_ERROR
    10: (PermissionMissingError, "Run the collector as root."),  # NO_PERM
    18: (LostError, _NOT_LOADED),  # INIT_ERROR
    31: (LostError, _RETURNS),  # NOT_FOUND
    32: (LostError, _RETURNS),  # NOT_INIT
    34: (LostError, _NOT_LOADED),  # DRIVER_NOT_LOADED
    52: (UnsupportedError, _WITHOUT),  # FILE_NOT_FOUND: the kernel has no such sensor
    54: (LostError, _RETURNS),  # AMDGPU_RESTART_ERR
    55: (UnsupportedError, _WITHOUT),  # SETTING_UNAVAILABLE
}


def objection(t_ns: Sequence[int], energy_mj: Sequence[int], power_mw: Sequence[int]) -> str | None:
    """Return why a counter is not to be trusted, or None. ``energy_mj`` was read at ``t_ns``."""
    if len(energy_mj) < 2 or not power_mw:
        return "there are no power readings to compare it with"
    grown_mj = energy_mj[-1] - energy_mj[0]
    if sorted(energy_mj) != list(energy_mj):
        return "it fell"
    if grown_mj == 0:
        return "it stands still"
    expected_mj = fmean(power_mw) * (t_ns[-1] - t_ns[0]) / 1e9
    least, most = TRUSTED
    if not least <= grown_mj / expected_mj <= most:
        return f"it grew by {grown_mj / 1000:.3g} J where the power readings say {expected_mj / 1000:.3g} J"
    return None


class AmdDevice:
    """A GPU under amdsmi. Made by `AmdBus.discover` only; one object per UUID while the bus is open."""

    def __init__(self, gpu: str, bus: "AmdBus") -> None:
        self.gpu = gpu
        self._bus = bus
        self._handle: Any = None
        self._index = 0
        self.lost = True
        """Nothing is asked of it until it is found again."""
        self._trusted: bool | None = None
        """Of its counter; None: not tried yet."""
        self._highest_mw: int | None = None
        self._cannot: set[str] = set()
        """What it was found not to say."""
        self._last: tuple[int, Sample] | None = None
        self._reads = 0
        self._seldom: tuple[int | None, int | None, int | None] = (None, None, None)
        self._memory_of: dict[int, int] = {}

    def found(self, handle: Any, index: int) -> None:
        """Take the handle by which this GPU answers from now on, and its place in PCI order."""
        self._handle, self._index, self.lost = handle, index, False

    def describe(self) -> Description:
        """Return what the device is, looking for it on the bus first if it was lost."""
        if self.lost:
            self._bus.discover()
        self._cannot, self._last, self._reads = set(), None, 0
        if self._trusted is None:
            self._trusted = self._try_counter()
        lowest_mw, highest_mw, default_mw = self._limits()
        self._highest_mw = highest_mw
        asic = self._ask("name itself", "amdsmi_get_gpu_asic_info")
        driver = self._optional("name its driver", "amdsmi_get_gpu_driver_info") or {}
        return Description(
            gpu=self.gpu,
            index=self._index,
            name=str(asic["market_name"]),
            driver=str(driver.get("driver_version", "amdgpu")),
            counts_energy=self._trusted,
            min_limit_mw=lowest_mw,
            max_limit_mw=highest_mw,
            default_limit_mw=default_mw,
        )

    def sample(self) -> Sample:
        """Return counter, power and limit as of at most REFRESH_NS ago."""
        now_ns = self._bus.now()
        if self._last is None or self.lost or now_ns - self._last[0] >= REFRESH_NS:
            self._last = now_ns, self._read()
        return self._last[1]

    def read_control(self, control: Control) -> int | None:
        """Return the power limit requested of the driver now, mW; None for a clock."""
        if control != "power_limit":
            return None
        return _milliwatts(self._ask("read its power limit", "amdsmi_get_power_cap_info")["power_cap"])

    def set_control(self, control: Control, value: int) -> None:
        """Request a power limit, mW. Raises RefusedError outside the range the device names now."""
        what = spell_change(control, value)
        if control != "power_limit":
            raise UnsupportedError(f"{self.gpu}: could not {what}: AMD's clocks are only read. {_WITHOUT}")
        lowest_mw, highest_mw, _ = self._limits()
        if lowest_mw is None or highest_mw is None:
            raise UnsupportedError(f"{self.gpu}: could not {what}: it names no range. {_WITHOUT}")
        check_limit(self.gpu, value, lowest_mw, highest_mw)
        self._ask(what, "amdsmi_set_power_cap", 0, value * 1000)
        self._last = None

    def processes(self) -> tuple[int, ...] | None:
        """Return pids that compute on the GPU, or None where they cannot be seen."""
        passing = (UnsupportedError, PermissionMissingError)
        running = self._optional("list its processes", "amdsmi_get_gpu_process_list", without=passing)
        if running is None or (not running and not sees_all_processes()):
            return None
        known = [process for process in running if isinstance(process, dict)]
        self._memory_of = {each["pid"]: each["mem"] for each in known if isinstance(each.get("mem"), int)}
        return tuple(process["pid"] for process in known)

    def memory(self) -> DeviceMemory | None:
        """Return the memory of the GPU. None: the driver does not say."""
        passing = (UnsupportedError, PermissionMissingError, RetryError)
        found = self._optional("read its memory", "amdsmi_get_gpu_vram_usage", without=passing)
        if found is None:
            return None
        return DeviceMemory(found["vram_used"] << 20, found["vram_total"] << 20, self._memory_of)

    def close(self) -> None:
        """Do nothing: amdsmi holds nothing for a device. The bus lets go of the driver."""

    def _try_counter(self) -> bool:
        """Read counter and power for TRIAL_S; return whether the counter is trusted, and say so if not."""
        passing = (UnsupportedError, PermissionMissingError, RetryError)
        t_ns, energies_mj, powers_mw = list[int](), list[int](), list[int]()
        for number in range(TRIAL_READS):
            self._bus.sleep(TRIAL_S / (TRIAL_READS - 1) if number else 0)
            counted = self._optional("read its energy counter", "amdsmi_get_energy_count", without=passing)
            if (energy_mj := _counted_mj(counted)) is not None:
                t_ns.append(self._bus.now())
                energies_mj.append(energy_mj)
            power = self._optional("read its power", "amdsmi_get_power_info", without=passing)
            if (power_mw := _drawn_mw(power)) is not None:
                powers_mw.append(power_mw)
        if not energies_mj:
            return False
        if (why := objection(t_ns, energies_mj, powers_mw)) is not None:
            _log.warning(
                "%s: its energy counter could not be trusted: %s. Its energy is that of its power readings.",
                self.gpu,
                why,
            )
        return why is None

    def _read(self) -> Sample:
        counted = self._ask("read its energy counter", "amdsmi_get_energy_count") if self._trusted else None
        power_mw = _drawn_mw(self._once("read its power", "amdsmi_get_power_info"))
        if power_mw is not None and self._highest_mw is not None and 2 * power_mw > 3 * self._highest_mw:
            raise RetryError(f"{self.gpu}: could not read its power: {watts(power_mw)} cannot be. {_AGAIN}")
        cap = self._once("read its power limit", "amdsmi_get_power_cap_info")
        if self._reads % _SELDOM == 0:
            self._seldom = self._read_seldom()
        self._reads += 1
        limit_mw = None if cap is None else _milliwatts(cap["power_cap"])
        clock_mhz, temperature_c, utilization_pct = self._seldom
        return Sample(
            energy_mj=_counted_mj(counted),
            power_mw=power_mw,
            limit_mw=limit_mw,
            requested_mw=limit_mw,
            clock_mhz=clock_mhz,
            temperature_c=temperature_c,
            utilization_pct=utilization_pct,
        )

    def _read_seldom(self) -> tuple[int | None, int | None, int | None]:
        """Return clock (MHz), temperature (C) and utilization (%): for people, so a failure is a None."""
        smi = self._bus.smi
        passing = (UnsupportedError, PermissionMissingError, RetryError)
        clock = self._optional(
            "read its clock", "amdsmi_get_clock_info", smi.AmdSmiClkType.GFX, without=passing
        )
        temperature = self._optional(
            "read its temperature",
            "amdsmi_get_temp_metric",
            smi.AmdSmiTemperatureType.HOTSPOT,
            smi.AmdSmiTemperatureMetric.CURRENT,
            without=passing,
        )
        activity = self._optional("read its utilization", "amdsmi_get_gpu_activity", without=passing)
        return (
            _whole((clock or {}).get("clk"), most=100_000),
            _whole(temperature, most=200),
            _whole((activity or {}).get("gfx_activity"), most=100),
        )

    def _limits(self) -> tuple[int | None, int | None, int | None]:
        """Return lowest, highest and default limit, mW, or three times None."""
        cap = self._optional("name its limits", "amdsmi_get_power_cap_info")
        highest_mw = 0 if cap is None else _milliwatts(cap["max_power_cap"])
        if cap is None or highest_mw == 0:
            return None, None, None
        lowest_mw = _milliwatts(cap["min_power_cap"]) or math.ceil(highest_mw * LEAST_SHARE)
        return lowest_mw, highest_mw, _milliwatts(cap["default_power_cap"]) or highest_mw

    def _once(self, what: str, call: str) -> Any:
        """Return what `_optional` returns; what the device cannot say is not asked again."""
        if call in self._cannot:
            return None
        answer = self._optional(what, call)
        if answer is None:
            self._cannot.add(call)
        return answer

    def _optional(
        self,
        what: str,
        call: str,
        *arguments: Any,
        without: tuple[type[DeviceError], ...] = (UnsupportedError,),
    ) -> Any:
        """Return what `_ask` returns, or None where it raises one of `without`."""
        try:
            return self._ask(what, call, *arguments)
        except without:
            return None

    def _ask(self, what: str, call: str, *arguments: Any) -> Any:
        """Make one call, ``call(handle, *arguments)``. Raises DeviceError."""
        with self._bus.lock:
            if self.lost:
                raise LostError(f"{self.gpu}: could not {what}: the GPU is lost. {_RETURNS}")
            try:
                return self._bus.call(self.gpu, what, call, self._handle, *arguments)
            except LostError:
                self.lost, self._trusted = True, None  # who knows what its counter does when it is back
                raise


class AmdBus:
    """The driver's GPUs. Safe to use from many threads."""

    def __init__(
        self, now: Callable[[], int] = monotonic_ns, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """``sleep`` takes seconds."""
        self.now, self.sleep = now, sleep
        self.lock = threading.RLock()
        self.smi: Any = None
        """The package amdsmi, once it was loaded."""
        self._started = False
        self._devices: dict[str, AmdDevice] = {}

    def discover(self) -> tuple[AmdDevice, ...]:
        """Return every GPU there is now, in PCI order: the same object as before for the same UUID.

        Starts amdsmi again if a GPU was lost. Raises LostError while there is no driver.
        """
        with self.lock:
            if any(device.lost for device in self._devices.values()):
                self._stop()
            try:
                self._start()
                return self._enumerate()
            except LostError:
                self._stop()
                raise

    def close(self) -> None:
        """Let go of the driver; every device is lost. Idempotent."""
        with self.lock:
            self._stop()

    def call(self, who: str, what: str, call: str, *arguments: Any) -> Any:
        """Call a function of amdsmi; its exceptions become a DeviceError."""
        try:
            return getattr(self.smi, call)(*arguments)
        except self.smi.AmdSmiLibraryException as error:
            kind, cure = _ANSWERS.get(error.get_error_code(), (RetryError, _AGAIN))
            says = str(error.get_error_info()).rstrip(".")
            raise kind(f"{who}: could not {what}: {says}. {cure}") from error

    def _start(self) -> None:
        if self.smi is None:
            try:
                with redirect_stdout(sys.stderr):  # where it does not find its library, it says so by itself
                    import amdsmi  # noqa: PLC0415  (it fails where there is no AMD GPU)
            except (ImportError, OSError, KeyError, AttributeError) as wrong:
                # Without its library, or with one of another version, the package fails in any of these ways.
                raise LostError(f"AMD driver: could not load amdsmi: {wrong!r}. {_INSTALL}") from wrong
            self.smi = amdsmi
        if not self._started:
            self.call("AMD driver", "start amdsmi", "amdsmi_init")
            self._started = True

    def _stop(self) -> None:
        for device in self._devices.values():
            device.lost = True
        if self._started:
            self._started = False
            try:
                self.call("AMD driver", "stop amdsmi", "amdsmi_shut_down")
            except DeviceError as error:
                _log.info("%s", error)  # a driver that went away took amdsmi with it

    def _enumerate(self) -> tuple[AmdDevice, ...]:
        found: list[tuple[str, str, Any]] = []
        wrong: DeviceError | None = None
        for handle in self.call("AMD driver", "list its GPUs", "amdsmi_get_processor_handles"):
            try:
                what = "open a GPU"
                place = self.call("AMD driver", what, "amdsmi_get_gpu_device_bdf", handle)
                uuid = self.call("AMD driver", what, "amdsmi_get_gpu_device_uuid", handle)
            except DeviceError as error:
                _log.warning("%s", error)
                wrong = error
                continue
            found.append((place, f"GPU-{uuid}", handle))
        if wrong is not None and not found:
            raise wrong
        present = []
        for index, (_, gpu, handle) in enumerate(sorted(found, key=lambda one: one[:2])):
            device = self._devices.setdefault(gpu, AmdDevice(gpu, self))
            device.found(handle, index)
            present.append(device)
        return tuple(present)


def _whole(value: Any, most: int) -> int | None:
    """Return a figure, or None for "N/A" and for the largest numbers there are, which mean the same."""
    return int(value) if isinstance(value, int | float) and 0 <= value <= most else None


def _milliwatts(microwatts: Any) -> int:
    return (_whole(microwatts, most=100_000_000_000) or 0) // 1000


def _counted_mj(counted: Any) -> int | None:
    """Return a counter in mJ: ticks, each so many uJ (15.259 on what is known)."""
    if counted is None:
        return None
    ticks: int = counted["energy_accumulator"]
    tick_uj: float = counted["counter_resolution"]
    return round(ticks * tick_uj / 1000)


def _drawn_mw(power: Any) -> int | None:
    """Return power in mW: at the moment (MI300 and later), or the average that others have, both in W."""
    names = ("current_socket_power", "average_socket_power")
    figures = (_whole((power or {}).get(name), most=50_000) for name in names)
    return next((figure * 1000 for figure in figures if figure), None)
