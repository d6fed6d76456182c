"""Hosts that an analyzer follows for a shard: of runs that are open, or ended while it was away."""

import pytest

from analyzers.shards.shard import Progress, begin_of, first_offsets
from zeus_stream.broker.requests import Announced, AnnouncedRun, EndedRun
from zeus_stream.protocol import codec
from zeus_stream.protocol.fields import shard_of
from zeus_stream.protocol.notes import Notes

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
    progress = Progress(interpreted, unfinished)
    firsts = first_offsets({"north": host}, SHARD, SHARDS, progress.unmeasured)
    found = begin_of(host, firsts["north"], interpreted).first if firsts else None
    assert found == begin


def test_a_host_is_followed_for_an_ended_run_until_its_last_frame_is_interpreted() -> None:
    host = announced((), (ended_run(40, 60),))
    progress = Progress({"log": 50}, ("s40",))
    progress.follow(host)
    progress.reach("log", 59)
    assert first_offsets({"north": host}, SHARD, SHARDS, progress.unmeasured) == {"north": 40}
    progress.reach("log", 60)
    assert first_offsets({"north": host}, SHARD, SHARDS, progress.unmeasured) == {}
