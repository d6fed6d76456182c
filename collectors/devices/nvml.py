"""NVIDIA GPUs through NVML. Only this file, `nvml_calls` and `nvml_bus` import pynvml.

A quantity is read by its field, all fields of a device in one driver call; a field that the device
does not have falls back, once, to the older call that says the same, and then to "the device does
not say". What NVML answers becomes one of four errors by one table (`nvml_calls.ANSWERS`).

Every quantity stands on its own: one that fails PATIENT times in a row is named once in the log and
left out, and asked for again at every `_SELDOM_AGAIN`-th sample. The others go on.

A GPU that is lost ends alone: its other calls raise LostError without asking the driver, until
`NvmlDevice.describe` or `NvmlBus.discover` finds it again. Finding it means starting NVML again,
which makes every handle stale. So a driver call is made inside its device's `gate`, and the bus
holds all gates while it starts NVML again and hands out new handles: the other GPUs pause, and
their counters count on.
"""

import logging
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from collectors.control import spell_change
from collectors.device import Description, DeviceMemory, PowerSample, Sample, check_clock, check_limit
from collectors.devices.nvml_calls import (
    LOCKS,
    QUANTITIES,
    UNKNOWN_ARCHITECTURE,
    device_error,
    read_profiles,
    request_profiles,
)
from collectors.processes import sees_all_processes
from zeus_stream.clock import anchor
from zeus_stream.errors import (
    DeviceError,
    LostError,
    PermissionMissingError,
    RefusedError,
    RetryError,
    UnsupportedError,
)
from zeus_stream.protocol.fields import UNLOCKED, Control, spell_profiles

_log = logging.getLogger(__name__)

PCI = Path("/sys/bus/pci/devices")
UNNAMED = "NVIDIA GPU"
"""Stands for a name that the driver does not say."""
_SELDOM = 30
"""Clock, temperature and utilization cost a driver call each: asked at every thirtieth sample, which is about
once a second where a counter is refreshed every 100 ms."""


PASSING = (UnsupportedError, PermissionMissingError, RetryError)
"""Errors for which a figure that is asked for seldom is left out."""
PATIENT = 3
"""Failures in a row from which on a quantity is left out; until then the sample is tried again."""
_SELDOM_AGAIN = 600
"""Samples from one try to the next of what did not answer: about a minute at 100 ms."""
_ENERGY, _POWER, _LIMIT, _REQUESTED = range(len(QUANTITIES))

_FIELD_VALUE = struct.Struct("=24xIIQ")
"""nvmlFieldValue_t: (field, scope,) timestamp, latency (us), type, return code, value (a union).

Unpacked here because an attribute of a pynvml structure takes a Python call of its own: 0.8 us
for a sample's four fields in place of 8.
"""


class NvmlDevice:
    """A GPU under NVML, made by `NvmlBus.discover` only: one object per UUID while the bus is open.

    Ask `describe` first: it finds how each quantity is read, and the limit that bounds power readings.
    """

    def __init__(self, gpu: str, find: Callable[[], object], pci: Path = PCI) -> None:
        """Make the device `gpu` (UUID), still lost. `find` looks for lost devices; ``pci`` has them all."""
        self.gpu = gpu
        self.gate = threading.Lock()
        self._find, self._pci = find, pci
        self._power: Path | None = None
        """Where Linux says whether it is suspended."""
        self._handle: Any = None
        self._index = 0
        self.lost = True
        """Nothing is asked of it until it is found again."""
        self._highest_mw: int | None = None
        self._lockable_mhz: dict[Control, tuple[int, ...]] = {"graphics_clock": (), "memory_clock": ()}
        self._seldom: tuple[int | None, ...] = ()
        self._profiles = 0
        """Bits of the workload power profiles that it has."""
        self._memory_of: dict[int, int] = {}
        self._failures: dict[str, int] = {}
        """In a row, of what is asked."""
        self._silent: dict[str, str] = {}
        """What does not answer, and why."""
        self._start_over()

    def found(self, handle: Any, index: int) -> None:
        """Take the handle by which this GPU answers from now on, and its place in PCI order."""
        self._handle, self._index, self.lost = handle, index, False

    def describe(self) -> Description:
        """Return what the device is, looking for it on the bus first if it was lost.

        The samples of other GPUs pause for up to a second: ask every few seconds, not at a sampling rate.
        """
        if self.lost:
            self._find()
        self._start_over()
        limits = self._tolerant("name its limits", pynvml.nvmlDeviceGetPowerManagementLimitConstraints)
        lowest_mw, self._highest_mw = limits or (None, None)
        modes = self._tolerant("say whether MIG is on", pynvml.nvmlDeviceGetMigMode)
        mig = modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        counts_energy = self._choose_scope()
        self._find_clocks()
        if (place := self._tolerant("name its place", pynvml.nvmlDeviceGetPciInfo)) is not None:
            self._power = self._pci / place.busId[-12:].lower() / "power" / "runtime_status"
        self._profiles, *_ = self._tolerant("name its power profiles", read_profiles) or (0,)
        return Description(
            gpu=self.gpu,
            index=self._index,
            name=self._tolerant("name itself", pynvml.nvmlDeviceGetName) or UNNAMED,
            driver=self._tolerant("name its driver", lambda _: pynvml.nvmlSystemGetDriverVersion())
            or "unknown",
            counts_energy=counts_energy,
            min_limit_mw=lowest_mw,
            max_limit_mw=self._highest_mw,
            default_limit_mw=self._tolerant(
                "name its default power limit", pynvml.nvmlDeviceGetPowerManagementDefaultLimit
            ),
            graphics_clocks_mhz=self._lockable_mhz["graphics_clock"],
            memory_clocks_mhz=self._lockable_mhz["memory_clock"],
            power_profiles=self._profiles,
            mig=mig,
            tenants=self._tenants() if mig else (),
            scope="module" if self._module else "gpu",
            unanswered=tuple(self._silent.values()),
        )

    def sample(self) -> Sample:
        """Read counter, power and limits; clock, temperature and the like at every thirtieth sample.

        A power above 1.5 x the highest limit is left out. Raises RetryError for a failure that may pass.
        """
        if self._silent and self._samples % _SELDOM_AGAIN == _SELDOM_AGAIN - 1:
            self._ask_again_by_fields()
        figures = self._figures()
        power_mw = figures[_POWER]
        if power_mw is not None and not self._plausible(power_mw):
            power_mw = None
            self._name(
                "read its power", f"{self.gpu}: could not read its power: more than 1.5 x its highest limit."
            )
        if self._samples % _SELDOM == 0:
            self._seldom = self._read_seldom()
        self._samples += 1
        clock_mhz, temperature_c, utilization_pct, requested_profiles, enforced_profiles = self._seldom
        return Sample(
            energy_mj=figures[_ENERGY],
            power_mw=power_mw,
            limit_mw=figures[_LIMIT],
            requested_mw=figures[_REQUESTED],
            clock_mhz=clock_mhz,
            temperature_c=temperature_c,
            utilization_pct=utilization_pct,
            requested_profiles=requested_profiles,
            enforced_profiles=enforced_profiles,
        )

    def read_control(self, control: Control) -> int | None:
        """Return the power limit (mW) or profiles requested of the driver now; None for a clock."""
        if control == "power_profile" and self._profiles:
            _, requested, _ = self._ask("read its power profiles", read_profiles)
            return int(requested)
        if control != "power_limit":
            return None
        limit_mw: int = self._ask("read its requested power limit", pynvml.nvmlDeviceGetPowerManagementLimit)
        return limit_mw

    def set_control(self, control: Control, value: int) -> None:
        """Request a power limit or profiles, or lock a clock. RefusedError: it does not name the value."""
        if control == "power_limit":
            self._set_limit(value)
            return
        if control == "power_profile":
            self._set_profiles(value)
            return
        lock, unlock = LOCKS[control]
        what = spell_change(control, value)
        if value == UNLOCKED:
            self._ask(what, unlock)
            return
        if self._lockable_mhz[control]:  # the driver would take another
            check_clock(self.gpu, control, value, self._lockable_mhz[control])
        self._ask(what, lock, value, value)

    def _set_limit(self, limit_mw: int) -> None:
        what = spell_change("power_limit", limit_mw)
        lowest_mw, highest_mw = self._ask(what, pynvml.nvmlDeviceGetPowerManagementLimitConstraints)
        check_limit(self.gpu, limit_mw, lowest_mw, highest_mw)
        # Not the _v2 call: its Python wrapper ignores the return code.
        self._ask(what, pynvml.nvmlDeviceSetPowerManagementLimit, limit_mw)

    def _set_profiles(self, bits: int) -> None:
        what = spell_change("power_profile", bits)
        if not self._profiles:
            raise UnsupportedError(f"{self.gpu}: could not {what}: it has no power profiles. Measure only.")
        if lacking := bits & ~self._profiles:
            raise RefusedError(
                f"{self.gpu}: could not {what}: it has no {spell_profiles(lacking)}."
                f" Choose of {spell_profiles(self._profiles)}."
            )
        self._samples = 0  # the next sample shows them
        self._ask(what, request_profiles, bits)

    def processes(self) -> tuple[int, ...] | None:
        """Return pids that compute on the GPU, or None where they cannot be seen, as in a container."""
        try:
            running = self._running(pynvml.nvmlDeviceGetComputeRunningProcesses_v3)
        except UnsupportedError:  # a driver before 510
            running = self._running(pynvml.nvmlDeviceGetComputeRunningProcesses_v2, UnsupportedError)
        used = ((process.pid, process.usedGpuMemory) for process in running or ())
        self._memory_of = {pid: used_bytes for pid, used_bytes in used if used_bytes is not None}
        if not running and not sees_all_processes():
            return None
        return None if running is None else tuple(process.pid for process in running)

    def memory(self) -> DeviceMemory | None:
        """Return the memory of the GPU. None: the driver does not say, as where it is the host's."""
        found = self._optional("read its memory", pynvml.nvmlDeviceGetMemoryInfo, without=PASSING)
        return None if found is None else DeviceMemory(found.used, found.total, self._memory_of)

    def clock_mhz(self) -> int | None:
        """Return the graphics clock now, MHz. None: the driver does not say."""
        call, which = pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_GRAPHICS
        clock_mhz: int | None = self._optional("read its clock", call, which, without=PASSING)
        return clock_mhz

    def power_samples(self, since_ns: int) -> tuple[PowerSample, ...]:
        """Return the samples of power that the driver keeps since an instant, oldest first.

        It keeps 120, and stamps them with the wall clock, us: that of `since_ns` is not given again.
        """
        now = anchor()
        apart_ns = now.wall_ns - now.monotonic_ns
        since_us = max(since_ns + apart_ns, 0) // 1000 if since_ns else 0
        kind = pynvml.NVML_TOTAL_POWER_SAMPLES
        found = self._optional(
            "read its samples of power", pynvml.nvmlDeviceGetSamples, kind, since_us, without=PASSING
        )
        values = () if found is None else found[1]
        stamped = sorted((each.timeStamp * 1000 - apart_ns, each.sampleValue.uiVal) for each in values)
        return tuple(PowerSample(t_ns, power_mw) for t_ns, power_mw in stamped if t_ns > since_ns + 1_000_000)

    def asleep(self) -> bool:
        """Tell whether Linux has suspended the GPU: a call to it would wake it."""
        try:
            return self._power is not None and self._power.read_text().strip() == "suspended"
        except OSError:  # no such power management
            return False

    def _running(self, call: Callable[..., Any], *without: type[DeviceError]) -> Any:
        return self._optional("list its processes", call, without=(PermissionMissingError, *without))

    def close(self) -> None:
        """Do nothing: NVML holds nothing for a device. The bus lets go of the driver."""

    def _start_over(self) -> None:
        """Forget what the device could not do: all quantities are read by field again."""
        self._module = False
        self._ask_again_by_fields()
        self._samples = 0

    def _ask_again_by_fields(self) -> None:
        self._read_by_fields(tuple(range(len(QUANTITIES))))
        self._by_call: tuple[int, ...] = ()

    def _read_by_fields(self, quantities: tuple[int, ...]) -> None:
        self._by_field = quantities
        self._fields = (pynvml.c_nvmlFieldValue_t * len(quantities))()
        for value, quantity in zip(self._fields, quantities, strict=True):
            value.fieldId = QUANTITIES[quantity].field
            if quantity == _POWER and self._module:
                value.scopeId = pynvml.NVML_POWER_SCOPE_MODULE

    def _choose_scope(self) -> bool:
        """Return whether there is an energy counter. A Grace Hopper may give only the power of its module."""
        figures = self._figures()
        if figures[_ENERGY] is None and figures[_POWER] is None:
            self._module = True
            self._read_by_fields((*self._by_field, _POWER))
            self._module = self._figures()[_POWER] is not None
        return figures[_ENERGY] is not None

    def _tenants(self) -> tuple[str, ...]:
        """Return the UUIDs of the MIG instances there are now."""
        most = self._optional("count its MIG instances", pynvml.nvmlDeviceGetMaxMigDeviceCount) or 0
        uuids = (self._optional("name its MIG instances", _tenant, place) for place in range(most))
        return tuple(uuid for uuid in uuids if uuid is not None)

    def _figures(self) -> list[int | None]:
        """Return the value of each quantity, in the order of `QUANTITIES`; None: it is not to be had."""
        figures: list[int | None] = [None] * len(QUANTITIES)
        if self._by_field:
            self._fill_by_field(figures)
        for quantity in self._by_call:
            figures[quantity] = self._tolerant(
                f"read its {QUANTITIES[quantity].name}", QUANTITIES[quantity].call
            )
        if None in figures:
            self._by_call = tuple(quantity for quantity in self._by_call if figures[quantity] is not None)
        return figures

    def _fill_by_field(self, figures: list[int | None]) -> None:
        """Fill in what one driver call says; move what it cannot say to `_by_call`."""
        missing = []
        try:
            self._ask("read its fields", self._get_field_values)
        except UnsupportedError:
            missing = list(self._by_field)
        else:
            values = _FIELD_VALUE.iter_unpack(self._fields)
            for quantity, (kind, code, value) in zip(self._by_field, values, strict=True):
                if code == pynvml.NVML_SUCCESS:
                    # The driver writes a 32-bit member of the union and may leave the rest as it was.
                    short = kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
                    figures[quantity] = value & 0xFFFFFFFF if short else value
                    if self._failures:
                        self._answered(f"read its {QUANTITIES[quantity].name}")
                else:
                    what = f"read its {QUANTITIES[quantity].name}"
                    failure = self._failure(what, pynvml.NVMLError(code))
                    if isinstance(failure, LostError) or self._may_pass(what, failure):
                        raise failure
                    missing.append(quantity)
        if missing:
            self._by_call += tuple(missing)
            self._read_by_fields(tuple(quantity for quantity in self._by_field if quantity not in missing))

    def _get_field_values(self, handle: Any) -> None:
        """Ask for all fields in the argument array built once; pynvml's wrapper would build one a call."""
        code = pynvml.nvmlLib.nvmlDeviceGetFieldValues(handle, len(self._fields), self._fields)
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)

    def _read_seldom(self) -> tuple[int | None, ...]:
        """Return clock (MHz), temperature (C), utilization (%) and bits of the power profiles requested and
        in force, None for those that fail."""
        clock_mhz = self.clock_mhz()
        temperature_c = self._optional(
            "read its temperature",
            pynvml.nvmlDeviceGetTemperature,
            pynvml.NVML_TEMPERATURE_GPU,
            without=PASSING,
        )
        rates = self._optional("read its utilization", pynvml.nvmlDeviceGetUtilizationRates, without=PASSING)
        profiles = None
        if self._profiles:
            profiles = self._optional("read its power profiles", read_profiles, without=PASSING)
        _, requested, enforced = profiles or (0, None, None)
        return clock_mhz, temperature_c, None if rates is None else rates.gpu, requested, enforced

    def _plausible(self, power_mw: int) -> bool:
        bounded = self._highest_mw is not None and not self._module  # the limits are those of the GPU
        return not bounded or 2 * power_mw <= 3 * (self._highest_mw or 0)

    def _find_clocks(self) -> None:
        """Find the memory clocks, and the graphics clocks at the highest. Memory locks from Ampere on."""
        memory_mhz = self._tolerant("name its memory clocks", pynvml.nvmlDeviceGetSupportedMemoryClocks)
        graphics_mhz = None
        if memory_mhz:
            graphics_mhz = self._tolerant(
                "name its graphics clocks", pynvml.nvmlDeviceGetSupportedGraphicsClocks, max(memory_mhz)
            )
        architecture = self._tolerant("name its architecture", pynvml.nvmlDeviceGetArchitecture)
        if architecture is None or not pynvml.NVML_DEVICE_ARCH_AMPERE <= architecture < UNKNOWN_ARCHITECTURE:
            memory_mhz = None
        self._lockable_mhz = {
            "graphics_clock": tuple(sorted(graphics_mhz or (), reverse=True)),
            "memory_clock": tuple(sorted(memory_mhz or (), reverse=True)),
        }

    def _tolerant(self, what: str, call: Callable[..., Any], *arguments: int) -> Any:
        """Return what `_ask` returns, or None where it does not answer. Raises LostError and RetryError."""
        try:
            answer = self._ask(what, call, *arguments)
        except LostError:
            raise
        except UnsupportedError:
            return None
        except DeviceError as failure:
            if self._may_pass(what, failure):
                raise
            self._name(what, str(failure))
            return None
        self._answered(what)
        return answer

    def _may_pass(self, what: str, failure: DeviceError) -> bool:
        """Count a failure; return whether it is worth the sample to ask again at once."""
        self._failures[what] = min(self._failures.get(what, 0) + 1, PATIENT)
        return isinstance(failure, RetryError) and self._failures[what] < PATIENT

    def _name(self, what: str, sentence: str) -> None:
        """Log once that something does not answer."""
        if what not in self._silent:
            self._silent[what] = sentence
            _log.warning("%s It is left out, and asked for again seldom.", sentence)

    def _answered(self, what: str) -> None:
        self._failures.pop(what, None)
        if self._silent.pop(what, None) is not None:
            _log.warning("%s: could %s again.", self.gpu, what)

    def _optional(
        self,
        what: str,
        call: Callable[..., Any],
        *arguments: int,
        without: tuple[type[DeviceError], ...] = (UnsupportedError,),
    ) -> Any:
        """Return what `_ask` returns, or None where it raises one of `without`."""
        try:
            return self._ask(what, call, *arguments)
        except without:
            return None

    def _ask(self, what: str, call: Callable[..., Any], *arguments: int) -> Any:
        """Make one driver call, `call(handle, *arguments)`. Raises DeviceError."""
        with self.gate:
            if self.lost:
                raise LostError(
                    f"{self.gpu}: could not {what}: the GPU is lost. It is taken up again when it returns."
                )
            try:
                return call(self._handle, *arguments)
            except pynvml.NVMLError as error:
                raise self._failure(what, error) from error

    def _failure(self, what: str, error: Any) -> DeviceError:
        failure = device_error(self.gpu, what, error)
        if isinstance(failure, LostError):
            self.lost = True
        return failure


def _tenant(handle: Any, place: int) -> str:
    """Return the UUID of a MIG instance."""
    uuid: str = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
    return uuid
