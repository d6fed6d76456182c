"""A job that recurs, and a run, belong to their user."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.memory_rows import read_owners
from analyzers.batch_size.known_jobs import KnownJobs
from analyzers.results.memory import KnownOwners, Memory
from analyzers.results.rows import JobRow, RunRow, TryRow
from tests.analyzers.archives import RUN
from tests.analyzers.batch_size.test_history import Turns
from tests.analyzers.batch_size.test_tracker import WANTED, Heard, again, training
from tests.empty_archive import archive_at
from zeus_stream.protocol.events import Event, RunStarted
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.settings import Settings

ANNA, OTTO = 1001, 1002
Stream = list[tuple[Frame, Body]]


def of_user(frames: Iterable[tuple[Frame, Body]], uid: int) -> Stream:
    """Return the same training by another user."""
    return [(frame, replace(body, uid=uid) if isinstance(body, Events) else body) for frame, body in frames]


@pytest.fixture(scope="module")
def annas() -> Stream:
    return of_user(training(), ANNA)


def test_another_user_s_training_of_the_same_name_touches_nothing_that_was_learned(annas: Stream) -> None:
    other = of_user(training(wanted=replace(WANTED, target=0.95)), OTTO)
    heard = Heard(Turns()).hear(annas).hear(again(other, 1)).hear(of_user(again(annas, 2), ANNA))
    jobs = [row for row in heard.outputs if isinstance(row, JobRow)]
    assert [(row.job, row.version) for row in jobs] == [("nightly", 1), ("nightly (user 1002)", 1)]
    tries = {(row.job, row.number): row for row in heard.outputs if isinstance(row, TryRow)}
    assert sorted(tries) == [("nightly", 1), ("nightly", 2), ("nightly (user 1002)", 1)]


def test_a_job_is_its_user_s_after_another_start(annas: Stream) -> None:
    before = Heard(Turns()).hear(annas)
    known = replace(before.known, owners=KnownOwners(jobs={"nightly": ANNA}))
    after = Heard(Turns(), known).hear(again(of_user(annas, OTTO), 1))
    assert [row.job for row in after.outputs if isinstance(row, JobRow)] == ["nightly (user 1002)"]


def test_a_shared_job_is_every_user_s(annas: Stream) -> None:
    heard = Heard(Turns(), shared={"nightly"}).hear(annas)
    heard.hear(again(of_user(annas, OTTO), 1))
    assert {(row.job, row.number) for row in heard.outputs if isinstance(row, TryRow)} == {
        ("nightly", 1),
        ("nightly", 2),
    }


@pytest.mark.parametrize(
    ("job", "uid", "name"),
    [
        pytest.param("nightly", ANNA, "nightly", id="its owner's"),
        pytest.param("nightly", OTTO, "nightly (user 1002)", id="another user's"),
        pytest.param("nightly", None, "nightly", id="whose it is is not known"),
        pytest.param("new", OTTO, "new", id="nobody's yet"),
        pytest.param(
            "taken",
            OTTO,
            "taken (user 1002)",
            id="another user's, in which a third has taken the name in advance",
        ),
    ],
)
def test_the_name_of_a_user_s_job(job: str, uid: int | None, name: str) -> None:
    owners = {"nightly": ANNA, "taken": ANNA, "taken (user 1002)": ANNA}
    assert KnownJobs(Memory(owners=KnownOwners(jobs=owners)), frozenset()).name_of(job, uid) == name


def test_the_archive_knows_whose_a_job_is(tmp_path: Path, annas: Stream) -> None:
    tried = Heard(Turns()).hear(annas).tries[0]
    with_uid = replace(RUN, session=tried.session, uid=ANNA)
    archive = DuckdbFile.open(archive_at(tmp_path / "energy.duckdb"), Settings())
    try:
        assert archive.memory().owners == KnownOwners()
        archive.put([], [with_uid, tried], {}, replaying=True)
        other = replace(with_uid, session="otto", uid=OTTO, began_wall_ns=with_uid.began_wall_ns + 1)
        archive.put([], [other], {}, replaying=True)
        owners = archive.memory().owners
        assert owners.jobs == {"nightly": ANNA, with_uid.job: ANNA}
        assert owners.runs == {with_uid.run: ANNA}
        assert owners.hosts == {tried.session: with_uid.host, "otto": with_uid.host}
        with archive.file.cursor() as cursor:
            assert read_owners(cursor, 1).hosts == {"otto": with_uid.host}
    finally:
        archive.close()


def test_a_run_of_another_user_on_the_same_host_is_a_run_of_its_own(annas: Stream) -> None:
    """It begins while the first goes on, as its rank 1 might, with the first's own words."""
    middle = len(annas) // 2
    other = [
        (frame, replace(body, session="otto", uid=OTTO))
        for frame, body in annas[:middle]
        if isinstance(body, Events)
    ]
    heard = Heard(Turns()).hear(annas[:middle]).hear(other)
    runs = [row for row in heard.outputs if isinstance(row, RunRow)]
    assert {row.run for row in runs if row.session == "otto"} == {"run (user 1002)"}
    assert {row.run for row in runs if row.session != "otto"} == {"run"}


@pytest.mark.parametrize("shared", [False, True])
def test_a_run_of_another_user_on_another_host_is_a_run_of_its_own(annas: Stream, *, shared: bool) -> None:
    """Unless an administrator shares its job."""
    middle, job = len(annas) // 2, _job_of(annas)
    other = [
        (
            replace(frame, host="elsewhere", log_id="another"),
            replace(body, session="otto", uid=OTTO),
        )
        for frame, body in annas[:middle]
        if isinstance(body, Events)
    ]
    heard = Heard(Turns(), shared={job} if shared else ()).hear(annas[:middle]).hear(other)
    runs = {row.run for row in heard.outputs if isinstance(row, RunRow) and row.session == "otto"}
    assert {name.startswith("run (user 1002)") for name in runs} == {not shared}


def test_a_run_of_another_user_that_begins_when_the_first_is_over_is_a_run_of_its_own(annas: Stream) -> None:
    other = again(of_user(annas, OTTO), 1)
    named = [
        (frame, replace(body, events=tuple(map(_of_the_same_name, body.events))))
        if isinstance(body, Events)
        else (frame, body)
        for frame, body in other
    ]
    runs = [row for row in Heard(Turns()).hear(annas).hear(named).outputs if isinstance(row, RunRow)]
    names = {(row.uid, row.run, row.job) for row in runs}
    assert names == {(ANNA, "run", "job"), (OTTO, "run (user 1002)", "job (user 1002)")}


def _of_the_same_name(event: Event | Unknown) -> Event | Unknown:
    return replace(event, run="run") if isinstance(event, RunStarted) else event


def _job_of(stream: Stream) -> str:
    events = [event for _, body in stream if isinstance(body, Events) for event in body.events]
    return next(event.job for event in events if isinstance(event, RunStarted))
