"""What is in force on hosts, and which commands wait: the only owner of both."""

import pytest
from msgspec.structs import replace

from analyzers.dispatch.pending import BACK, MAX_SENT, Pending
from analyzers.results.result import ApplyControl, GiveAnswer, RestoreControl
from tests.messages import COLLECTOR_STARTED
from zeus_stream.protocol.events import Answer
from zeus_stream.protocol.fields import BUDGET, UNLOCKED, Control
from zeus_stream.protocol.notes import (
    CollectorStarted,
    ControlApplied,
    ControlLeaseEnded,
    ControlRefused,
    Note,
)

STARTED = replace(COLLECTOR_STARTED, t_ns=3, incarnation="i", version="0.1")


def apply(
    command: str, gpu: str = "g", control: Control = "power_limit", value: int = 200_000
) -> ApplyControl:
    return ApplyControl(command=command, run="r", host="h", gpu=gpu, control=control, value=value)


def restore(command: str, control: Control = "power_limit") -> RestoreControl:
    return RestoreControl(command=command, run="r", host="h", gpu="g", control=control)


def applied(command: str, control: Control = "power_limit", value: int = 200_000) -> ControlApplied:
    return ControlApplied(t_ns=1, command=command, gpu="g", control=control, value=value)


def refused(command: str) -> ControlRefused:
    return ControlRefused(t_ns=1, command=command, gpu="g", cause="range", reason="no")


def ended(control: Control = "power_limit") -> Note:
    return ControlLeaseEnded(
        t_ns=2, gpu="g", owner="o", control=control, cause="lapsed", reason="silent", value=250_000
    )


def settle(pending: Pending, *notes: Note) -> None:
    """Take in what a collector noted, in order."""
    for note in notes:
        match note:
            case ControlApplied() | ControlRefused():
                pending.settle("h", note)
            case ControlLeaseEnded():
                pending.lost("h", note)
            case CollectorStarted():
                pending.collector_started("h")
            case _:
                raise AssertionError(note)


def leases(pending: Pending) -> frozenset[str]:
    return pending.leases().get("h", frozenset())


def caught_up() -> Pending:
    pending = Pending()
    pending.link("h", connected=True, behind=0)
    return pending


@pytest.mark.parametrize(
    ("connected", "behind"),
    [
        pytest.param(True, 3, id="the stream is old"),
        pytest.param(True, None, id="it is not known how old"),
        pytest.param(False, None, id="the collector is not there"),
    ],
)
def test_commands_wait_and_the_last_of_each_control_is_sent_once_it_is_time(
    connected: bool,  # noqa: FBT001  (parametrized)
    behind: int | None,
) -> None:
    pending = Pending()
    pending.link("h", connected=connected, behind=behind)
    first, second, clock = apply("c1"), apply("c2"), apply("c3", control="graphics_clock", value=1380)
    assert pending.release([first, second, clock]) == ()
    assert pending.waiting()["h"] == 2
    assert leases(pending) == frozenset()
    pending.link("h", connected=True, behind=0)
    assert pending.release([]) == (second, clock)
    assert (pending.release([]), pending.waiting()["h"]) == ((), 0)


def test_a_host_that_was_caught_up_once_is_commanded_while_it_is_behind_again() -> None:
    pending = caught_up()
    pending.link("h", connected=True, behind=500)
    assert pending.release([apply("c1")]) == (apply("c1"),)


def test_a_command_whose_outcome_is_in_the_log_already_is_not_sent_again() -> None:
    pending = Pending()
    pending.release([apply("c1"), apply("c2", control="graphics_clock", value=1380)])
    settle(pending, applied("c1"), refused("c2"))
    pending.link("h", connected=True, behind=0)
    assert pending.release([]) == ()


def test_answers_go_out_at_once_and_only_to_hosts_that_are_followed() -> None:
    pending = Pending()
    answer = GiveAnswer("h", Answer("q", None, (), "it is missing"))
    assert pending.release([answer]) == ()
    pending.link("h", connected=True, behind=7)
    assert pending.release([answer]) == (answer,)


def test_a_lease_is_renewed_from_when_its_command_is_sent_until_it_has_ended() -> None:
    pending = caught_up()
    pending.release([apply("c1")])
    assert (set(leases(pending)), pending.in_force("h")) == ({"g"}, {})
    settle(pending, applied("c1"))
    assert set(leases(pending)) == {"g"}
    assert pending.in_force("h") == {("g", "power_limit"): 200_000}
    settle(pending, ended())
    assert (leases(pending), pending.in_force("h")) == (frozenset(), {})


@pytest.mark.parametrize(
    ("note", "still"),
    [
        pytest.param(refused("c1"), set(), id="a refusal ends it"),
        pytest.param(refused("c9"), {"g"}, id="a refusal of another command does not"),
        pytest.param(
            STARTED,
            set(),
            id="a collector that starts has given everything back",
        ),
    ],
)
def test_a_lease_of_a_command_under_way(note: Note, still: set[str]) -> None:
    pending = caught_up()
    pending.release([apply("c1")])
    settle(pending, note)
    assert leases(pending) == still


def test_limits_and_clocks_of_a_gpu_are_held_apart() -> None:
    pending = caught_up()
    pending.release([apply("c1"), apply("c2", control="graphics_clock", value=1380)])
    settle(pending, applied("c1"), applied("c2", "graphics_clock", 1380), ended())
    assert pending.in_force("h") == {("g", "graphics_clock"): 1380}
    settle(pending, applied("c3", "graphics_clock", UNLOCKED))
    assert leases(pending) == frozenset()


def test_what_is_given_back_is_renewed_no_longer() -> None:
    pending = caught_up()
    pending.release([apply("c1")])
    settle(pending, applied("c1"))
    assert pending.release([restore("c2")]) == (restore("c2"),)
    assert leases(pending) == frozenset()


def test_commands_without_outcome_are_remembered_within_a_bound() -> None:
    pending = caught_up()
    for number in range(MAX_SENT + 50):
        pending.release([apply(f"c{number}", f"g{number}")])
    assert len(leases(pending)) == MAX_SENT


# ---- what was asked for, and by whom ----------------------------------------------------------------------


def test_a_command_has_a_row_until_its_outcome_and_its_limit_counts_until_then() -> None:
    pending = Pending()
    for command, value in (("c1", 200_000), ("c2", 150_000)):
        row = pending.ask(apply(command, value=value), "run", 7)
        assert (row.command, row.run, row.limit_w, row.outcome) == (command, "run", value / 1000, None)
    assert pending.under_way_mw("g") == [200_000, 150_000]
    settled = pending.settle("h", applied("c2", value=150_000))
    assert settled is not None
    assert settled.command == "c2"
    assert pending.under_way_mw("g") == []  # they are obeyed in order, so the first has had its turn
    assert pending.limit_mw("h", "g") == 150_000
    late = pending.settle("h", refused("c1"))
    assert late is not None
    assert late.command == "c1"  # its row is there all the same


def test_what_is_given_back_is_in_force_until_the_collector_says_so() -> None:
    pending = caught_up()
    pending.ask(restore("c2"), "run", 7)
    settle(pending, applied("c1"))
    pending.release([restore("c2")])
    assert (leases(pending), pending.limit_mw("h", "g")) == (frozenset(), 200_000)
    settle(pending, applied("c2", value=250_000))
    assert (leases(pending), pending.limit_mw("h", "g")) == (frozenset(), None)


def test_one_run_at_a_time_sets_the_limit_of_a_gpu() -> None:
    pending = Pending()
    pending.appoint("first", ["g", "g2"])
    assert (pending.commander("g"), pending.commander("g3")) == ("first", None)
    pending.dismiss("second")
    assert pending.commander("g") == "first"
    pending.forget("first")
    assert pending.commander("g") is None
    assert pending.holding("first").held == {}


def test_where_nobody_is_waited_for_every_command_leaves_in_order() -> None:
    pending = Pending(at_once=True)
    both = apply("c1"), apply("c2")
    assert pending.release(both) == both
    assert leases(pending) == {"g"}


@pytest.mark.parametrize(
    ("notes", "of_budget"),
    [
        pytest.param([], True, id="asked for"),
        pytest.param([applied("c1")], True, id="in force"),
        pytest.param([applied("c1"), ended()], False, id="its lease has ended"),
        pytest.param([applied("c1"), ended("graphics_clock")], True, id="the lease of a clock has ended"),
        pytest.param([applied("c1"), STARTED], False, id="the collector started again"),
        pytest.param([applied(f"{BACK}1")], False, id="given back by an earlier analyzer"),
        pytest.param([applied("c1"), applied("other")], False, id="another analyzer has set it since"),
    ],
)
def test_a_limit_is_a_budget_s_from_when_it_is_asked_for_until_it_is_gone(
    notes: list[Note], *, of_budget: bool
) -> None:
    pending = Pending()
    assert not pending.is_of_budget("g")
    pending.ask(replace(apply("c1"), run=f"{BUDGET}rack"), "r", 1)
    settle(pending, *notes)
    assert pending.is_of_budget("g") == of_budget


def test_a_limit_that_a_run_asks_for_by_itself_is_no_budget_s_any_more() -> None:
    pending = Pending()
    pending.ask(replace(apply("c1"), run=f"{BUDGET}rack"), "r", 1)
    pending.ask(apply("c2", control="graphics_clock", value=900), "r", 2)
    assert pending.is_of_budget("g")
    pending.ask(apply("c3"), "r", 3)
    assert not pending.is_of_budget("g")


def test_an_outcome_on_another_gpu_is_none_of_a_command() -> None:
    pending = Pending(at_once=True)
    row = pending.ask(apply("c", gpu="other"), "r", 1)
    assert pending.settle("h", applied("c")) is None
    assert (pending.in_force("h"), pending.asked_ns("other")) == ({}, 1)
    assert pending.settle("h", replace(applied("c"), gpu="other")) == row
