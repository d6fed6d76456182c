"""Real timers, log and sockets."""

import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest

from collectors.controls.supervisor import Beats, Supervisor
from collectors.ingest.pace import GatherPace
from collectors.log.boot_mark import BootMark
from collectors.log.feed import LogFeed
from collectors.log.sqlite import SqliteLog
from tests.collectors.devices.arithmetic import ArithmeticBus
from tests.waiting import eventually
from zeus_stream.clock import boot_id, monotonic_ns
from zeus_stream.paths import Places
from zeus_stream.settings import Settings
from zeus_stream.transport.listening.listener import Listener

pytestmark = pytest.mark.anyio
QUIET_S = 0.5
PATIENCE_S = 20.0


def wake_ups() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


@contextmanager
def supervisor(directory: Path, devices: int) -> Iterator[tuple[Supervisor, LogFeed, Listener]]:
    feed, where = Listener(directory / "feed", feed=True), Places(directory, directory)
    with (
        closing(SqliteLog(directory / "log", "h", boot_id(), BootMark(directory / "log"))) as log,
        closing(feed),
    ):
        journal = LogFeed(log, feed, "h")
        bus = ArithmeticBus(devices)
        yield (Supervisor(Settings(), bus, where, journal, "i", lambda _: None, lambda: None), journal, feed)


async def test_a_device_is_looked_for_until_its_description_is_here(tmp_path: Path) -> None:
    """A run that began between the find by a thread and the news of it was not found on this host."""
    with supervisor(tmp_path, 1) as (guards, _, _):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guards.look)
            await eventually(guards.log_readings)  # its thread has found it
            before = guards.looked
            tasks.start_soon(guards.listen)
            await eventually(lambda: guards.looked and guards.descriptions)
            tasks.cancel_scope.cancel()
        await guards.stop()
    assert not before


async def test_what_waits_at_rest_hardly_wakes_and_hurries_when_somebody_waits(tmp_path: Path) -> None:
    uses = list[int]()
    with supervisor(tmp_path, 0) as (guards, journal, feed):
        pace = GatherPace(lambda: beats.hurry())  # noqa: PLW0108  (made below)
        beats = Beats(guards, journal, pace.gather_ns, lambda: uses.append(monotonic_ns()), 10**9, 10**15)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beats.run)
            tasks.start_soon(feed.serve)
            await anyio.wait_all_tasks_blocked()
            before = wake_ups()
            await anyio.sleep(QUIET_S)
            assert wake_ups() - before < 20 * QUIET_S / 2  # it was 24 a second
            pace.hurry(monotonic_ns() + round(PATIENCE_S * 1e9))
            with anyio.fail_after(PATIENCE_S):
                while len(uses) < 2:  # now each 50 ms, so once a second
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
