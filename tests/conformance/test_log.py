"""What holds for every log, and for every way to read one: one suite, which each of them passes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.log.store import LogStore, SessionMemory
from tests.conformance.logs import LOGS, SOURCES, Read
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Break, Frame, Part
from zeus_stream.protocol.notes import ClockAnchored, Notes

DAY_NS = 86_400 * 10**9


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, zeus_dir: Path) -> Iterator[LogStore]:
    opened = LOGS[request.param](zeus_dir)
    yield opened
    opened.close()


@pytest.fixture(params=SOURCES)
def read(request: pytest.FixtureRequest, log: LogStore, zeus_dir: Path) -> Iterator[Read]:
    with SOURCES[request.param](log, zeus_dir) as opened:
        yield opened


def write(log: LogStore, count: int) -> list[Frame]:
    """Append frames, each of one note that says its own offset."""
    begin = log.extent.next_offset
    bodies = [codec.encode(Notes((ClockAnchored(n, n, 0),))) for n in range(begin, begin + count)]
    return [frame for body in bodies for frame in log.append([("notes/host", body)], t_ns=7)]


def offsets(parts: list[Part]) -> list[int]:
    """Return the offsets that are there or named as gone, in order."""
    return [
        offset
        for part in parts
        for offset in (
            range(part.first_offset, part.first_offset + part.count)
            if isinstance(part, Break)
            else [part.offset]
        )
    ]


def test_offsets_have_no_holes_and_frames_come_back_as_they_were(log: LogStore) -> None:
    assert log.extent.first_offset == log.extent.next_offset == 0
    frames = log.append([("notes/host", b"a"), ("events/host/job", b"b" * 100)], t_ns=5)
    frames += log.append([("notes/host", b"")], t_ns=6)
    assert [frame.offset for frame in frames] == [0, 1, 2]
    assert {frame.log_id for frame in frames} == {log.log_id}
    assert log.fetch(0, 10, 10**6) == frames
    assert (log.extent.first_offset, log.extent.next_offset) == (0, 3)


def test_a_fetch_has_at_least_one_frame_and_keeps_to_its_bounds(log: LogStore) -> None:
    frames = log.append([("notes/host", b"x" * 100)] * 10, t_ns=5)
    assert log.fetch(4, 3, 10**6) == frames[4:7]
    assert log.fetch(4, 10, 1) == frames[4:5], "one, though it is larger than that"
    assert 1 <= len(log.fetch(0, 10, 450)) <= 4
    assert log.fetch(10, 5, 10**6) == []


def test_the_oldest_frames_go_first_and_the_newest_stays(log: LogStore) -> None:
    frames = [log.append([("notes/host", b"x" * 1000)], t_ns=n)[0] for n in range(100)]
    while log.prune(100, 20_000, DAY_NS):
        pass
    assert log.size_bytes <= 20_000
    first = log.extent.first_offset
    assert log.fetch(0, 1000, 10**6) == frames[first:], "a fetch from before them begins with the oldest"
    while log.prune(2 * DAY_NS, 10**9, DAY_NS):
        pass
    assert log.extent.next_offset == 100
    assert log.fetch(0, 1000, 10**6)[-1] == frames[-1]


def test_a_session_is_remembered_with_its_frames(log: LogStore) -> None:
    first, other = SessionMemory("a", 3, "about a"), SessionMemory("b", 1, "about b")
    log.append([("events/host/job", b"1")], t_ns=1, session=first, written_by=1000)
    log.append([("events/host/job", b"2")], t_ns=2, session=other, written_by=1000)
    log.append([], t_ns=3, session=SessionMemory("b", 2, "about b"))
    assert log.sessions() == [first, SessionMemory("b", 2, "about b")]


def test_a_source_has_every_frame_in_order_and_unchanged(log: LogStore, read: Read) -> None:
    frames = write(log, 40)
    assert read(0) == frames
    more = write(log, 3)
    assert read(40) == more
    assert read(None)[-3:] == more


def test_a_source_names_what_is_gone_and_goes_on_behind_it(log: LogStore, read: Read) -> None:
    frames = write(log, 60)
    while log.prune(10, log.size_bytes // 2, DAY_NS):
        pass
    first = log.extent.first_offset
    assert first > 5
    parts = read(5)
    assert offsets(parts) == list(range(5, 60)), "frames and holes have no hole between them"
    assert [part for part in parts if isinstance(part, Frame)] == frames[first:]
    gone = [part for part in parts if isinstance(part, Break)]
    assert [(part.log_id, part.first_offset, part.count) for part in gone] == [(log.log_id, 5, first - 5)]
    assert all(part.reason for part in gone)


def test_a_source_without_a_place_begins_with_the_oldest_frame(log: LogStore, read: Read) -> None:
    frames = write(log, 60)
    while log.prune(10, log.size_bytes // 2, DAY_NS):
        pass
    assert read(None) == frames[log.extent.first_offset :]
