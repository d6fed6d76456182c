"""Tables of NVML: what its error codes mean, by which call each quantity is read, and each clock locked.

Only this file, `nvml` and `nvml_bus` import pynvml.
"""

from collections.abc import Callable
from ctypes import byref
from typing import Any

import pynvml
from msgspec import Struct

from zeus_stream.errors import DeviceError, LostError, PermissionMissingError, RetryError, UnsupportedError
from zeus_stream.protocol.fields import POWER_PROFILES, Control

AGAIN = "It is asked again at the next turn."
WITHOUT = "The collector goes on without it."
RETURNS = "It is taken up again when it returns."
ANSWERS: dict[int, tuple[type[DeviceError], str]] = {  # a code that is not here counts as UNKNOWN
    pynvml.NVML_ERROR_UNKNOWN: (RetryError, AGAIN),
    pynvml.NVML_ERROR_TIMEOUT: (RetryError, AGAIN),
    pynvml.NVML_ERROR_IN_USE: (RetryError, AGAIN),
    pynvml.NVML_ERROR_NOT_SUPPORTED: (UnsupportedError, WITHOUT),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (UnsupportedError, WITHOUT),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (UnsupportedError, WITHOUT),  # so old drivers refuse new fields
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: (UnsupportedError, WITHOUT),
    pynvml.NVML_ERROR_NOT_FOUND: (UnsupportedError, WITHOUT),
    pynvml.NVML_ERROR_DEPRECATED: (UnsupportedError, WITHOUT),
    pynvml.NVML_ERROR_CORRUPTED_INFOROM: (UnsupportedError, WITHOUT),
    pynvml.NVML_ERROR_FREQ_NOT_SUPPORTED: (UnsupportedError, "Choose one of the device's clocks."),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        PermissionMissingError,
        "Run the collector as root or with CAP_SYS_ADMIN.",
    ),
    pynvml.NVML_ERROR_OPERATING_SYSTEM: (
        PermissionMissingError,
        "Give the collector's container or cgroup access to the GPU's device files.",
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: (LostError, f"Look for its Xid in the kernel log. {RETURNS}"),
    pynvml.NVML_ERROR_RESET_REQUIRED: (LostError, f"Reset it (nvidia-smi --gpu-reset). {RETURNS}"),
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: (LostError, f"Attach its power cables. {RETURNS}"),
    pynvml.NVML_ERROR_GPU_NOT_FOUND: (LostError, RETURNS),
    pynvml.NVML_ERROR_UNINITIALIZED: (LostError, RETURNS),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (LostError, f"Load the NVIDIA driver (modprobe nvidia). {RETURNS}"),
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        LostError,
        "Install the NVIDIA driver, which brings libnvidia-ml.so.1, or use --device amd or simulated GPUs.",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        LostError,
        "The driver was updated while it was loaded: reload it or reboot, then restart the collector.",
    ),
}


class DriverFigure(Struct, frozen=True):
    """A figure that NVML gives as a field and, on older drivers or devices, by a call of its own."""

    name: str
    field: int
    call: Callable[[Any], int]


QUANTITIES = (
    DriverFigure(
        "energy counter",
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
        pynvml.nvmlDeviceGetTotalEnergyConsumption,
    ),
    DriverFigure("power", pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.nvmlDeviceGetPowerUsage),
    DriverFigure(
        "power limit in force",
        pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT,
        pynvml.nvmlDeviceGetEnforcedPowerLimit,
    ),
    DriverFigure(
        "requested power limit",
        pynvml.NVML_FI_DEV_POWER_REQUESTED_LIMIT,
        pynvml.nvmlDeviceGetPowerManagementLimit,
    ),
)
LOCKS: dict[Control, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "graphics_clock": (pynvml.nvmlDeviceSetGpuLockedClocks, pynvml.nvmlDeviceResetGpuLockedClocks),
    "memory_clock": (pynvml.nvmlDeviceSetMemoryLockedClocks, pynvml.nvmlDeviceResetMemoryLockedClocks),
}
"""The calls that lock a clock between two values, and unlock it."""
UNKNOWN_ARCHITECTURE: int = pynvml.NVML_DEVICE_ARCH_UNKNOWN


_PROFILES = (1 << len(POWER_PROFILES)) - 1
"""Those with a greater number are left as they are."""


def read_profiles(handle: Any) -> tuple[int, int, int]:
    """Return the bits of the workload power profiles that there are, are requested, and are in force."""
    found = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
    pynvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(handle, byref(found))
    masks = found.perfProfilesMask, found.requestedProfilesMask, found.enforcedProfilesMask
    there, requested, enforced = (mask.mask[0] & _PROFILES for mask in masks)
    return there, requested, enforced


def request_profiles(handle: Any, bits: int) -> None:
    """Request these workload power profiles, and no others of those that have a name.

    A driver adds what is set to what was requested: so what is left over is cleared, and first, as profiles
    may exclude each other.
    """
    _, requested, _ = read_profiles(handle)
    clear = pynvml.nvmlDeviceWorkloadPowerProfileClearRequestedProfiles
    for call, some in (
        (clear, requested & ~bits),
        (pynvml.nvmlDeviceWorkloadPowerProfileSetRequestedProfiles, bits & ~requested),
    ):
        if some:
            wanted = pynvml.c_nvmlWorkloadPowerProfileRequestedProfiles_v1_t()
            wanted.requestedProfilesMask.mask[0] = some
            call(handle, byref(wanted))


def ask_driver(what: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Make one call that is about no device. Raises DeviceError."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise device_error("NVIDIA driver", what, error) from error


def answer_to(code: int) -> tuple[type[DeviceError], str]:
    """Return the kind of error that an NVML code is, and its cure."""
    return ANSWERS.get(code, ANSWERS[pynvml.NVML_ERROR_UNKNOWN])


def device_error(who: str, what: str, error: Any) -> DeviceError:
    """Return the error for an NVMLError, in a sentence."""
    kind, cure = answer_to(error.value)
    return kind(f"{who}: could not {what}: {str(error).rstrip('.')}. {cure}")
