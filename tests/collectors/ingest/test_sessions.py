import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from collectors.device import Description
from collectors.ingest.sessions import (
    MAX_BYTES_PER_S,
    MAX_MESSAGES_PER_S,
    MAX_PROCESS_SESSIONS,
    MAX_SENDERS,
    PROCESSES_OF_USER,
    PublisherSession,
    Senders,
    admit,
    allocation_of,
    check,
    from_json,
    gives_way,
    left_behind,
    may_continue,
    receive,
    resolve,
)
from tests.messages import DESCRIPTION, RUN_STARTED
from zeus_stream.errors import MalformedError
from zeus_stream.protocol.events import Batch, EpochBegan, Event, JobAllocation, RunEnded, StepBoundary
from zeus_stream.protocol.fields import Unknown

SECOND_NS = 1_000_000_000
STARTED = replace(RUN_STARTED, gpus=("index:1",), pid=7)


def device(index: int, gpu: str, driver: str = "550") -> Description:
    return replace(
        DESCRIPTION,
        gpu=gpu,
        index=index,
        name="A40",
        driver=driver,
        max_limit_mw=300_000,
        default_limit_mw=300_000,
    )


TWO = (device(0, "GPU-aa11"), device(1, "GPU-aa22"))
DIVIDED = replace(TWO[0], mig=True, tenants=("MIG-b1", "MIG-b2"))
HOST = (device(0, "CPU-h-package-0", "powercap"), device(1, "DRAM-h-package-0", "powercap"))


@given(
    count=st.integers(1, 30),
    sends=st.lists(st.tuples(st.integers(0, 29), st.integers(1, 30)), max_size=60),
)
def test_whatever_is_sent_again_or_too_early_each_event_is_taken_once_and_in_order(
    count: int, sends: list[tuple[int, int]]
) -> None:
    events: list[Event] = [STARTED, *(EpochBegan(0, index) for index in range(1, count))]
    session, taken = PublisherSession(session="s"), list[object]()
    for first, many in [*sends, (0, count)]:
        batch = Batch("s", first, tuple(events[first : first + many]))
        session, new = receive(session, batch)
        taken += new
        assert session.next_sequence == len(taken)
    assert taken == events


ALLOCATED = replace(
    STARTED, pid=0, allocation=JobAllocation(job_id="12", uid=1000, user_name="anna", node="n1")
)


@pytest.mark.parametrize("sender", [0, 77])
def test_an_allocation_is_its_users_and_root_or_the_collector_speaks_for_it(sender: int) -> None:
    begun = allocation_of(Batch("a", 0, (ALLOCATED,)), (sender, 5), own_uid=77)
    assert begun is not None
    assert (begun.uid, begun.pid, begun.allocation) == (1000, 0, True)
    assert may_continue(begun, (sender, 6), 77), "its epilog is another process"
    assert not may_continue(begun, (1000, 6), 77)
    assert allocation_of(Batch("s", 0, (STARTED,)), (sender, 5), own_uid=77) is None


def test_a_user_reports_no_allocation() -> None:
    with pytest.raises(MalformedError, match="user 1000 may report no allocation"):
        allocation_of(Batch("a", 0, (ALLOCATED,)), (1000, 5), own_uid=77)


def test_a_gpu_that_another_allocation_of_the_user_has_is_not_given_back() -> None:
    ended = PublisherSession(session="a", uid=1, allocation=True, over=True, gpus=("GPU-1", "GPU-2"))
    held = PublisherSession(session="b", uid=1, allocation=True, gpus=("GPU-2",))
    runs = [
        PublisherSession(session=f"r{gpu}{uid}", uid=uid, gpus=(f"GPU-{gpu}",))
        for gpu in "12"
        for uid in (1, 2)
    ]
    assert [each.session for each in left_behind(ended, [ended, held, *runs])] == ["r11"]
    assert [each.session for each in left_behind(ended, [ended, *runs])] == ["r11", "r21"]


@pytest.mark.parametrize("events", [(EpochBegan(0, 0),), (STARTED, STARTED)])
def test_a_session_begins_once_and_with_its_run(events: tuple[Event, ...]) -> None:
    with pytest.raises(MalformedError, match="one RunStarted"):
        receive(PublisherSession(session="s"), Batch("s", 0, events))


def test_a_session_knows_its_run_and_its_end_and_survives_as_text() -> None:
    session, _ = receive(PublisherSession(session="s", uid=5, pid=7), Batch("s", 0, (STARTED, RunEnded(1))))
    assert (session.job, session.run, session.asked_gpus, session.over) == ("job", "run", ("index:1",), True)
    assert from_json(session.to_json()) == session


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("index:1",), (("GPU-aa22",), ())),
        (("index:all",), (("GPU-aa11", "GPU-aa22"), ())),
        (("GPU-aa2",), (("GPU-aa22",), ())),
        (("GPU-aa",), ((), ("GPU-aa",))),
        (("index:0", "index:0", "index:7"), (("GPU-aa11",), ("index:7",))),
        (("GPU-", "MIG-x"), ((), ("GPU-", "MIG-x"))),
        ((), ((), ())),
    ],
)
def test_what_a_run_names_becomes_uuids(
    asked: tuple[str, ...], expected: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    assert resolve(asked, TWO) == expected


@pytest.mark.parametrize(
    ("driver", "trusted", "owned", "may_command"),
    [
        pytest.param("550", {1000}, {}, True, id="a trusted user"),
        pytest.param("simulated", set(), {}, True, id="a simulated GPU is everybody's"),
        pytest.param("simulated, boxcar", set(), {}, True, id="and so is one whose counter is blind"),
        pytest.param("550", set(), {"GPU-aa22": True}, True, id="its process computes on it"),
        pytest.param("550", set(), {"GPU-aa22": False}, False, id="another's process does"),
        pytest.param("550", set(), {"GPU-aa22": None}, False, id="it cannot be seen"),
        pytest.param("550", {0}, {}, False, id="a user like any other"),
    ],
)
def test_a_run_may_command_the_gpus_that_are_its_own(
    *, driver: str, trusted: set[int], owned: dict[str, bool | None], may_command: bool
) -> None:
    devices = (device(0, "GPU-aa11", driver), device(1, "GPU-aa22", driver))
    session = PublisherSession(session="s", uid=1000, pid=7, asked_gpus=("index:1",))
    word = admit(session, devices, frozenset(trusted), owned)
    assert (word.gpus, word.may_command, word.settled) == (("GPU-aa22",), may_command, may_command)
    assert may_command or "--trust-uid 1000" in word.reason


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("MIG-b1",), (("GPU-aa11",), ())),
        (("MIG-b2", "MIG-b1"), (("GPU-aa11",), ())),
        (("MIG-GPU-aa11/3/0",), (("GPU-aa11",), ())),
        (("MIG-c1",), ((), ("MIG-c1",))),
        (("MIG-GPU-aa/3/0",), ((), ("MIG-GPU-aa/3/0",))),
    ],
)
def test_a_mig_instance_is_its_whole_gpu(
    asked: tuple[str, ...], expected: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    assert resolve(asked, (DIVIDED, TWO[1])) == expected


def test_one_of_several_tenants_may_not_command_the_gpu_they_share() -> None:
    session = PublisherSession(session="s", uid=1000, pid=7, asked_gpus=("MIG-b1",))
    word = admit(session, (DIVIDED,), frozenset(), {"GPU-aa11": True})
    assert not word.may_command
    assert "alone (MIG)" in word.reason
    alone = replace(DIVIDED, tenants=("MIG-b1",))
    assert admit(session, (alone,), frozenset(), {"GPU-aa11": True}).may_command


def test_behind_an_index_that_is_not_there_cuda_shows_no_gpu() -> None:
    assert resolve(("index:0", "index:9", "index:1"), TWO) == (("GPU-aa11",), ("index:9", "index:1"))


def test_parts_of_the_host_are_nobodys_to_name() -> None:
    assert resolve(("index:all",), HOST + TWO) == (("GPU-aa11", "GPU-aa22"), ())
    assert resolve(("index:0", "CPU-h-package-0"), HOST + TWO) == (("GPU-aa11",), ("CPU-h-package-0",))


def test_on_a_host_without_gpus_the_reason_is_the_host_and_no_name_of_a_device() -> None:
    session = PublisherSession(session="s", uid=1000, pid=7, asked_gpus=("index:all",))
    word = admit(session, HOST, frozenset(), {})
    assert (word.may_command, word.reason) == (False, "The collector measures no GPU.")


def test_a_run_that_also_owns_a_strangers_gpu_may_command_neither() -> None:
    session = PublisherSession(session="s", uid=1000, pid=7, asked_gpus=("index:all",))
    word = admit(session, TWO, frozenset(), {"GPU-aa11": True, "GPU-aa22": False})
    assert not word.may_command
    assert "GPU-aa22" in word.reason
    assert "GPU-aa11" not in word.reason


def test_a_process_that_sends_too_much_is_held_back_and_nobody_else_is() -> None:
    senders = Senders()
    assert all(senders.may_send((1, 1), 10, 0) for _ in range(MAX_MESSAGES_PER_S))
    assert not senders.may_send((1, 1), 10, SECOND_NS - 1)
    assert senders.may_send((1, 2), 10, SECOND_NS - 1)
    assert senders.may_send((1, 1), 10, SECOND_NS)
    assert not senders.may_send((1, 2), MAX_BYTES_PER_S + 1, SECOND_NS)


def test_a_user_with_many_processes_is_held_back_and_others_are_not() -> None:
    senders = Senders()
    allowed = sum(
        senders.may_send((1, pid), 10, 0)
        for pid in range(2 * PROCESSES_OF_USER)
        for _ in range(MAX_MESSAGES_PER_S)
    )
    assert allowed == PROCESSES_OF_USER * MAX_MESSAGES_PER_S
    assert senders.may_send((2, 5000), 10, 0)


def test_trouble_is_counted_for_each_process_and_each_is_named_once() -> None:
    senders = Senders()
    named = [senders.wrong((1, pid), second * SECOND_NS) for second, pid in ((0, 1), (1, 1), (2, 2), (3, 2))]
    assert named == [True, False, True, False]
    assert (senders.wrongs(), senders.wrong_messages) == ({(1, 1): 2, (1, 2): 2}, 4)


def test_however_many_processes_make_trouble_one_a_second_is_named_and_memory_is_bounded() -> None:
    senders = Senders()
    named = [senders.wrong((2, pid), pid * SECOND_NS // 1000) for pid in range(2 * MAX_SENDERS)]
    assert named.count(True) == 2
    assert len(senders.wrongs()) == MAX_SENDERS
    assert senders.wrong_messages == 2 * MAX_SENDERS


@pytest.mark.parametrize(
    "event",
    [EpochBegan(3 * SECOND_NS, 0), StepBoundary(1, 0, 2**62), StepBoundary(1, 2**62, None), RunEnded(2**62)],
)
def test_an_event_of_the_future_is_refused(event: Event) -> None:
    with pytest.raises(MalformedError, match="ahead of this host's CLOCK_MONOTONIC"):
        check(PublisherSession(session="s"), (event,), (), SECOND_NS)
    check(PublisherSession(session="s"), (EpochBegan(2 * SECOND_NS, 0), Unknown("Nap")), (), SECOND_NS)


def test_a_run_with_the_name_of_another_users_run_is_let_in() -> None:
    """The analyzer gives it that user's own name: nobody can keep a name from others."""
    session, new = receive(PublisherSession(session="s", uid=2, pid=2), Batch("s", 0, (STARTED,)))
    check(session, new, [PublisherSession(session="a", uid=1, pid=1, run="run")], 0)


@pytest.mark.parametrize(
    ("of_process", "allowed"), [(MAX_PROCESS_SESSIONS - 1, True), (MAX_PROCESS_SESSIONS, False)]
)
def test_open_sessions_of_a_process_are_bounded(of_process: int, *, allowed: bool) -> None:
    others = [
        *(PublisherSession(session=f"p{n}", uid=2, pid=2) for n in range(of_process)),
        *(PublisherSession(session=f"o{n}", uid=2, pid=2, over=True) for n in range(2_000)),
        *(PublisherSession(session=f"x{n}", uid=1, pid=9) for n in range(2_000)),
    ]
    session, new = receive(PublisherSession(session="s", uid=2, pid=2), Batch("s", 0, (STARTED,)))
    if allowed:
        check(session, new, others, 0)
    else:
        with pytest.raises(MalformedError, match="End some"):
            check(session, new, others, 0)


def sessions_of(*uids: int, over: bool = False) -> list[PublisherSession]:
    return [PublisherSession(session=f"{uid}-{n}", uid=uid, over=over) for n, uid in enumerate(uids)]


@pytest.mark.parametrize(
    ("uids", "uid", "expected"),
    [
        pytest.param((1, 2, 2, 1, 2), 3, "2-1", id="the first of the user with most"),
        pytest.param((1, 1, 2), 2, "1-0", id="a user with fewer is let in"),
        pytest.param((1, 1, 2, 2), 2, None, id="a user with as many is not"),
        pytest.param((1, 1), 1, None, id="nor the only user"),
        pytest.param((), 1, None, id="nobody is there"),
    ],
)
def test_the_user_with_most_sessions_makes_room(
    uids: tuple[int, ...], uid: int, expected: str | None
) -> None:
    over = sessions_of(*(7,) * 10, over=True)
    found = gives_way([*over, *sessions_of(*uids)], uid)
    assert (found and found.session) == expected


def test_no_run_has_the_name_of_a_budget() -> None:
    started = replace(STARTED, run="budget:rack1")
    session, new = receive(PublisherSession(session="s", uid=2, pid=2), Batch("s", 0, (started,)))
    with pytest.raises(MalformedError, match="Give this one another name"):
        check(session, new, (), 0)
