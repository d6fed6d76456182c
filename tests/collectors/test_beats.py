"""Real timers; the log and the sockets are real, and there is no device."""

import resource
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from collectors.controls.supervisor import Beats, Supervisor
from collectors.ingest.pace import GatherPace
from collectors.log.boot_mark import BootMark
from collectors.log.feed import LogFeed
from collectors.log.sqlite import SqliteLog
from tests.collectors.devices.arithmetic import ArithmeticBus
from zeus_stream.clock import boot_id, monotonic_ns
from zeus_stream.paths import Places
from zeus_stream.settings import Settings
from zeus_stream.transport.listening.listener import Listener

pytestmark = pytest.mark.anyio
QUIET_S = 0.5
PATIENCE_S = 20.0


def wake_ups() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


async def test_what_waits_at_rest_hardly_wakes_and_hurries_when_somebody_waits(tmp_path: Path) -> None:
    uses = list[int]()
    with closing(SqliteLog(tmp_path / "log", "h", boot_id(), BootMark(tmp_path / "log"))) as log:
        feed = Listener(tmp_path / "feed", feed=True)
        journal = LogFeed(log, feed, "h")
        guards = Supervisor(
            Settings(),
            ArithmeticBus(0),
            Places(tmp_path, tmp_path),
            journal,
            "i",
            lambda _: None,
            lambda: None,
        )
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
    feed.close()
