"""Hosts that an analyzer follows for a shard: of runs that are open, or ended while it was away."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from analyzers.shards.shard import InterpretedShard, begin_of, spans_of
from analyzers.shards.sharded_analyzer import with_others
from collectors.broker.announced_sessions import LEAD_FRAMES, EndedSessions
from collectors.ingest.sessions import PublisherSession
from zeus_stream.broker.requests import MAX_ENDED, Announced, AnnouncedRun, EndedRun
from zeus_stream.protocol import codec
from zeus_stream.protocol.fields import shard_of
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.snapshots import HostNow

SHARDS = 4
JOB = "resnet"
SHARD = shard_of(JOB, SHARDS)


def announced(runs: tuple[AnnouncedRun, ...] = (), ended: tuple[EndedRun, ...] = ()) -> Announced:
    return Announced(
        host="north", log_id="log", incarnation="i", standing=codec.encode(Notes(())), runs=runs, ended=ended
    )


def open_run(first: int) -> AnnouncedRun:
    return AnnouncedRun(session=f"s{first}", run="r", job=JOB, first_offset=first)


def ended_run(first: int, after: int, job: str = JOB) -> EndedRun:
    return EndedRun(session=f"s{first}", job=job, first_offset=first, next_offset=after)


@pytest.mark.parametrize(
    ("interpreted", "unfinished", "host", "begin"),
    [
        pytest.param({}, (), announced((open_run(20),)), 20, id="from the beginning of an open run"),
        pytest.param({"log": 30}, (), announced((open_run(20),)), 30,
                     id="from the checkpoint in an open run"),
        pytest.param({"log": 30}, ("s20",), announced((), (ended_run(20, 50),)), 30,
                     id="from the checkpoint, for a run that has ended since"),
        pytest.param({"log": 30}, ("s20",), announced((open_run(45),), (ended_run(20, 50),)), 30,
                     id="from the checkpoint, though a later run is open and began after it"),
        pytest.param({"log": 30}, (), announced((), (ended_run(40, 60),)), 40,
                     id="from the beginning of a run that began and ended since"),
        pytest.param({"log": 60}, (), announced((), (ended_run(40, 60),)), None,
                     id="not for a run that is measured"),
        pytest.param({"log": 60}, ("s40",), announced((), (ended_run(40, 60),)), 60,
                     id="for the last windows of a run whose events are all interpreted"),
        pytest.param({"another": 90}, (), announced((), (ended_run(40, 60),)), 40, id="of a log that is new"),
        pytest.param({}, (), announced((), (ended_run(40, 60, "another job"),)), None,
                     id="not for other shards"),
    ],
)  # fmt: skip
def test_a_shard_follows_a_host_from_where_its_runs_are_not_measured(
    interpreted: dict[str, int], unfinished: tuple[str, ...], host: Announced, begin: int | None
) -> None:
    assert shard_of("another job", SHARDS) != SHARD
    progress = InterpretedShard(interpreted, unfinished)
    first = progress.first_offset("log", spans_of(host, SHARD, SHARDS))
    assert (None if first is None else begin_of(host, first, interpreted).first) == begin


def test_a_host_is_followed_for_an_ended_run_until_its_last_frame_is_interpreted() -> None:
    spans = spans_of(announced((), (ended_run(40, 60),)), SHARD, SHARDS)
    progress = InterpretedShard({"log": 50}, ("s40",))
    progress.follow(spans)
    progress.reach("log", 59)
    assert progress.first_offset("log", spans) == 40
    progress.reach("log", 60)
    assert progress.first_offset("log", spans) is None


LENGTH = 1_000
"""Frames of a session in the log of `host_of`."""


def host_of(jobs: Sequence[str]) -> Announced:
    """Return the announcement of a host on which sessions of these jobs ended, one after the other."""
    sessions = [
        PublisherSession(
            session=f"s{at}", job=job, over=True, first_offset=at * LENGTH, last_offset=(at + 1) * LENGTH
        )
        for at, job in enumerate(jobs)
    ]
    ended = EndedSessions()
    ended.look(sessions, 0)
    assert len(ended.last) == min(len(jobs), MAX_ENDED)
    return replace(announced((), ended.last), earlier=ended.earlier)


def first_of(host: Announced, interpreted: int) -> int | None:
    host = codec.decode(codec.encode(host), Announced)
    return InterpretedShard({"log": interpreted}, ()).first_offset("log", spans_of(host, SHARD, SHARDS))


def test_no_session_is_left_out_however_many_have_ended_since() -> None:
    host = host_of(["another job", JOB, JOB, *(f"job {at}" for at in range(900))])
    assert first_of(host, interpreted=0) == LENGTH - LEAD_FRAMES
    assert first_of(host, interpreted=2 * LENGTH) == LENGTH - LEAD_FRAMES
    others = spans_of(host, SHARD, SHARDS)
    named = [f"job {at}" for at in range(900) if shard_of(f"job {at}", SHARDS) == SHARD]
    assert len(others) == len(named) + 1


def test_earlier_sessions_of_a_job_are_read_again_if_their_last_windows_may_be_missing() -> None:
    host = host_of([JOB, *["another job"] * 40])
    assert first_of(host, interpreted=LENGTH) == 0
    assert first_of(host, interpreted=LENGTH + LEAD_FRAMES) is None


def test_an_announcement_of_many_sessions_of_few_jobs_is_short() -> None:
    few, many = host_of([JOB] * 40), host_of([JOB] * 900)
    assert len(codec.encode(many)) - len(codec.encode(few)) < 200


def test_a_host_that_is_no_longer_at_the_broker_is_silent_and_not_forgotten() -> None:
    """Its series ended after 100 s, before the alert of a silent host could fire."""
    north = HostNow(host="north", state="connected", trouble="")
    hosts = with_others([north], {"north", "south", "west"}, {"north", "west"})
    assert [(each.host, each.state) for each in hosts] == [
        ("north", "connected"),
        ("south", "silent"),
        ("west", "connected"),
    ]
