"""The identity of a training process: its job, run, rank and GPUs, from its environment. Pure.

GPUs are named as well as the process knows them; the collector resolves them:

    GPU-...     a UUID, or the beginning of one, as CUDA allows
    MIG-...     a MIG instance: its parent GPU is meant
    index:N     the N-th GPU of the host in PCI order
    index:all   every GPU of the host
    (nothing)   the process computes on no GPU
"""

import re
from collections.abc import Mapping, Sequence, Sized
from numbers import Integral
from pathlib import PurePath
from typing import cast

from msgspec import Struct

ALL = "index:all"
MAX_NAME = 200
MAX_GPUS = 256
MAX_BATCH = 2**53
INHERITED = "ZEUS_STREAM_INHERITED"
"""Variable that a measured script leaves to its child processes, PID:RUN: they are part of its run."""
_CUDA_DEVICE = re.compile(r"\d{1,4}|(GPU|MIG)-[\w./-]{1,76}")
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
"""Rank, world size, rank and number of ranks on this host; the innermost launcher comes first."""


class ScriptIdentity(Struct, frozen=True, kw_only=True):
    """The part of a `RunStarted` that describes its process."""

    job: str
    run: str
    rank: int
    world_size: int
    gpus: tuple[str, ...]
    batch_size: int | None = None
    """None: nobody says."""
    parent_pid: int | None = None
    """The measured script of the same run that started this process; None: none did."""


class ProcessIdentity(Struct, frozen=True):
    """The facts that an environment lacks."""

    script: str
    """``sys.argv[0]``."""
    launcher: str
    """Names the parent process: all ranks that it started on this host have the same."""
    token: str
    """Random: the name of a run that nobody shares."""
    pid: int = 0
    cuda: tuple[str, ...] | None = None
    """UUIDs of the devices that CUDA shows the process; None: CUDA is not initialized."""
    ranks: tuple[int, int] | None = None
    """Rank and world size by torch.distributed; None: it is not initialized."""


class _Place(Struct, frozen=True):
    """Among the ranks of a run. ``local_rank``: None if the launcher does not say."""

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = None
    local_size: int | None = None


def identify(
    environ: Mapping[str, str],
    process: ProcessIdentity,
    *,
    job: str | None = None,
    run: str | None = None,
    gpus: Sequence[str | int] | None = None,
    batch_size: int | None = None,
) -> ScriptIdentity:
    """Return who the process is: as the script says, or else ``ZEUS_STREAM_*``, or else its launcher."""
    place = _place(environ, process.ranks)
    parent_pid, inherited = _inherited(environ, process)
    name = named(run or environ.get("ZEUS_STREAM_RUN") or inherited or _run(environ, place, process))
    return ScriptIdentity(
        job=named(job or environ.get("ZEUS_STREAM_JOB") or _script_name(process.script)),
        run=name,
        rank=place.rank,
        world_size=place.world_size,
        gpus=_own(visible_gpus(environ, process.cuda), place) if gpus is None else listed_gpus(gpus),
        batch_size=counted(batch_size) or counted(_number(environ.get("ZEUS_STREAM_BATCH_SIZE"))),
        parent_pid=parent_pid if name == inherited else None,
    )


def counted(size: object) -> int | None:
    """Return a number of samples that can be sent, None for what is none."""
    if isinstance(size, bool) or not isinstance(size, Integral):
        return None
    number = int(size)
    return number if 0 < number <= MAX_BATCH else None


def counted_from_zero(number: object) -> int | None:
    """Return a number of a step or an epoch that can be sent, None for anything else."""
    return 0 if number == 0 and not isinstance(number, bool) else counted(number)


def batch_of(loader: object) -> int | None:
    """Return how many samples a batch of a loader has, if it says so."""
    try:
        return counted(getattr(loader, "batch_size", None))
    except Exception:  # noqa: BLE001  (a loader's property is somebody else's code, and only asked by the way)
        return None


def length_of(iterable: object) -> int | None:
    """Return how many items an iterable has, if it says so."""
    try:
        return counted_from_zero(len(cast("Sized", iterable)))
    except Exception:  # noqa: BLE001  (as above; most iterables without a length raise TypeError)
        return None


def named(text: object) -> str:
    """Return ``text`` as a name that can be sent: 1 to 200 characters, all of them Unicode."""
    return str(text)[:MAX_NAME].encode("utf-8", "replace").decode() or "?"


def _script_name(script: str) -> str:
    path = PurePath(script)
    if path.stem == "__main__":  # python -m package
        return path.parent.name or "python"
    return "python" if path.stem in ("", "-c") else path.stem


def _place(environ: Mapping[str, str], ranks: tuple[int, int] | None) -> _Place:
    """Return the place that a launcher gave the process; else that in ``ranks``: Lightning names no rank."""
    for rank, size, local_rank, local_size in _LAUNCHERS:
        # A batch script of SLURM has a task's variables too; only `srun`, which numbers steps, starts ranks.
        if rank == "SLURM_PROCID" and "SLURM_STEP_ID" not in environ:
            continue
        values = [_number(environ.get(name)) for name in (rank, size, local_rank, local_size)]
        if values[0] is not None and values[1] is not None and values[0] < values[1]:
            return _Place(values[0], values[1], values[2], values[3])
    return _Place(*(ranks or (0, 1)), _number(environ.get("LOCAL_RANK")))


def _run(environ: Mapping[str, str], place: _Place, process: ProcessIdentity) -> str:
    """Return a name that all ranks of this training arrive at by themselves, and no other training does."""
    if place.world_size == 1:
        return process.token
    elastic = environ.get("TORCHELASTIC_RUN_ID", "none")
    if elastic != "none":  # what torchrun says without --rdzv-id
        return f"{elastic}.{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if "PMIX_NAMESPACE" in environ:
        return environ["PMIX_NAMESPACE"]
    if "SLURM_STEP_ID" in environ:
        job = f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}"
        return f"slurm-{job}.{environ.get('SLURM_RESTART_COUNT', '0')}"
    if place.local_size == place.world_size:
        return process.launcher
    if "MASTER_ADDR" in environ:
        return f"{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT', '')}"
    return process.launcher


def _inherited(environ: Mapping[str, str], process: ProcessIdentity) -> tuple[int | None, str]:
    """Return process and run of the script that started this process, if that measures; else None and ""."""
    pid, _, run = environ.get(INHERITED, "").partition(":")
    number = _number(pid)
    return (None, "") if number in (None, process.pid) else (number, run)


def visible_gpus(environ: Mapping[str, str], cuda: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the GPUs that a script may use: as the environment lists them, or else as CUDA does."""
    if listed := environ.get("ZEUS_STREAM_GPUS"):
        return listed_gpus(listed.split(","))
    visible = environ.get("CUDA_VISIBLE_DEVICES", environ.get("HIP_VISIBLE_DEVICES"))
    if visible is not None and "MIG-" in visible:
        return _cuda_visible(visible)
    if cuda is not None:
        return cuda[:MAX_GPUS]
    return (ALL,) if visible is None else _cuda_visible(visible)


def _cuda_visible(text: str) -> tuple[str, ...]:
    """Return the devices before the first invalid entry, as CUDA does; none if one is listed twice."""
    devices = list[str]()
    for entry in map(str.strip, text.split(",")):
        if not _CUDA_DEVICE.fullmatch(entry):
            break
        if entry in devices:
            return ()
        devices.append(entry)
    return listed_gpus(devices)


def listed_gpus(gpus: Sequence[str | int]) -> tuple[str, ...]:
    """Return GPUs that a person lists, indices or UUIDs or ``all``, as this module writes them."""
    entries = [named(gpu).strip() for gpu in gpus if gpu != ""]
    named_gpus = [f"index:{entry}" if entry.isdecimal() or entry == "all" else entry for entry in entries]
    return tuple(dict.fromkeys(gpu for gpu in named_gpus if 0 < len(gpu) <= 80))[:MAX_GPUS]


def _own(visible: tuple[str, ...], place: _Place) -> tuple[str, ...]:
    """Return the device of this rank: of several that are visible, the one with the number of the rank."""
    if place.local_rank is None:
        return visible
    if visible == (ALL,):
        return (f"index:{place.local_rank}",)
    return (visible[place.local_rank % len(visible)],) if len(visible) > 1 else visible


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 10 else None
