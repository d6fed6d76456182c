"""Helpers about the framework of a training, with Zeus's names."""

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any, Literal

from zeus_stream.zeus.monitor.energy import synchronize


def sync_execution(gpu_devices: Iterable[int], sync_with: Literal["torch", "jax", "cupy"] = "torch") -> None:
    """Wait until GPUs have done what a framework gave them. One that was not imported gave nothing."""
    synchronize(list(gpu_devices), sync_with)


def torch_is_available(ensure_available: bool = False, ensure_cuda: bool = True) -> bool:
    """Return whether torch is installed, and sees a GPU. RuntimeError: not, and ``ensure_available``."""
    found = find_spec("torch") is not None
    if found and ensure_cuda:
        import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415

        found = bool(torch.cuda.is_available())
    return _wanted("torch", found, ensure_available)


def jax_is_available(ensure_available: bool = False, ensure_cuda: bool = True) -> bool:
    """Return whether JAX is installed, and sees a GPU. RuntimeError: not, and ``ensure_available``."""
    found = find_spec("jax") is not None
    if found and ensure_cuda:
        import jax  # noqa: PLC0415

        found = any(device.platform == "gpu" for device in jax.devices())
    return _wanted("jax", found, ensure_available)


def cupy_is_available(ensure_available: bool = False) -> bool:
    """Return whether CuPy is installed. RuntimeError: it is not, and ``ensure_available``."""
    return _wanted("cupy", find_spec("cupy") is not None, ensure_available)


def _wanted(framework: str, found: bool, ensure: bool) -> bool:
    if ensure and not found:
        raise RuntimeError(f"{framework}: could not be used: it is not installed, or sees no GPU.")
    return found


def is_distributed() -> bool:
    """Return whether torch.distributed has been initialized in this process."""
    return _distributed() is not None


def get_rank() -> int:
    """Return the rank of this process; 0 if it is alone."""
    return 0 if (found := _distributed()) is None else int(found.get_rank())


def get_world_size() -> int:
    """Return the number of processes of the training; 1 if this one is alone."""
    return 1 if (found := _distributed()) is None else int(found.get_world_size())


def _distributed() -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed
