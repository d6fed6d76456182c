import contextlib
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from collectors.log.boot_mark import BootMark
from collectors.log.sqlite import CHUNK, DUE_BYTES, INLINE_PAGES, MAX_SESSIONS, PAGE_BYTES, SqliteLog
from collectors.log.store import SessionMemory
from tests.messages import WELCOME
from zeus_stream.errors import StorageError
from zeus_stream.protocol.commands import Fetched
from zeus_stream.protocol.frames import Break, Frame
from zeus_stream.transport.follower import FollowerSequence

BOOT = "boot-1"
HOUR_NS = 3_600_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


def opened(path: Path, boot_id: str = BOOT) -> SqliteLog:
    return SqliteLog(path, "host", boot_id)


def fill(log: SqliteLog, count: int, *, t_ns: int = 0, size: int = 100) -> None:
    for _ in range(count):
        log.append([("notes/host", bytes(size))], t_ns)


def fill_pairs(log: SqliteLog, count: int) -> None:
    for number in range(count):
        log.append([("a", bytes(5000))] * 2, 0, SessionMemory("s", number + 1, ""))


def killed_while_writing(path: Path, boot_id: str = BOOT, frames: int = 20) -> str:
    """Have another process write a log and die; return the log's id."""
    script = f"""
import os, signal
from pathlib import Path
from collectors.log.sqlite import SqliteLog
from collectors.log.store import SessionMemory
log = SqliteLog(Path({str(path)!r}), "host", {boot_id!r})
for i in range({frames}):
    log.append([("notes/host", bytes([i % 256]))], i, SessionMemory("s", i + 1, ""))
print(log.log_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert run.returncode == -9, run.stderr
    return run.stdout.strip()


@contextlib.contextmanager
def full_disk(bytes_free: int) -> Iterator[None]:
    """Let no file of this process grow past a size, which fails like a disk without room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_offsets_count_from_0_without_holes_over_a_restart(path: Path) -> None:
    log = opened(path)
    first = log.append([("a", b"1"), ("b", b"2")], 7)
    log_id = log.log_id
    log.close()
    log = opened(path)
    assert log.started_over is None
    second = log.append([("c", b"3")], 8)
    assert [frame.offset for frame in (*first, *second)] == [0, 1, 2]
    assert log.fetch(0, 10, 10**6) == [*first, *second]
    assert log.log_id == log_id == second[0].log_id
    log.close()


def test_a_killed_process_loses_nothing_it_had_appended(path: Path) -> None:
    log_id = killed_while_writing(path)
    log = opened(path)
    assert (log.log_id, log.started_over) == (log_id, None)
    assert [frame.body for frame in log.fetch(0, 100, 10**6)] == [bytes([i]) for i in range(20)]
    assert log.sessions() == [SessionMemory("s", 20, "")]
    log.close()


def test_after_a_loss_of_power_the_log_begins_anew_with_another_id(path: Path) -> None:
    log_id = killed_while_writing(path)
    log = opened(path, "boot-2")
    assert log.log_id != log_id
    assert log.started_over is not None
    assert log.extent.next_offset == 0
    log.close()


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_log_whose_newest_part_was_removed_begins_anew(path: Path, restarts: int) -> None:
    for _ in range(restarts):
        opened(path).close()
    log_id = killed_while_writing(path)
    path.with_name("log.sqlite-wal").unlink()
    log = opened(path)
    assert log.log_id != log_id
    log.close()


@pytest.mark.parametrize("at", [-1, -3000, -5000])
def test_a_log_whose_tail_was_cut_begins_anew(path: Path, at: int) -> None:
    log_id = killed_while_writing(path)
    wal = path.with_name("log.sqlite-wal")
    wal.write_bytes(wal.read_bytes()[:at])
    log = opened(path)
    assert log.log_id != log_id
    assert log.started_over == "it was cut: frames 19 to 19 are gone"
    log.close()


def test_a_log_that_was_removed_or_exchanged_begins_anew(path: Path) -> None:
    log = opened(path)
    fill(log, 3)
    log.close()
    path.rename(path.with_name("kept"))
    log = opened(path)
    assert log.started_over == "it is gone"
    log.close()
    path.with_name("kept").rename(path)
    log = opened(path)
    assert (log.started_over or "").startswith("it was exchanged")
    log.close()


@pytest.mark.sweep
def test_a_flipped_bit_never_goes_unseen(path: Path) -> None:
    """Whatever it hits: the log is what it was, or another; never one that lacks or alters a frame."""
    log_id = killed_while_writing(path, frames=400)
    files = [path.with_name(f"log.sqlite{suffix}") for suffix in ("", "-wal", "-mark")]
    sound = {file: file.read_bytes() for file in files}
    rng = random.Random(1)
    for _ in range(60):
        for file, content in sound.items():
            file.write_bytes(content)
        damaged = rng.choice(files[:2])
        broken = bytearray(sound[damaged])
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        damaged.write_bytes(broken)
        log = opened(path)
        if log.log_id == log_id:
            assert [frame.body for frame in log.fetch(0, 1000, 10**7)] == [
                bytes([i % 256]) for i in range(400)
            ]
            assert log.sessions() == [SessionMemory("s", 400, "")]
        else:
            assert log.started_over is not None
            assert log.extent.next_offset == 0
        log.close()


def test_a_log_whose_file_system_lost_its_newest_part_is_never_continued(path: Path, tmp_path: Path) -> None:
    memory, there = tmp_path / "memory", tmp_path / "there"
    memory.mkdir()
    there.mkdir()
    path = there / "log.sqlite"
    log = SqliteLog(path, "host", BOOT, BootMark(path, memory))
    fill(log, 20)
    shutil.copytree(
        there, tmp_path / "on disk"
    )  # what had reached the disk, the mark beside the log included
    fill(log, 30)
    log.close()
    for attempt in range(2):  # the mark stays over starts that go well
        again = SqliteLog(path, "host", BOOT, BootMark(path, memory))
        assert (again.started_over, again.extent.next_offset) == (None, 50), attempt
        again.close()
    shutil.rmtree(there)
    (tmp_path / "on disk").rename(there)
    again = SqliteLog(path, "host", BOOT, BootMark(path, memory))
    assert again.started_over == "it was cut: frames 20 to 49 are gone"
    assert again.log_id != log.log_id
    again.close()


def test_a_mark_in_memory_is_ours_alone_and_goes_with_its_log(path: Path, tmp_path: Path) -> None:
    opened(path).close()
    mark = BootMark(path, tmp_path)
    mark.put(b"x" * 24)
    mark.close()
    (file,) = tmp_path.glob("zeus-stream-mark-*")
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o666)
    assert BootMark(path, tmp_path).read() == b""  # another user could have written it
    BootMark(tmp_path / "other", tmp_path).close()
    assert file.exists()
    path.unlink()
    BootMark(tmp_path / "third", tmp_path).close()
    assert not file.exists()
    assert BootMark(path, tmp_path / "no such memory").read() == b""


def test_a_broken_file_is_moved_aside_and_another_log_begun(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to be one" * 100)
    log = opened(path)
    assert log.started_over is not None
    fill(log, 1)
    log.close()
    assert path.with_name("log.sqlite.old").read_bytes().startswith(b"not a database")


def test_another_programs_database_is_moved_aside_not_written_into(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (x)")
        db.commit()
    log = opened(path)
    assert log.started_over == "it is not a log of zeus-stream"
    log.close()
    with contextlib.closing(sqlite3.connect(path.with_name("log.sqlite.old"))) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


def test_the_oldest_go_when_they_are_too_old_but_the_newest_keeps_the_count(path: Path) -> None:
    log = opened(path)
    fill(log, 5, t_ns=0)
    fill(log, 5, t_ns=HOUR_NS)
    log.prune(HOUR_NS + 1, 10**9, HOUR_NS)
    assert log.extent.first_offset == 5
    log.prune(10 * HOUR_NS, 10**9, HOUR_NS)
    assert log.extent.first_offset == 9
    log.close()
    log = opened(path)
    assert log.append([("a", b"")], 0)[0].offset == 10
    log.close()


def test_frames_of_an_earlier_boot_are_as_old_as_this_one_at_least(path: Path) -> None:
    log = opened(path)
    fill(log, 5, t_ns=1000 * HOUR_NS)
    log.close()
    log = opened(path, "boot-2")
    fill(log, 2, t_ns=HOUR_NS)
    assert log.prune(HOUR_NS, 10**9, HOUR_NS) == 0
    assert log.prune(HOUR_NS + 1, 10**9, HOUR_NS) == 5
    log.close()


def test_pruned_room_is_used_again(path: Path) -> None:
    log = opened(path)
    sizes = []
    for _ in range(6):
        fill(log, CHUNK, size=1000)
        while log.prune(0, 500_000, HOUR_NS):
            pass
        sizes.append(path.stat().st_size)
    assert sizes[-1] < 3_000_000
    log.close()


def test_without_room_nothing_of_a_transaction_is_kept_and_later_it_works_again(path: Path) -> None:
    log = opened(path)
    fill(log, 10)
    with full_disk(path.with_name("log.sqlite-wal").stat().st_size + 100_000):
        with pytest.raises(StorageError, match="could not be written"):
            fill_pairs(log, 100)
        failed_at = log.extent.next_offset
        with pytest.raises(StorageError):
            log.append([("a", bytes(50_000))], 0)
    (memory,) = log.sessions()
    assert failed_at == 10 + 2 * memory.next_sequence
    assert log.append([("after", b"")], 0)[0].offset == failed_at
    assert [frame.offset for frame in log.fetch(0, 1000, 10**7)] == list(range(failed_at + 1))
    log.close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        opened(tmp_path / "nowhere" / "log.sqlite")


def test_sessions_are_remembered_longest_silent_first_and_bounded(path: Path) -> None:
    log = opened(path)
    for number in range(MAX_SESSIONS + 10):
        log.append([("a", b"")], 0, SessionMemory(f"s{number}", 1, "about"))
    log.append([("a", b"")], 0, SessionMemory("s50", 2, "again"))
    log.prune(0, 10**9, HOUR_NS)
    kept = log.sessions()
    assert MAX_SESSIONS <= len(kept) <= MAX_SESSIONS + 1
    assert kept[0].session != "s0"
    assert kept[-1] == SessionMemory("s50", 2, "again")
    log.close()


def flooded(log: SqliteLog) -> None:
    """Write readings, 50 events of user 2 and, among them, 2,000 of user 1; prune to 100 kB."""
    for number in range(100):
        log.append([("events/host/flood", bytes(200))] * 20, number, written_by=1)
        log.append([("readings/host", bytes(100))], number)
        if number % 2 == 0:
            log.append([("events/host/other", bytes(100))], number, written_by=2)
        while log.prune(number, 100_000, HOUR_NS):
            pass


def everything(log: SqliteLog) -> list[Frame | Break]:
    """Return what a follower of the whole log is given."""
    extent, sequencer = log.extent, FollowerSequence(log.log_id, 0)
    given = list(
        sequencer.welcome(
            replace(WELCOME, incarnation="i", log_id=log.log_id, next_offset=extent.next_offset)
        )
    )
    while (wanted := sequencer.wanted()) is not None:
        frames = log.fetch(wanted.first_offset, wanted.count, 10**6)
        first = frames[0].offset if frames else wanted.first_offset
        given += sequencer.fetched(
            Fetched(log.log_id, first, extent.first_offset, extent.next_offset), frames
        )
    return given


def test_a_flood_displaces_only_events_of_who_floods(path: Path) -> None:
    log = opened(path)
    flooded(log)
    topics = Counter(part.topic for part in everything(log) if isinstance(part, Frame))
    assert topics["readings/host"] == 100
    assert topics["events/host/other"] == 50
    assert 0 < topics["events/host/flood"] < 500
    assert log.size_bytes <= 100_000
    log.close()


def test_a_follower_is_given_each_frame_in_order_and_each_hole(path: Path) -> None:
    log = opened(path)
    flooded(log)
    at = 0
    for part in everything(log):
        match part:
            case Frame():
                assert part.offset == at
                at += 1
            case Break():
                assert part.first_offset == at
                at += part.count
    assert at == log.extent.next_offset
    log.close()


def test_holes_and_shares_survive_a_restart(path: Path) -> None:
    log = opened(path)
    flooded(log)
    before, extent, size = everything(log), log.extent, log.size_bytes
    log.close()
    log = opened(path)
    assert log.started_over is None
    assert (everything(log), log.extent, log.size_bytes) == (before, extent, size)
    flooded(log)
    topics = Counter(part.topic for part in everything(log) if isinstance(part, Frame))
    assert topics["readings/host"] == 200
    log.close()


def test_a_hole_that_nobody_made_is_damage(path: Path) -> None:
    log = opened(path)
    flooded(log)
    log.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute('DELETE FROM frames WHERE "offset" = (SELECT max("offset") - 3 FROM frames)')
        db.commit()
    log = opened(path)
    assert log.started_over is not None
    assert "is gone" in log.started_over
    log.close()


def test_readings_alone_are_pruned_by_their_age_in_the_log(path: Path) -> None:
    log = opened(path)
    log.append([("events/host/job", bytes(100))], 0, written_by=1)
    for _ in range(50):
        log.append([("readings/host", bytes(200))] * 20, 0)
        while log.prune(0, 100_000, HOUR_NS):
            pass
    assert log.extent.first_offset > 500
    assert log.size_bytes <= 100_000
    log.close()


def test_the_write_ahead_log_is_brought_in_while_the_log_is_written(path: Path) -> None:
    """The collector's event loop does not do it: the thread of the log does."""
    with contextlib.closing(opened(path)) as log:
        fill(log, 50, size=200_000)
        deadline_s = time.monotonic() + 300
        while path.stat().st_size < DUE_BYTES:
            assert time.monotonic() < deadline_s
            fill(log, 1)
            time.sleep(0.01)
        frames = log.extent.next_offset
        assert path.with_name("log.sqlite-wal").stat().st_size < INLINE_PAGES * PAGE_BYTES
    with contextlib.closing(opened(path, "boot-2")) as log:
        assert (log.started_over, log.extent.next_offset) == (None, frames)
