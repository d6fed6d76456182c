"""Train on a simulated GPU: it draws, and slows under a power limit or a locked clock, as published GPUs did.

    with attach("imagenet") as gpu:
        for _ in range(100):
            gpu.run(0.25)      # a step of 0.25 s at the highest limit, longer at a lower one

The GPUs are those that a collector on this host simulates; see `shared_memory` for how they meet.
"""

import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import RefusedError, SettingsError, UnreachableError
from zeus_stream.own_services import start_if_asked
from zeus_stream.paths import publish_candidates
from zeus_stream.simulated_gpu.shared_memory import (
    LIMIT,
    LIMITS,
    LOAD,
    LOADS,
    PID,
    STATE_BYTES,
    WORK_BYTES,
    Region,
    Ring,
    identity,
    running,
)
from zeus_stream.simulated_gpu.workloads import Model
from zeus_stream.simulated_gpu.workloads import load as load_models

LEASE_NS = 200_000_000
"""A load is declared no further ahead than this."""
CHECK_NS = 5_000_000
"""How often a running load looks for a change of the limit."""


class AcceleratorPace(Struct, frozen=True):
    """Work under way at one speed: at ``at_ns``, ``left_ns`` remained, counted at full speed."""

    at_ns: int
    left_ns: float
    slowdown: float

    @property
    def end_ns(self) -> int:
        """When the work is done if the speed stays."""
        return self.at_ns + ceil(self.left_ns * self.slowdown)

    def change(self, t_ns: int, slowdown: float) -> "AcceleratorPace":
        """Return the pace after the speed changed at ``t_ns``; work already done stays done."""
        at_ns = min(max(t_ns, self.at_ns), self.end_ns)
        left_ns = max(self.left_ns - (at_ns - self.at_ns) / self.slowdown, 0.0)
        return AcceleratorPace(at_ns, left_ns, slowdown)


class Accelerator:
    """The simulated GPUs one training process computes on. For one thread; close it, or use ``with``.

    Example:
        >>> with zeus_stream.simulated.attach("imagenet") as gpu:
        ...     gpu.run(0.25)
    """

    def __init__(self, lanes: Sequence["_Lane"]) -> None:
        self._lanes = tuple(lanes)

    def __repr__(self) -> str:
        return f"<Accelerator of {', '.join(self.gpus)}>"

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs."""
        return tuple(lane.gpu for lane in self._lanes)

    def run(self, work_s: float, workload: str | None = None) -> None:
        """Work, and return when the slowest GPU is done.

        Takes ``work_s`` seconds at the highest limit and longer at a lower limit or clock or on a slower GPU,
        following changes of both. Each GPU draws for as long as its own share takes, then it idles.

        Args:
            work_s: finite, 0 or more.
            workload: another workload of the GPU's model, for this work only.

        Raises:
            SettingsError: the time is not finite, or the model has no such workload.
        """
        if not 0 <= work_s < float("inf"):
            raise SettingsError(f"run: could not work for {work_s} s: give a finite time of 0 or more.")
        begin_ns = monotonic_ns()
        for lane in self._lanes:
            lane.begin(begin_ns, work_s * 1e9, workload)
        while True:
            now_ns = monotonic_ns()
            left_ns = max(lane.follow(now_ns) for lane in self._lanes) - now_ns
            if left_ns <= 0:
                return
            time.sleep(min(left_ns, CHECK_NS) / 1e9)

    def close(self) -> None:
        """Let the GPUs go. Idempotent."""
        for lane in self._lanes:
            lane.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def attach(
    workload: str, gpus: Sequence[str | int] | None = None, directory: Path | None = None
) -> Accelerator:
    """Take simulated GPUs that a collector on this host runs, and return them ready to work.

    Args:
        workload: what to compute, e.g. ``imagenet``: a workload of the GPU's model.
        gpus: UUIDs, or indices in the collector's order. Default: the GPU with the number ``LOCAL_RANK``,
            which torchrun and others set for each rank; without it, all GPUs.
        directory: runtime directory of the collector. Default: where this user's or root's collector is.

    Raises:
        UnreachableError: no collector runs such a GPU.
        RefusedError: another process computes on it.
        SettingsError: its model has no such workload.

    Example:
        >>> with zeus_stream.simulated.attach("imagenet", gpus=[0]) as gpu:
        ...     for _ in zeus_stream.steps(range(100)):
        ...         gpu.run(0.25)
    """
    start_if_asked()
    candidates = (
        [path.parent for path in publish_candidates(os.environ)] if directory is None else [directory]
    )
    there = next((found for found in map(running, candidates) if found), {})
    wanted = _wanted(tuple(there), gpus, os.environ.get("LOCAL_RANK", ""))
    missing = [gpu for gpu in wanted if gpu not in there]
    if missing or not wanted:
        raise UnreachableError(
            f"{', '.join(missing) or 'simulated GPU'}: could not attach: no collector runs it under"
            f" {' or '.join(str(path) for path in candidates)} (running there: {', '.join(there) or 'none'})."
            " Start one with a device such as simulated:v100x4, or set ZEUS_STREAM_DIR as it has it."
        )
    models = load_models()
    with ExitStack() as opened:
        lanes = []
        for gpu in wanted:
            lane = _Lane(there[gpu], models, workload)
            opened.callback(lane.close)
            lanes.append(lane)
        opened.pop_all()
    return Accelerator(lanes)


def _wanted(there: Sequence[str], gpus: Sequence[str | int] | None, local_rank: str) -> tuple[str, ...]:
    """Return UUIDs for what a script asks for; what is not there stays as it was written."""
    if gpus is None and (not local_rank.isdecimal() or not there):
        return tuple(there)
    asked = [int(local_rank) % len(there)] if gpus is None else gpus
    return tuple(there[gpu] if isinstance(gpu, int) and 0 <= gpu < len(there) else str(gpu) for gpu in asked)


class _Lane:
    """One GPU of an accelerator: the pace of its work, and the record that declares it."""

    def __init__(self, board: Path, models: Mapping[str, Model], workload: str) -> None:
        self.gpu = board.stem
        with ExitStack() as opened:
            self._state = Region(board, STATE_BYTES, write=False)
            opened.callback(self._state.close)
            model, _, slower, _, _ = identity(self._state).decode().split()
            workloads = models[model].slowed(float(slower)).workloads
            self._workloads = workloads
            self._first_workload = self._check(workload)
            self._work = Region(board.with_suffix(".load"), WORK_BYTES)
            opened.callback(self._work.close)
            try:
                fcntl.flock(self._work.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as busy:
                raise RefusedError(
                    f"{self.gpu}: could not attach: another training process computes on it."
                    " Name other GPUs, or end that process."
                ) from busy
            opened.pop_all()
        self._work.put(PID, 0, os.getpid())
        self._index, self._slowdown = self._choose(workload)
        self._limits = Ring(self._state, LIMIT, LIMITS)
        self._next_limit = self._limits.newest()
        self._force: tuple[int, int] | None = None
        self._loads = Ring(self._work, LOAD, LOADS)
        self._number = self._loads.newest()
        self._pace = AcceleratorPace(0, 0.0, 1.0)
        self._begin_ns = self._until_ns = 0

    def begin(self, now_ns: int, work_ns: float, workload: str | None = None) -> None:
        """Start on new work."""
        self._index, self._slowdown = self._choose(self._check(workload or self._first_workload))
        self._number += 1
        slowdown = 1.0 if self._force is None else self._slowdown(*self._force)
        self._pace = AcceleratorPace(now_ns, work_ns, slowdown)
        self._begin_ns, self._until_ns = now_ns, 0

    def follow(self, now_ns: int) -> int:
        """Take in changes of limit and clock, declare the load, and return when the work will be done."""
        for number, since_ns, *force in self._limits.since(self._next_limit):
            limit_mw, locked_mhz = force
            self._force = limit_mw, locked_mhz
            self._pace = self._pace.change(since_ns, self._slowdown(limit_mw, locked_mhz))
            self._next_limit = number + 1
        end_ns = self._pace.end_ns
        until_ns = min(end_ns, now_ns + LEASE_NS)
        due = until_ns == end_ns or self._until_ns < now_ns + LEASE_NS // 2
        if due and until_ns != self._until_ns:
            self._until_ns = until_ns
            self._loads.put(self._number, self._begin_ns, until_ns, self._index)
        return end_ns

    def _choose(self, workload: str) -> tuple[int, Callable[[int, int], float]]:
        """Return a workload's place in the model, and the time it takes under a limit and a lock."""
        return tuple(self._workloads).index(workload), self._workloads[workload].slowdown

    def _check(self, workload: str) -> str:
        if workload not in self._workloads:
            raise SettingsError(
                f"{self.gpu}: could not run {workload!r}: it was not measured on this GPU model."
                f" Choose one of {', '.join(self._workloads)}."
            )
        return workload

    def close(self) -> None:
        """Let go of the GPU. Idempotent."""
        if not self._work.closed:
            self._work.put(PID, 0, 0)
        self._work.close()
        self._state.close()
