"""Each item that reached a log is archived exactly once, although processes are killed or stopped."""

import os
import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.directories import EAGER
from tests.processes.pipeline import pipeline
from tests.waiting import until

PAUSE_S = 2.5
"""Longer than a lease, and than a collector waits for a reply."""


def test_through_kills_of_all_in_turn_everything_logged_is_archived_once(zeus_dir: Path) -> None:
    with pipeline(zeus_dir, publishers=1) as setup:
        killed = setup.kill_in_turn(6, Random(0))
        account = setup.finish()
    assert min(killed.values()) >= 2
    assert (account.lost, account.twice, account.unmeasured) == (0, 0, 0)
    assert not account.other_gaps, "a time without a collector is named, a trainer killed in it too"
    assert account.acknowledged > 100
    assert account.archived >= account.acknowledged


def _store_of(analyzer: int) -> int:
    """Return the process that has the archive open, once there is one: a thread may have started another."""

    def children() -> list[str]:
        tasks = Path(f"/proc/{analyzer}/task").iterdir()
        try:
            return [child for task in tasks for child in (task / "children").read_text().split()]
        except FileNotFoundError:  # a thread has ended since
            return []

    return int(until(children)[0])


@pytest.mark.sweep
def test_pauses_of_each_process_lose_nothing(zeus_dir: Path) -> None:
    with pipeline(zeus_dir, 1, EAGER) as setup:
        for name in ("collector", "analyzer", "store", "publisher 0"):
            until(lambda: setup.sql("SELECT 1 FROM windows LIMIT 1"))
            pid = _store_of(setup.pid("analyzer")) if name == "store" else setup.pid(name)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(PAUSE_S)
            os.kill(pid, signal.SIGCONT)
        account = setup.finish()
    assert (account.lost, account.twice, account.unmeasured) == (0, 0, 0)
