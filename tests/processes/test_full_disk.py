"""A full or damaged disk: the collector stops writing and says so, goes on guarding, and recovers."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.environment import ZEUS_STREAM, rows, running
from tests.processes.pipeline import Setup, pipeline
from tests.processes.setup import FOUND_MW, OURS_MW, collector, simulated, trainer
from tests.waiting import until
from zeus_stream.protocol.notes import ControlRefused
from zeus_stream.training.outbox import BATCH

ROOM_KB = 60_000
"""What no test fills but on purpose, however long it takes: a log grows by 0.2 MB a second."""


@contextmanager
def small(directory: Path, size_kb: int) -> Iterator[None]:
    """Have a directory be a disk of its own."""
    options = ["-o", f"size={size_kb}k,mode=755", "zeus-stream", str(directory)]
    mounted = subprocess.run(["mount", "-t", "tmpfs", *options], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted: {mounted.stderr.strip()}. Run the tests as root.")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture
def small_disk(zeus_dir: Path, tmp_path: Path) -> Iterator[Path]:
    """A setup on a small disk; its simulated GPUs and what tests write live elsewhere."""
    with small(zeus_dir, ROOM_KB):
        for name in ("simulated", "told"):
            (tmp_path / name).mkdir()
            (zeus_dir / name).symlink_to(tmp_path / name)
        yield zeus_dir


def fill(directory: Path) -> Path:
    """Leave no room at all."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    assert os.statvfs(directory).f_bavail == 0
    return filler


def test_without_room_it_says_so_and_with_room_everything_acknowledged_and_kept_is_archived(
    small_disk: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "energy.duckdb"
    with pipeline(small_disk, analyze=("--select", "none", "--archive", str(archive))) as setup:
        until(lambda: setup.told("run-1")[1] > 50 and setup.sql("SELECT 1 FROM events LIMIT 1"))
        filler = fill(small_disk)
        until(lambda: "could not be written" in setup.status("collector", "log", "trouble"))
        # What is not in the log is not acknowledged: it waits.
        until(lambda: setup.told("run-1")[0] > setup.told("run-1")[1] + 500)
        filler.unlink()
        until(lambda: setup.status("collector", "log", "trouble") == "none")
        until(lambda: setup.told("run-1")[0] < setup.told("run-1")[1] + 100)
        account = setup.finish(archive)
    assert "could not be written" in setup.output("collector")
    assert (account.lost, account.twice) == (0, 0)
    assert account.archived >= account.emitted
    [dropped] = account.gaps
    assert "readings: " in dropped
    assert "could not be written" in dropped


@pytest.mark.parametrize(("service", "process"), [("collect", "collector"), ("analyze", "analyzer")])
def test_a_service_that_cannot_say_that_it_began_works(zeus_dir: Path, service: str, process: str) -> None:
    device = {"ZEUS_STREAM_DEVICE": "simulated:v100x1"}
    with (
        Path("/dev/full").open("w", encoding="utf-8") as nowhere,
        running(zeus_dir, *ZEUS_STREAM, service, stderr=nowhere, env=device) as began,
    ):
        until(lambda: rows(zeus_dir, process))
        assert began.poll() is None


def test_without_room_a_limit_still_returns_and_none_is_set(small_disk: Path) -> None:
    with (
        simulated(small_disk) as host,
        collector(host, small_disk) as collects,
        trainer(host, small_disk) as training,
    ):
        collects.hold()
        filler = fill(small_disk)
        refused = collects.ask(OURS_MW + 10_000)
        assert isinstance(refused, ControlRefused)
        assert refused.cause == "storage"
        assert host.read_mw() == OURS_MW
        training.kill()
        until(lambda: host.read_mw() == FOUND_MW)
        filler.unlink()


def test_an_analyzer_without_room_ends_with_a_sentence_and_the_next_misses_nothing(
    zeus_dir: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "energy.duckdb"
    with (
        small(tmp_path, ROOM_KB),
        pipeline(zeus_dir, analyze=("--select", "none", "--archive", str(archive))) as setup,
    ):
        until(lambda: setup.sql("SELECT 1 FROM events LIMIT 1"))
        filler = fill(tmp_path)
        assert setup.wait("analyzer") == 1
        assert "Make room on its disk" in setup.output("analyzer")
        assert "Traceback" not in setup.output("analyzer")
        filler.unlink()
        setup.start("analyzer")
        account = setup.finish(archive)
    assert (account.lost, account.twice, account.unmeasured, account.gaps) == (0, 0, 0, ())
    assert account.archived >= account.emitted


def newest(wal: bytes) -> bytes:
    """Return a write-ahead log of SQLite without what an earlier round left behind its newest frame."""
    size, end = 24 + int.from_bytes(wal[8:12], "big"), 32
    while wal[end + 8 : end + 16] == wal[16:24]:  # the salt of this round
        end += size
    return wal[:end]


def damage(setup: Setup, *, cut: bool) -> None:
    """Cut the newest part of a dead collector's log, or flip a bit in it."""
    wal = setup.directory / "log.sqlite-wal"
    content = bytearray(newest(wal.read_bytes()))
    if cut:
        del content[-3_000:]
    else:
        content[-1_000] ^= 1
    wal.write_bytes(content)


def test_a_log_whose_tail_was_damaged_is_left_for_another_and_the_gap_is_named(zeus_dir: Path) -> None:
    known, logs = 0, list[str]()
    with pipeline(zeus_dir) as setup:
        for cut in (False, True):
            until(lambda: setup.told("run-1")[1] > known + 50)  # noqa: B023  (asked at once)
            until(lambda: setup.sql("SELECT 1 FROM events LIMIT 1"))
            # What the analyzer has not got yet is gone with the old log: it shall have all but the tail.
            os.kill(setup.pid("publisher 0"), signal.SIGSTOP)
            first = until(setup.welcome)
            until(lambda: setup.archived(first.log_id, first.next_offset))  # noqa: B023
            setup.kill("collector")
            damage(setup, cut=cut)
            setup.start("collector")
            os.kill(setup.pid("publisher 0"), signal.SIGCONT)
            second = until(setup.welcome)
            assert first.log_id != second.log_id
            logs.append(second.log_id)
            known = setup.told("run-1")[1]
        account = setup.finish()
    assert account.twice == 0
    # What only a damaged tail had is gone, at most one batch: before it and after it, all is there.
    assert account.archived >= account.acknowledged - len(logs) * BATCH
    assert any("log: started over: it was cut" in gap for gap in account.gaps)
    for log in logs:
        assert any(f"the collector began a new log, {log}" in gap for gap in account.gaps)
