"""Describes this process as a rank of a run: the first event of its session."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from zeus_stream.clock import anchor, boot_id
from zeus_stream.protocol.events import RunStarted
from zeus_stream.training.identity import ProcessIdentity, identify, named
from zeus_stream.training.steps.torch_events import TorchQueue


def describe_run(
    job: str | None,
    run: str | None,
    gpus: Sequence[str | int] | None,
    batch_size: int | None,
    queue: TorchQueue | None,
) -> RunStarted:
    """Return the event by which this process introduces itself; None of the first four: by the environment.

    ``gpus``: UUIDs or indices in PCI order. ``queue``: of the device, if steps are placed by it.
    """
    try:
        boot = boot_id()
    except OSError:
        boot = "unknown"  # there is no /proc: then no collector runs here either
    process = ProcessIdentity(
        script=sys.argv[0] if getattr(sys, "argv", None) else "",
        launcher=f"{boot[:8]}-{_parent()}",
        token=os.urandom(6).hex(),
        pid=os.getpid(),
        cuda=cuda_uuids(),
        ranks=torch_ranks(),
    )
    who = identify(os.environ, process, job=job, run=run, gpus=gpus, batch_size=batch_size)
    now = anchor()
    return RunStarted(
        t_ns=now.monotonic_ns,
        pid=os.getpid(),
        boot_id=boot,
        wall_ns=now.wall_ns,
        wall_error_ns=now.error_ns,
        boundary="dispatch" if queue is None else "device",
        **asdict(who),
    )


def describe_command(run: str, job: str, gpus: tuple[str, ...] = ()) -> RunStarted:
    """Return the event by which a process introduces itself that computes on no GPU; it may measure some."""
    now = anchor()
    return RunStarted(
        t_ns=now.monotonic_ns,
        job=named(job),
        run=named(run),
        rank=0,
        world_size=0,
        gpus=gpus,
        pid=os.getpid(),
        boot_id=boot_id(),
        wall_ns=now.wall_ns,
        wall_error_ns=now.error_ns,
    )


def _parent() -> str:
    """Return the parent's pid and start: unique within this boot, where a pid alone may come again."""
    pid = os.getppid()
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        return f"{pid}-{fields.split()[19]}"
    except (OSError, IndexError):
        return str(pid)


def cuda_uuids() -> tuple[str, ...] | None:
    """Return torch's devices, if the script has initialized CUDA; never initialize it."""
    torch: Any = sys.modules.get("torch")
    cuda: Any = getattr(torch, "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return None
        if getattr(getattr(torch, "version", None), "hip", None):  # HIP's UUIDs are not the driver's
            return None
        devices = [cuda.get_device_properties(index) for index in range(cuda.device_count())]
        return tuple(f"GPU-{device.uuid}" for device in devices)
    except (AttributeError, RuntimeError):  # a torch before 2.4 has no UUIDs; the environment has to do
        return None


def torch_ranks() -> tuple[int, int] | None:
    """Return rank and world size, if the script has initialized torch.distributed."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
