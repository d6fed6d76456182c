"""Short versions of the exercises of ``benchmarks/faults/exercises.py``."""

import random
from pathlib import Path

import pytest

from benchmarks.faults.exercises import cuts, pauses, room


def test_log_and_archive_that_were_cut_anywhere_go_on_or_say_why_not() -> None:
    assert cuts(12, random.Random(0))[1] == []


def test_writes_that_fail_in_the_middle_lose_nothing_once_there_is_room() -> None:
    assert room(random.Random(0))[1] == []


@pytest.mark.sweep
def test_pauses_of_each_process_lose_nothing(zeus_dir: Path) -> None:
    assert pauses(zeus_dir, 2.5, 1.0)[1] == []
