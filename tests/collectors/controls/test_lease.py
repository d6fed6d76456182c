"""The machine alone, then the machine on a device where anything may go wrong in any order."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collectors.controls import lease, lease_messages
from collectors.controls.lease import ControlState, Lease, LeaseRules, begin, step, validate
from collectors.controls.lease_messages import (
    Asked,
    Beat,
    CallRestore,
    CallSet,
    ClearRecord,
    Command,
    Event,
    Instruction,
    Limits,
    RecordFailed,
    Repeat,
    RestoreDone,
    RestoreFailed,
    Returned,
    RunGone,
    Say,
    SetDone,
    SetFailed,
    SetFoundOther,
    SetIgnored,
    Stopping,
    WriteRecord,
)
from collectors.controls.value_changes import put_back
from collectors.device import Description, Sample
from tests.messages import DESCRIPTION, RELEASE_CONTROL, SET_CONTROL
from tests.simulation.leased_control import LeasedControl
from zeus_stream.protocol.commands import ReleaseControl, RenewLeases, SetControl
from zeus_stream.protocol.fields import UNLOCKED, Control
from zeus_stream.protocol.notes import ControlApplied, ControlLeaseEnded, ControlRefused, Note

W = 1000
MS = 1_000_000
FOUND = 300 * W
RULES = LeaseRules(gpu="GPU-1", incarnation="inc", least_mw=100 * W)
CLOCKS_MHZ = tuple(range(1380, 134, -15))
CLOCK_RULES = LeaseRules(gpu="GPU-1", incarnation="inc", control="graphics_clock", clocks_mhz=CLOCKS_MHZ)


def setting(control: Control, command: str, value: int, **more: Any) -> SetControl:
    """Return a command of anna's. ``more``: what else differs."""
    named: dict[str, Any] = {"fence": 1, "owner": "anna", "run": "r1", "incarnation": "inc"} | more
    return replace(SET_CONTROL, control=control, command=command, value=value, **named)


def releasing(control: Control, command: str, *, fence: int, owner: str) -> ReleaseControl:
    return replace(
        RELEASE_CONTROL, command=command, owner=owner, incarnation="inc", fence=fence, control=control
    )


def ask(command: str, limit_w: int = 250, **more: Any) -> SetControl:
    return setting("power_limit", command, limit_w * W, **more)


def release(command: str, *, fence: int, owner: str = "anna") -> ReleaseControl:
    return releasing("power_limit", command, fence=fence, owner=owner)


def lock(command: str, clock_mhz: int = 1380, **more: Any) -> SetControl:
    return setting("graphics_clock", command, clock_mhz, **more)


def unlock(command: str, *, fence: int, owner: str = "anna") -> ReleaseControl:
    return releasing("graphics_clock", command, fence=fence, owner=owner)


def outcome_of(t_ns: int, command: str, value: int, control: Control = "power_limit") -> ControlApplied:
    return ControlApplied(t_ns, command, "GPU-1", control, value)


class Played:
    """Plays events at times (ms)."""

    def __init__(self, rules: LeaseRules = RULES, state: ControlState | None = None) -> None:
        self.rules = rules
        self.state = state or ControlState(limits=Limits(FOUND))

    def play(self, event: Event, at_ms: int = 0) -> list[Instruction]:
        self.state, asked = step(self.rules, self.state, event, at_ms * MS)
        validate(self.state)
        return list(asked)

    def hold(self, run: str = "r1") -> "Played":
        """Have a run of anna's hold a limit of 250 W."""
        self.play(Asked(ask("c1", run=run)))
        self.play(SetDone(250 * W))
        assert self.state.limits.confirmed == 250 * W
        return self


def said(asked: list[Instruction]) -> list[object]:
    return [instruction.note for instruction in asked if isinstance(instruction, Say)]


def causes(asked: list[Instruction]) -> list[str]:
    return [note.cause for note in said(asked) if isinstance(note, ControlRefused | ControlLeaseEnded)]


def test_a_limit_is_recorded_and_set_then_what_was_read_back_is_ours() -> None:
    played = Played()
    assert played.play(Asked(ask("c1"))) == [CallSet(Limits(FOUND, None, 250 * W))]
    assert played.play(SetDone(249_900), 7) == [Say(outcome_of(7 * MS, "c1", 249_900))]
    assert played.state.limits == Limits(FOUND, 249_900)


def test_a_later_limit_of_the_lease_expects_what_was_read_back_and_not_what_was_found() -> None:
    played = Played().hold()
    assert played.play(Asked(ask("c2", 200, fence=2))) == [CallSet(Limits(FOUND, 250 * W, 200 * W))]
    assert causes(played.play(SetDone(200 * W))) == []
    assert played.state.limits == Limits(FOUND, 200 * W)


def test_without_a_record_nothing_is_set() -> None:
    played = Played()
    played.play(Asked(ask("c1")))
    assert causes(played.play(RecordFailed("no space left on device"))) == ["storage"]
    assert played.state.at_rest


@pytest.mark.parametrize(
    ("rules", "command", "objection", "cause"),
    [
        pytest.param(RULES, ask("c", 301), None, "range", id="above the value found"),
        pytest.param(RULES, ask("c", 99), None, "range", id="below the least"),
        pytest.param(replace(RULES, observe=True), ask("c"), None, "observe", id="observing"),
        pytest.param(replace(RULES, trouble="full"), ask("c"), None, "storage", id="no record can be kept"),
        pytest.param(RULES, ask("c"), "run r1 is unverified", "ownership", id="its run may not command"),
        pytest.param(RULES, replace(ask("c"), incarnation="old"), None, "stale", id="an earlier collector"),
        pytest.param(RULES, ask("c", lease_ms=0), None, "stale", id="a lease that is over at once"),
    ],
)
def test_a_command_is_refused_without_touching_the_device(
    rules: LeaseRules, command: Command, objection: str | None, cause: str
) -> None:
    played = Played(rules)
    asked = played.play(Asked(command, objection))
    assert causes(asked) == [cause]
    assert len(asked) == 1
    assert played.state.at_rest


@pytest.mark.parametrize(
    "other",
    [
        ask("c2", owner="berta"),
        ask("c2", run="r2", fence=2),
        ask("c2", run="budget:rack1", fence=2, owner="berta"),
        release("c2", fence=1, owner="b"),
    ],
)
def test_a_second_owner_or_run_is_refused_and_told_who_holds_the_device(other: Command) -> None:
    (refused,) = said(Played().hold().play(Asked(other)))
    assert isinstance(refused, ControlRefused)
    assert refused.cause == "owned"
    assert "run r1 of anna" in refused.reason


def test_a_command_older_than_its_owners_last_is_stale() -> None:
    played = Played().hold()
    played.play(Asked(ask("c5", 200, fence=5)))
    assert causes(played.play(Asked(ask("c4", 150, fence=4)))) == []  # waits for its turn
    assert causes(played.play(SetDone(200 * W))) == ["stale"]


def test_a_command_that_comes_again_gets_the_outcome_it_had_and_nothing_is_done_twice() -> None:
    played = Played().hold()
    applied = outcome_of(0, "c1", 250 * W)
    assert played.play(Asked(ask("c1"))) == [Repeat(applied)]
    played.play(Beat(250 * W), 1500)
    played.play(RestoreDone(FOUND, other_program=False), 1501)
    assert played.play(Asked(ask("c1")), 1502) == [Repeat(applied)]
    assert played.state.at_rest


def test_a_lease_that_ran_out_is_restored_and_a_renewal_does_not_revive_it() -> None:
    played = Played().hold()
    assert played.play(Beat(250 * W), 1499) == []
    assert played.play(RenewLeases("anna", "inc", ("GPU-1",), 1500), 1501) == [
        CallRestore(Limits(FOUND, 250 * W))
    ]
    asked = played.play(RestoreDone(FOUND, other_program=False), 1502)
    assert asked[0] == ClearRecord()
    assert causes(asked) == ["lapsed"]


def test_a_renewal_prolongs_a_living_lease_of_its_owner_only() -> None:
    played = Played().hold()
    played.play(RenewLeases("anna", "inc", ("GPU-1",), 1500), 1000)
    played.play(RenewLeases("berta", "inc", ("GPU-1",), 60_000), 1000)
    played.play(RenewLeases("anna", "old", ("GPU-1",), 60_000), 1000)
    assert played.play(Beat(250 * W), 2499) == []
    assert played.play(Beat(250 * W), 2500) == [CallRestore(Limits(FOUND, 250 * W))]


@given(
    limits=st.builds(Limits, st.just(FOUND), st.none() | st.just(250 * W)),
    deadline_ns=st.none() | st.sampled_from([0, 2000]),
    seen=st.none() | st.sampled_from([FOUND, 250 * W, 200 * W]),
)
def test_a_beat_that_need_not_be_told_changes_nothing(
    limits: Limits, deadline_ns: int | None, seen: int | None
) -> None:
    held = None if deadline_ns is None else Lease("anna", "run", deadline_ns)
    state = ControlState(limits=limits, lease=held)
    if state.unmoved(seen, 1000):
        assert step(RULES, state, Beat(seen), 1000) == (state, ())
    alive = ControlState(limits=Limits(FOUND, 250 * W), lease=Lease("anna", "run", 2000))
    assert alive.unmoved(250 * W, 1000)
    assert not alive.unmoved(200 * W, 1000)
    assert not alive.unmoved(250 * W, 2000)


def test_a_release_is_answered_once_the_value_found_is_back() -> None:
    played = Played().hold()
    assert played.play(Asked(release("c2", fence=2)), 5) == [CallRestore(Limits(FOUND, 250 * W))]
    notes = said(played.play(RestoreDone(FOUND, other_program=False), 6))
    assert notes[0] == outcome_of(6 * MS, "c2", FOUND)
    assert isinstance(notes[1], ControlLeaseEnded)
    assert notes[1].cause == "released"


def test_a_release_that_comes_after_the_end_finds_the_value_that_was_found() -> None:
    played = Played().hold()
    played.play(RunGone("r1"))
    played.play(RestoreDone(FOUND, other_program=False), 6)
    assert said(played.play(Asked(release("c2", fence=2)), 7)) == [outcome_of(7 * MS, "c2", FOUND)]


@pytest.mark.parametrize(("event", "cause"), [(RunGone("r1"), "run"), (Stopping(), "shutdown")])
def test_the_end_of_the_run_or_of_the_collector_ends_the_lease(event: Event, cause: str) -> None:
    played = Played().hold()
    assert played.play(event) == [CallRestore(Limits(FOUND, 250 * W))]
    assert causes(played.play(RestoreDone(FOUND, other_program=False))) == [cause]
    assert played.state.at_rest


def test_the_end_of_another_run_ends_nothing() -> None:
    assert Played().hold().play(RunGone("r2")) == []


def test_the_value_of_another_program_ends_the_lease_stays_and_is_the_new_upper_bound() -> None:
    played = Played().hold()
    assert played.play(Beat(200 * W), 10) == [CallRestore(Limits(FOUND, 250 * W))], "is it ours?"
    asked = played.play(RestoreDone(200 * W, other_program=True), 11)
    assert asked[0] == ClearRecord()
    assert causes(asked) == ["other_program"]
    assert causes(played.play(Asked(ask("c2", 250, fence=2)))) == ["range"]


def test_a_value_that_appears_between_look_and_set_is_left_alone() -> None:
    played = Played()
    played.play(Asked(ask("c1")))
    asked = played.play(SetFoundOther(200 * W))
    assert causes(asked) == ["other_program"]
    assert ClearRecord() in asked
    assert played.state == replace(played.state, limits=Limits(200 * W), lease=None)


def late() -> Played:
    """Return a machine at rest whose driver has ignored 250 W."""
    played = Played()
    played.play(Asked(ask("c1")))
    played.play(SetIgnored(FOUND))
    assert played.state.at_rest
    return played


def test_a_value_that_the_driver_takes_after_it_has_ignored_it_is_ours() -> None:
    played = late()
    left = Limits(FOUND, None, 250 * W)
    assert played.play(Beat(250 * W), 10) == [WriteRecord(left), CallRestore(left)]
    assert played.play(RestoreDone(FOUND, other_program=False), 11) == [ClearRecord()]
    assert played.state.limits == Limits(FOUND)
    assert played.play(Beat(250 * W), 60_001) == []
    assert played.state.limits == Limits(250 * W), "another program's"


def test_a_value_that_the_driver_takes_after_an_earlier_one_that_was_read_in_its_place_is_ours() -> None:
    played = late()
    played.play(Asked(ask("c2", 200, fence=2)), 10)
    played.play(SetDone(250 * W), 11)
    left = Limits(FOUND, 250 * W, 200 * W)
    assert played.play(Beat(200 * W), 12) == [WriteRecord(left), CallRestore(left)]


@pytest.mark.parametrize("limit_w", [200, 250])
def test_a_set_that_finds_a_value_which_the_driver_took_late_has_it_restored(limit_w: int) -> None:
    played = late()
    played.play(Asked(ask("c2", limit_w, fence=2)), 10)
    asked = played.play(SetFoundOther(250 * W), 11)
    assert causes(asked) == ["device"]
    assert CallRestore(Limits(FOUND, None, 250 * W)) in asked
    assert ClearRecord() not in asked


def test_a_restore_that_finds_a_value_which_the_driver_took_late_is_made_again() -> None:
    played = late()
    played.play(Asked(ask("c2", 200, fence=2)), 10)
    played.play(SetDone(200 * W), 11)
    played.play(Asked(release("c3", fence=3)), 12)
    left = Limits(FOUND, 200 * W, 250 * W)
    asked = played.play(RestoreDone(250 * W, other_program=True), 13)
    assert asked == [WriteRecord(left), CallRestore(left)]
    assert causes(played.play(RestoreDone(FOUND, other_program=False), 14)) == ["released"]


@pytest.mark.parametrize(
    ("outcome", "said_causes", "left"),
    [
        pytest.param(
            SetFailed("device", "Timeout", None), ["device"], Limits(FOUND, 250 * W, 200 * W), id="blind"
        ),
        pytest.param(SetFailed("device", "x", 200 * W), ["device"], Limits(FOUND, 200 * W), id="it took"),
        pytest.param(
            SetFailed("device", "x", 170 * W), ["device"], Limits(FOUND, 250 * W, 200 * W), id="another's"
        ),
        pytest.param(SetDone(180 * W), [], Limits(FOUND, 180 * W), id="rounded"),
        pytest.param(
            SetFoundOther(170 * W), ["other_program"], Limits(FOUND, 250 * W), id="another's before"
        ),
        pytest.param(SetIgnored(250 * W), ["ignored"], Limits(FOUND, 250 * W), id="ignored"),
        pytest.param(RecordFailed("no room"), ["storage"], Limits(FOUND, 250 * W), id="not recorded"),
        pytest.param(
            SetFailed("permission", "no", 250 * W, denied=True),
            ["permission"],
            Limits(FOUND, 250 * W),
            id="denied",
        ),
    ],
)
def test_after_a_later_set_went_wrong_what_is_in_force_decides(
    outcome: Event, said_causes: list[str], left: Limits
) -> None:
    played = Played().hold()
    played.play(Asked(ask("c2", 200, fence=2)))
    asked = played.play(outcome)
    assert causes(asked) == said_causes
    assert played.state.limits == left
    doubtful = outcome in (SetFailed("device", "Timeout", None), SetFailed("device", "x", 170 * W))
    assert (CallRestore(left) in asked) == (doubtful or isinstance(outcome, SetFoundOther))
    assert ClearRecord() not in asked
    assert played.state.lease is not None


def test_a_command_that_was_refused_counts_as_its_owners_last() -> None:
    played = Played()
    assert causes(played.play(Asked(ask("c5", 999, fence=5)))) == ["range"]
    assert causes(played.play(Asked(ask("c4", 250, fence=4)))) == ["stale"]


def test_a_restore_that_fails_is_said_once_and_tried_again_ever_more_slowly() -> None:
    played = Played().hold()
    played.play(Beat(250 * W), 1500)
    assert causes(played.play(RestoreFailed("Timeout"), 1500)) == ["lapsed"]
    tries, now_ms = [], 1500
    for _ in range(4):
        while not any(isinstance(i, CallRestore) for i in played.play(Beat(None), now_ms)):
            now_ms += 25
        tries.append(now_ms)
        assert said(played.play(RestoreFailed("Timeout"), now_ms)) == []
    waits = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert waits == sorted(set(waits))
    played.play(Beat(None), now_ms + 10_000)
    (note,) = said(played.play(RestoreDone(FOUND, other_program=False), now_ms + 10_001))
    assert isinstance(note, ControlLeaseEnded)
    assert note.value == FOUND


def test_too_many_commands_at_once_are_refused_and_not_kept() -> None:
    played = Played()
    for number in range(1 + lease.MAX_WAITING):
        assert causes(played.play(Asked(ask(f"c{number}", fence=number + 1)))) == []
    assert causes(played.play(Asked(ask("one too many", fence=99)))) == ["device"]


def test_what_a_dead_collector_set_is_restored_and_it_says_so() -> None:
    state, asked = begin(RULES, 250 * W, Limits(FOUND, 250 * W), same_boot=True, now_ns=0)
    assert asked == (CallRestore(Limits(FOUND, 250 * W)),)
    assert causes(Played(state=state).play(RestoreDone(FOUND, other_program=False))) == ["restart"]


def test_after_a_reboot_the_record_is_closed_and_nothing_is_set() -> None:
    state, asked = begin(RULES, 310 * W, Limits(FOUND, 250 * W), same_boot=False, now_ns=0)
    assert asked[0] == ClearRecord()
    assert causes(list(asked)) == ["restart"]
    assert state == ControlState(limits=Limits(310 * W))


def test_an_observing_collector_leaves_a_dead_ones_record_for_another_and_says_so() -> None:
    rules = replace(RULES, observe=True)
    state, asked = begin(rules, 250 * W, Limits(FOUND, 250 * W), same_boot=True, now_ns=0)
    assert causes(list(asked)) == ["restart"]
    assert len(asked) == 1
    assert state.at_rest


# ---- the clock ---------------------------------------------------------------------------------------


def locked(clock_mhz: int = 1380) -> Played:
    """Have anna's run r1 hold a locked clock."""
    played = Played(CLOCK_RULES, ControlState(limits=Limits(UNLOCKED)))
    played.play(Asked(lock("c1", clock_mhz)))
    assert said(played.play(SetDone(clock_mhz))) == [outcome_of(0, "c1", clock_mhz, "graphics_clock")]
    return played


def test_the_release_of_a_clock_unlocks_it() -> None:
    played = locked()
    assert played.play(Asked(unlock("c2", fence=2)), 5) == [CallRestore(Limits(UNLOCKED, 1380))]
    assert played.play(RestoreDone(UNLOCKED, other_program=False), 6) == [
        ClearRecord(),
        Say(outcome_of(6 * MS, "c2", UNLOCKED, "graphics_clock")),
        Say(
            ControlLeaseEnded(
                t_ns=6 * MS,
                gpu="GPU-1",
                control="graphics_clock",
                owner="anna",
                cause="released",
                reason="its owner gave it back",
                value=UNLOCKED,
            )
        ),
    ]
    assert played.state.at_rest


@pytest.mark.parametrize(
    ("rules", "command", "cause", "cure"),
    [
        pytest.param(
            CLOCK_RULES,
            lock("c", 1373),
            "range",
            "lock the graphics clock at 1373 MHz: .*nearest is 1380 MHz",
        ),
        pytest.param(replace(CLOCK_RULES, clocks_mhz=()), lock("c"), "range", "Measure only"),
        pytest.param(replace(CLOCK_RULES, observe=True), lock("c"), "observe", "without --observe"),
        pytest.param(replace(CLOCK_RULES, trouble="full"), lock("c"), "storage", "full"),
        pytest.param(
            replace(CLOCK_RULES, beside=(Lease("berta", "r2", MS),)),
            lock("c"),
            "owned",
            "run r2 of berta holds",
        ),
        pytest.param(
            replace(RULES, beside=(Lease("anna", "r2", MS),)),
            ask("c"),
            "owned",
            "run r2 of anna holds",
            id="limit",
        ),
    ],
)
def test_a_clock_that_may_not_be_locked_is_refused_with_the_cure(
    rules: LeaseRules, command: Command, cause: str, cure: str
) -> None:
    played = Played(
        rules, ControlState(limits=Limits(UNLOCKED if rules.control == "graphics_clock" else FOUND))
    )
    (refused,) = said(played.play(Asked(command)))
    assert isinstance(refused, ControlRefused)
    assert refused.cause == cause
    assert re.search(cure, refused.reason)
    assert played.state.at_rest


@pytest.mark.parametrize("beside", [Lease("anna", "r1", MS), Lease("berta", "r2", 0)])
def test_the_owner_of_one_control_may_have_the_other_and_so_may_all_once_its_lease_is_over(
    beside: Lease,
) -> None:
    played = Played(replace(CLOCK_RULES, beside=(beside,)), ControlState(limits=Limits(UNLOCKED)))
    assert isinstance(played.play(Asked(lock("c")))[0], CallSet)


@pytest.mark.parametrize(
    ("failed", "todo"),
    [
        (SetFailed("permission", "Insufficient Permissions", UNLOCKED, denied=True), ClearRecord()),
        (SetFailed("device", "Timeout", None), CallRestore(Limits(UNLOCKED, None, 1380))),
    ],
)
def test_a_first_lock_that_failed_is_undone_if_it_may_have_been_taken(
    failed: SetFailed, todo: Instruction
) -> None:
    played = Played(CLOCK_RULES, ControlState(limits=Limits(UNLOCKED)))
    played.play(Asked(lock("c1")))
    asked = played.play(failed)
    assert causes(asked) == [failed.cause]
    assert [each for each in asked if not isinstance(each, Say)] == [todo]


def test_a_gpu_that_comes_back_may_have_forgotten_its_lock_so_the_lease_ends() -> None:
    played = locked()
    assert played.play(Returned()) == [CallRestore(Limits(UNLOCKED, 1380))]
    assert causes(played.play(RestoreDone(UNLOCKED, other_program=False))) == ["device"]


# ---- where calls fail --------------------------------------------------------------------------------


class Card:
    """A device with a limit and a clock, as `put_back` needs it."""

    def __init__(self) -> None:
        self.limit_mw = FOUND
        self.locked_mhz = UNLOCKED

    def read_control(self, control: Control) -> int | None:
        return self.limit_mw if control == "power_limit" else None

    def set_control(self, control: Control, value: int) -> None:
        if control == "power_limit":
            self.limit_mw = value
        else:
            self.locked_mhz = value

    def describe(self) -> Description:
        return replace(
            DESCRIPTION, name="Card", min_limit_mw=100 * W, max_limit_mw=400 * W, default_limit_mw=FOUND
        )

    def sample(self) -> Sample:
        raise NotImplementedError

    def processes(self) -> tuple[int, ...] | None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


Choice = st.integers(0, 2**30)


class UnreliableLimit(LeasedControl):
    """A limit, its record on disk, an administrator, and a collector whose calls take and fail as drawn.

    Our limits are whole tens of watts, an administrator's are five watts off, so that it is always known
    whose a value is.
    """

    of = RULES
    found = FOUND

    def __init__(self) -> None:
        self.now_ms = 0
        self.card = Card()
        self.beside: UnreliableLimit | None = None
        """The device's other control."""
        self.record: Limits | None = None
        self.stale_record = False
        """It could not be removed. What it says is not in force any more, as the next start finds."""
        self.administrator_mw = FOUND
        self.seen: int | None = None
        self.serial = 0
        self.fate = 0
        """Decides what fails of the call under way, and when."""
        self.outcomes: set[str] = set()
        super().__init__(self.of, begin(self.of, self.found, None, same_boot=True, now_ns=0)[0])

    def hand(self, event: Event) -> None:
        held, beside = self.state.lease, None if self.beside is None else self.beside.state.lease
        self.rules = replace(self.of, beside=() if beside is None else (beside,))
        super().tell(event, self.now_ms * MS)
        if isinstance(event, RenewLeases) and held is not None and held.over(self.now_ms * MS):
            assert self.state.lease is None or self.state.lease.over(self.now_ms * MS), "revived"

    def say(self, *notes: Note) -> None:
        for note in notes:
            if isinstance(note, ControlApplied | ControlRefused):
                assert note.command not in self.outcomes, "two outcomes"
                self.outcomes.add(note.command)

    def work_by(self, fate: int) -> None:
        """Do the oldest job as the device's thread would."""
        self.fate = fate
        if self.jobs and (event := self.work()) is not None:
            self.hand(event)

    @property
    def failed(self) -> bool:
        return self.fate % 3 == 1

    @property
    def halfway(self) -> bool:
        """It fails once it has been done."""
        return self.fate % 3 == 2

    def write_record(self, limits: Limits) -> bool:
        written = self.fate // 3 % 3
        if written != 1:
            self.record, self.stale_record = limits, False
        return written == 0

    def clear_record(self) -> None:
        self.record = self.record if self.failed else None
        self.stale_record = self.failed

    def restore(self, limits: Limits) -> Event:
        if self.failed:
            return RestoreFailed("Timeout")
        if limits.pending is not None and limits.ours(self.card.limit_mw):
            self.administrator_mw = limits.found  # who set this while ours was under way is not seen
        done = put_back(self.card, limits, self.rules.control)
        assert self.as_found()
        self.look()
        return RestoreFailed("no answer") if self.halfway else RestoreDone(done.requested, done.other_program)

    def look(self) -> None:
        self.seen = self.card.limit_mw

    def as_found(self) -> bool:
        return self.card.limit_mw == self.administrator_mw

    def set(self, limits: Limits, /) -> Event:
        self.look()
        value, expected = limits.pending, limits.expected
        assert value is not None
        assert self.record is not None, "a set without a record"
        assert self.record.ours(value), "a set that the record does not know of"
        if not lease_messages.close(self.card.limit_mw, expected):
            return SetFoundOther(self.card.limit_mw)
        assert self.record.found == self.administrator_mw
        assert value <= self.administrator_mw, "above what was found"
        if not self.failed:
            self.card.limit_mw = value
            self.look()
        if self.failed or self.halfway:
            return SetFailed("device", "Timeout", None if self.fate % 2 else self.card.limit_mw)
        self.record = Limits(limits.found, self.card.limit_mw)
        return SetDone(self.card.limit_mw)

    def ask(self, fate: int) -> None:
        self.serial += 1
        owner, run = ("anna", "berta")[fate % 4 == 3], f"r{int(fate // 4 % 4 == 3)}"
        name = f"c{self.serial if fate % 5 else max(self.serial - 1, 1)}"
        self.hand(Asked(self.change(name, fate // 4 % 23, owner, run)))

    def change(self, name: str, choice: int, owner: str, run: str) -> Command:
        return ask(name, 100 + choice * 10, fence=self.serial, owner=owner, run=run, lease_ms=300)

    def release(self, name: str, owner: str) -> Command:
        return release(name, fence=self.serial, owner=owner)

    def administer(self, fate: int) -> None:
        self.administrator_mw = self.card.limit_mw = (105 + fate % 20 * 10) * W

    def act(self, what: int, fate: int) -> None:
        owner = ("anna", "berta")[fate % 2]
        match what:
            case 0 | 1:
                self.ask(fate)
            case 2 | 3 | 4 | 5:
                self.work_by(fate if fate % 4 == 0 else 0)
            case 6:
                self.hand(RenewLeases(owner, "inc", ("GPU-1",), 300))
            case 7:
                self.serial += 1
                self.hand(Asked(self.release(f"c{self.serial}", owner)))
            case 8:
                self.hand(RunGone(f"r{fate % 2}"))
            case 9:
                self.administer(fate)
            case 10:
                self.crash()
            case _:
                self.now_ms += fate % 400
                if fate % 3:
                    self.look()
                self.hand(Beat(self.seen))

    def crash(self) -> None:
        """The collector is killed, whatever is under way, and another starts."""
        self.jobs.clear()
        self.outcomes.clear()
        self.look()
        self.state, asked = begin(
            self.of, self.requested(), self.record, same_boot=True, now_ns=self.now_ms * MS
        )
        self.take(asked)

    def requested(self) -> int:
        return self.card.limit_mw

    def settle(self) -> None:
        """Everything works again, and the collector stops."""
        self.hand(Stopping())
        for _ in range(1000):
            self.work_by(0)
            self.now_ms += 100
            self.look()
            self.hand(Beat(self.seen))
            if self.state.at_rest and not self.jobs:
                return
        raise AssertionError("never at rest")


class UnreliableClock(UnreliableLimit):
    """The same of a clock, whose lock the collector cannot see."""

    of = CLOCK_RULES
    found = UNLOCKED

    def look(self) -> None:
        self.seen = None

    def as_found(self) -> bool:
        return self.card.locked_mhz == UNLOCKED

    def set(self, limits: Limits, /) -> Event:
        value = limits.pending
        assert value is not None
        assert self.record == limits, "a lock that the record does not know of"
        assert value in CLOCKS_MHZ
        if self.failed and self.fate % 2:
            return SetFailed("permission", "no", self.record.confirmed or UNLOCKED, denied=True)
        if not self.failed:
            self.card.set_control("graphics_clock", value)
        if self.failed or self.halfway:
            return SetFailed("device", "Timeout", None)
        self.record = Limits(limits.found, value)
        return SetDone(value)

    def change(self, name: str, choice: int, owner: str, run: str) -> Command:
        clock_mhz = CLOCKS_MHZ[0] - choice * 5  # every third is one of the GPU's
        return lock(name, clock_mhz, fence=self.serial, owner=owner, run=run, lease_ms=300)

    def release(self, name: str, owner: str) -> Command:
        return unlock(name, fence=self.serial, owner=owner)

    def administer(self, fate: int) -> None:
        """Unlock it. (Another program's lock is not seen: nothing is promised about it.)"""
        self.card.set_control("graphics_clock", UNLOCKED)
        if fate % 2:
            self.hand(Returned())

    def requested(self) -> int:
        return UNLOCKED if self.record is None else self.record.last


Acts = st.lists(st.tuples(st.integers(0, 12), Choice), max_size=80)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [UnreliableLimit, UnreliableClock])
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(acts=Acts)
def test_whatever_happens_the_device_ends_at_what_was_found_or_what_an_administrator_set(
    kind: type[UnreliableLimit], acts: list[tuple[int, int]]
) -> None:
    world = kind()
    for what, fate in acts:
        world.act(what, fate)
    world.settle()
    assert world.as_found()
    assert world.record is None or world.stale_record


@pytest.mark.sweep
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    acts=st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 63)), min_size=10, max_size=80)
)
def test_two_controls_of_a_device_never_have_two_owners(acts: list[tuple[bool, int, int]]) -> None:
    limit, clock = UnreliableLimit(), UnreliableClock()
    limit.beside, clock.beside = clock, limit
    for first, what, fate in acts:
        world = limit if first else clock
        world.act(what, fate)
        limit.now_ms = clock.now_ms = max(limit.now_ms, clock.now_ms)
        leases_now = [side.state.lease for side in (limit, clock)]
        living = {(x.owner, x.run) for x in leases_now if x is not None and not x.over(limit.now_ms * MS)}
        assert len(living - {(lease.DEAD, "")}) <= 1
    for world in (limit, clock):
        world.settle()
        assert world.as_found()


# ---- power budgets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [
        ("r1", "budget:rack1", True),
        ("budget:rack1", "r1", True),
        ("budget:rack1", "budget:all", True),
        ("r1", "r2", False),
    ],
)
def test_a_lease_passes_between_a_run_and_a_budget_of_one_owner(
    first: str, second: str, *, taken: bool
) -> None:
    played = Played().hold(first)
    asked = played.play(Asked(ask("c2", 200, fence=2, run=second)), 10)
    assert isinstance(asked[0], CallSet) == taken
    assert played.state.lease is not None
    assert played.state.lease.run == (second if taken else first)


def test_the_end_of_a_run_gives_nothing_back_that_a_budget_holds() -> None:
    played = Played().hold()
    played.play(Asked(ask("c2", 200, fence=2, run="budget:rack1")), 10)
    played.play(SetDone(200 * W), 12)
    assert played.play(RunGone("r1"), 13) == []
    assert [type(each) for each in played.play(Beat(200 * W), 2000)] == [CallRestore], "its lease ends it"
