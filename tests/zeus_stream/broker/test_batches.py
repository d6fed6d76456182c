"""Batches: what goes in comes out, and nothing else is taken for one."""

import zlib
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zeus_stream.broker import batches
from zeus_stream.errors import MalformedError
from zeus_stream.protocol.frames import Frame, encode_frame


def frames(first: int, count: int, host: str = "alpha") -> list[Frame]:
    return [
        Frame(log_id="log", offset=first + n, host=host, t_ns=n, topic=f"readings/{host}", body=b"x" * n)
        for n in range(count)
    ]


@pytest.mark.sweep
@given(st.integers(0, 2**40), st.integers(1, 20), st.text(min_size=1, max_size=50))
def test_what_goes_in_comes_out(first: int, count: int, host: str) -> None:
    given_frames = frames(first, count, host)
    batch = batches.decode(
        batches.encode(first // 2, given_frames), batches.subject_of("site", host, 3), "site"
    )
    assert batch.frames == tuple(given_frames)
    assert (batch.log_id, batch.host, batch.after, batch.next_offset) == (
        "log",
        host,
        first // 2,
        first + count,
    )


@given(st.text(min_size=1, max_size=60))
@example("a.b")
@example("*")
@example("> x")
def test_a_host_is_one_token_of_a_subject_and_no_wildcard(host: str) -> None:
    subject = batches.subject_of("si.te", host, 3)
    assert len(subject.split(".")) == 5
    assert not set(subject) & set("*> \t\r\n")
    assert subject.startswith(batches.subjects_of("si.te", 3).removesuffix("*"))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_malformed(message: bytes) -> None:
    with pytest.raises(MalformedError):
        batches.decode(message, batches.subject_of("site", "alpha", 3), "site")


def made(*parts: Any) -> bytes:
    packed: bytes = msgpack.packb(list(parts))
    return packed


def body(*listed: Frame) -> bytes:
    return zlib.compress(msgpack.packb([list(encode_frame(frame)) for frame in listed]))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        pytest.param(made(1, "log", "beta", 0, body(*frames(0, 2, "beta"))), "not the subject of host beta",
                     id="a host with another host's credential"),
        pytest.param(made(1, "log", "alpha", 0, body(*frames(0, 2, "beta"))), "another log or host",
                     id="frames of another host"),
        pytest.param(made(1, "log", "alpha", 0, body(frames(0, 1)[0], frames(2, 1)[0])), "have a hole",
                     id="a hole"),
        pytest.param(made(1, "log", "alpha", 0, body()), "has no frames", id="no frames"),
        pytest.param(made(1, "log", "alpha", "0", body(*frames(0, 1))), "no offset", id="no offset"),
        pytest.param(made(2, "log", "alpha", 0, body(*frames(0, 1))), "another version", id="a later one"),
        pytest.param(made(1, "log", "alpha", 0, zlib.compress(bytes(batches.MAX_UNPACKED + 1))), "too long",
                     id="a bomb"),
        pytest.param(made(1, "log", "alpha", 0, body(*frames(0, 1))[:-5]), "could not be read", id="cut off"),
    ],
)  # fmt: skip
def test_what_is_no_batch_of_that_host_is_malformed(message: bytes, why: str) -> None:
    with pytest.raises(MalformedError, match=why):
        batches.decode(message, batches.subject_of("site", "alpha", 3), "site")


def test_hosts_spread_over_all_parts_and_stay_where_they_are() -> None:
    parts = [batches.part_of(f"node{number:04}") for number in range(1000)]
    assert set(parts) == set(range(batches.PARTS))
    assert parts[:4] == [batches.part_of(f"node{number:04}") for number in range(4)]
    twice = [batches.part_of(f"node{number:04}", 2 * batches.PARTS) for number in range(1000)]
    assert [part % batches.PARTS for part in twice] == parts, "each part is split in two"
