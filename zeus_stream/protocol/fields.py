"""Types and bounds of message fields.

Times are CLOCK_MONOTONIC of the named host, ns. GPUs are UUIDs. `None` is "not known", never 0.
"""

import sys
import zlib
from typing import Annotated, Literal

from msgspec import Meta, Struct

VERSION = 1
"""Of this schema. A message of another version is refused with a sentence."""


Name = Annotated[str, Meta(min_length=1, max_length=200)]
"""Job, run, window, metric, host, owner, ids."""
KubernetesName = Annotated[str, Meta(min_length=1, max_length=253)]
MOST_WORDS = 2_000
"""Characters."""
Text = Annotated[str, Meta(max_length=MOST_WORDS)]
"""A sentence for people."""
Gpu = Annotated[str, Meta(min_length=1, max_length=80)]
"""UUID ``GPU-...``, or a part of the host itself (`of_host`); in `RunStarted` alone also ``MIG-...``,
``index:N`` (PCI order) and ``index:all``: the collector resolves them."""
Ns = Annotated[int, Meta(ge=0, le=2**62)]
MOST_WALL_NS = 4_102_444_800 * 10**9
"""2100."""
WallNs = Annotated[int, Meta(ge=0, le=MOST_WALL_NS)]
"""With any `Ns` added it still is an int64."""
MOST_COUNT = 2**53
Count = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
Milliwatts = Annotated[int, Meta(ge=0, le=100_000_000)]
Milliseconds = Annotated[int, Meta(ge=0, le=86_400_000)]
Gpus = Annotated[tuple[Gpu, ...], Meta(max_length=256)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Neither infinite nor NaN."""
BatchSize = Annotated[int, Meta(ge=1, le=2**40)]
Control = Literal["power_limit", "graphics_clock", "memory_clock", "power_profile"]
"""What can be set of a device: its power limit, a lock of one of its clocks, its workload power profiles."""
Searched = Literal["power_limit", "graphics_clock", "both"]
"""The levels that a search chooses from."""
ControlValue = Annotated[int, Meta(ge=0, le=100_000_000)]
"""In the unit of its control: mW of a power limit; MHz at which a clock is locked, or `UNLOCKED`. Of workload
power profiles, bit I is the profile I of `POWER_PROFILES`, and 0 is none."""
UNLOCKED = 0
"""Value of a clock that nothing locks."""
POWER_PROFILES = (
    *("max_p", "max_q", "compute", "memory_bound", "network", "balanced", "llm_inference", "llm_training"),
    *("rbm", "dcpcie", "hmma_sparse", "hmma_dense", "sync_balanced", "hpc", "mig", "max_q_1"),
    *("network_bound", "high_throughput_inference", "medium_throughput_inference", "low_latency_inference"),
    *("training", "inference", "max_q_2", "max_q_3", "low_priority_background"),
)
"""NVML's workload power profiles, in the order of their numbers."""


def spell_profiles(mask: int) -> str:
    """Return workload power profiles for people: ``llm_training+max_q``, or ``none``."""
    return "+".join(name for bit, name in enumerate(POWER_PROFILES) if mask >> bit & 1) or "none"


def parse_profiles(names: str) -> int:
    """Return the bits of workload power profiles like ``llm_training+max_q``. Raises ValueError."""
    return sum(1 << POWER_PROFILES.index(name) for name in set(names.split("+")) - {"none"})


BUDGET = "budget:"
"""Begins the name under which an analyzer holds limits for a power budget, in place of a run's. No run may
have such a name."""


WALL, SITE = "WALL-", "SITE-"
"""Begin the UUID of a meter: of all that a host draws, and of a site with its cooling."""


def of_host(gpu: Gpu) -> bool:
    """Tell whether it is no GPU but a part of the host that all runs use: a CPU, its memory, or a meter."""
    return gpu.startswith(("CPU-", "DRAM-", WALL, SITE))


def of_meter(gpu: Gpu) -> bool:
    """Tell whether it is a meter: its energy has that of the other devices in it."""
    return gpu.startswith((WALL, SITE))


_KEPT_OF_USER, _KEPT_OF_PART = 180, 170
"""Characters of a name that stay in one made of it."""


def user_name(name: str, uid: int) -> str:
    """Return the name of a user's job or run whose own name belongs to another user."""
    return f"{name[:_KEPT_OF_USER]} (user {uid})"


def part_name(run: str, session: str) -> str:
    """Return the name of a part of a run: a session beside the one that has the run's own name."""
    return f"{run[:_KEPT_OF_PART]} (part {session[:8]})"


def are_of_one_run(run: str, other: str) -> bool:
    """Tell whether two names are those of one run: the same, or of a run and its part, or of two parts."""
    if run == other:
        return True
    (one, first), (another, second) = _split(run), _split(other)
    return bool(first or second) and one[:_KEPT_OF_PART] == another[:_KEPT_OF_PART]


def _split(run: str) -> tuple[str, str]:
    whole, mark, session = run.rpartition(" (part ")
    return (whole, session) if mark else (run, "")


def names_of_run(run: str, session: str, uid: int | None) -> frozenset[str]:
    """Return the names that an analyzer may give to the run of a session, and name in its commands."""
    whole = {run} if uid is None else {run, user_name(run, uid)}
    return frozenset(whole | {part_name(each, session) for each in whole})


class Unknown(Struct, frozen=True, tag=True):
    """A kind this version does not know, from a newer sender: counted, never an error."""

    kind: str


def shard_of(job: str, shards: int) -> int:
    """Return the shard in which all runs of a job are decided."""
    return hash_of(job) % shards


def hash_of(job: str) -> int:
    """Return the number of a job that decides on its shard, 32 bits."""
    return zlib.crc32(job.encode())


def owner_of(site: str, shard: int) -> str:
    """Return the owner of a shard's commands, the same for each analyzer that holds it."""
    return f"{site}/shard-{shard}"
