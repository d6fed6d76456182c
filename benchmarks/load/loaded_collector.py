"""A real collector that logs a load beside its own work, in a process of its own."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import ClassVar

import anyio
import numpy as np

from benchmarks.harness import wait_for
from collectors import service
from collectors.devices.registry import open_bus
from collectors.log.feed import LogFeed
from collectors.log.store import SessionMemory
from tests.analyzers.many_sessions import begin, steps_and_readings
from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Body, Events
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import READING_BYTES, READING_FIELDS, Readings, Seen
from zeus_stream.settings import Settings

HOSTS = 1_250
GPUS_PER_HOST = 8
ROWS = 1_000
"""Of one host, in a frame."""
POWER_MW = 250_000
S = 1_000_000_000
BEHIND = 20
"""Frames logged in one go when the load is behind its schedule."""
RATE = 200
"""Steps a second of a session."""
AFTER_S = 2.0
"""Of readings, after the last step."""
Load = Callable[[int], Iterator[tuple[int, Body]]]
"""Gives what is logged and when it is due, from a time on. A process can be given it: a function of a module,
or a `functools.partial` of one."""


class LoadedCollector(service.CollectorService):
    """The real collector. Its load begins when the analyzer has come."""

    load: ClassVar[list[Load]] = []

    async def _tell_own_use(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(super()._tell_own_use)
            while not self._server.connected:  # noqa: ASYNC110  (the real service has no event for it)
                await anyio.sleep(0.01)
            await log_load(self.load[0], self._journal)


async def log_load(load: Load, log: LogFeed) -> None:
    """Log each part of a load when it is due."""
    for number, (due_ns, body) in enumerate(load(monotonic_ns())):
        wait_ns = due_ns - monotonic_ns()
        if wait_ns > 0 or number % BEHIND == 0:
            await anyio.sleep(max(wait_ns, 0) / S)
        match body:
            case Notes(notes=notes):
                log.say(*(note for note in notes if not isinstance(note, Unknown)))
            case Readings():
                log.readings(body, len(body.rows) // READING_BYTES)
            case Events():
                after = body.sequence + len(body.events)
                log.events("load", body, SessionMemory(body.session, after, "{}"))


def _collect(where: Path, load: Load) -> None:
    LoadedCollector.load.append(load)
    service.CollectorService = LoadedCollector  # type: ignore[misc]  # `collect` opens and closes the real thing
    bus, environ = open_bus("simulated:v100x1", where), {"ZEUS_STREAM_DIR": str(where)}
    anyio.run(lambda: service.collect(Settings(), bus, environ=environ, started=lambda _: None))


@contextmanager
def loaded_collector(where: Path, load: Load) -> Iterator[None]:
    """Run the collector until the end of the block."""
    running = multiprocessing.get_context("spawn").Process(target=_collect, args=(where, load))
    running.start()
    try:
        wait_for((where / "publish").exists, 30)
        yield
    finally:
        running.terminate()
        running.join(20)


def readings_of_hosts(rate: float, frames: int, begin_ns: int) -> Iterator[tuple[int, Readings]]:
    """Give so many frames of ROWS readings; host after host has its turn."""
    turn_ns = HOSTS * ROWS / rate * S
    ticks = ROWS // GPUS_PER_HOST
    rows = np.zeros(ROWS, np.dtype(list(READING_FIELDS)))
    tick = np.repeat(np.arange(ticks), GPUS_PER_HOST)
    rows["gpu"] = np.tile(np.arange(GPUS_PER_HOST), ticks)
    rows["power_mw"] = rows["limit_mw"] = rows["requested_mw"] = POWER_MW
    for number in range(frames):
        turn, host = divmod(number, HOSTS)
        due_ns = begin_ns + round((number + 1) * ROWS / rate * S)
        rows["t_hi_ns"] = due_ns - turn_ns * (ticks - 1 - tick) / ticks
        rows["t_lo_ns"] = rows["t_hi_ns"] - 1_000_000
        rows["energy_mj"] = (turn * ticks + tick + 1) * (POWER_MW * turn_ns / ticks / S)
        rows["seen"] = np.where((turn == 0) & (tick == 0), Seen.FIRST, Seen.CHANGED)
        gpus = tuple(f"GPU-load-{host}-{gpu}" for gpu in range(GPUS_PER_HOST))
        yield due_ns, Readings(gpus, rows.tobytes())


def steps_of_sessions(sessions: int, seconds: float, begin_ns: int) -> Iterator[tuple[int, Body]]:
    """Give the steps and readings of many sessions, as `tests.analyzers.many_sessions.frames` does."""
    for body in islice(begin(sessions, begin_ns, "load-"), 1, None):  # this collector has started already
        yield begin_ns, body
    yield from steps_and_readings(sessions, RATE, seconds, begin_ns, after_s=AFTER_S)
