"""A real collector that logs a load beside its own work, in a process of its own."""

import multiprocessing
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import anyio
import numpy as np

from benchmarks.harness import wait_for
from collectors import service
from collectors.devices.registry import open_bus
from collectors.log.feed import LogFeed
from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.readings import READING_FIELDS, Readings, Seen
from zeus_stream.settings import Settings

HOSTS = 1_250
GPUS_PER_HOST = 8
ROWS = 1_000
"""Of one host, in a frame."""
POWER_MW = 250_000
S = 1_000_000_000
BEHIND = 20
"""Frames logged in one go when the load is behind its schedule."""
Load = Callable[[LogFeed], Awaitable[None]]
"""Logs the load. A process can be given it: a function of a module, or a `functools.partial` of one."""


class LoadedCollector(service.CollectorService):
    """The real collector. Its load begins when the analyzer has come."""

    load: ClassVar[list[Load]] = []

    async def _tell_time(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(super()._tell_time)
            while not self._server.connected:  # noqa: ASYNC110  (the real service has no event for it)
                await anyio.sleep(0.01)
            await self.load[0](self._journal)


def _collect(where: Path, load: Load, cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)
    LoadedCollector.load.append(load)
    service.CollectorService = LoadedCollector  # type: ignore[misc]  # `collect` opens and closes the real thing
    bus, environ = open_bus("simulated:v100x1", where), {"ZEUS_STREAM_DIR": str(where)}
    anyio.run(lambda: service.collect(Settings(), bus, environ=environ, started=lambda _: None))


@contextmanager
def loaded_collector(where: Path, load: Load) -> Iterator[int]:
    """Run the collector until the end of the block, on the cores of this process; give its pid."""
    running = multiprocessing.get_context("spawn").Process(
        target=_collect, args=(where, load, os.sched_getaffinity(0))
    )
    running.start()
    try:
        wait_for((where / "publish").exists, 30)
        assert running.pid is not None
        yield running.pid
    finally:
        running.terminate()
        running.join(20)


# ---- the readings of many hosts -----------------------------------------------------------------------


def readings(rate: float, begin_ns: int) -> Iterator[tuple[int, Readings]]:
    """Give frames of ROWS readings and when each is due, for ever; host after host has its turn."""
    turn_ns = HOSTS * ROWS / rate * S
    ticks = ROWS // GPUS_PER_HOST
    rows = np.zeros(ROWS, np.dtype(list(READING_FIELDS)))
    tick = np.repeat(np.arange(ticks), GPUS_PER_HOST)
    rows["gpu"] = np.tile(np.arange(GPUS_PER_HOST), ticks)
    rows["power_mw"] = rows["limit_mw"] = rows["requested_mw"] = POWER_MW
    number = 0
    while True:
        turn, host = divmod(number, HOSTS)
        number += 1
        due_ns = begin_ns + round(number * ROWS / rate * S)
        rows["t_hi_ns"] = due_ns - turn_ns * (ticks - 1 - tick) / ticks
        rows["t_lo_ns"] = rows["t_hi_ns"] - 1_000_000
        rows["energy_mj"] = (turn * ticks + tick + 1) * (POWER_MW * turn_ns / ticks / S)
        rows["seen"] = np.where((turn == 0) & (tick == 0), Seen.FIRST, Seen.CHANGED)
        gpus = tuple(f"GPU-load-{host}-{gpu}" for gpu in range(GPUS_PER_HOST))
        yield due_ns, Readings(gpus, rows.tobytes())


async def log_load(rate: float, frames: int, log: LogFeed) -> None:
    """Log so many frames of readings, each when it is due."""
    for left, (due_ns, body) in zip(range(frames, 0, -1), readings(rate, monotonic_ns()), strict=False):
        wait_ns = due_ns - monotonic_ns()
        if wait_ns > 0 or left % BEHIND == 0:
            await anyio.sleep(max(wait_ns, 0) / S)
        log.readings(body, ROWS)
