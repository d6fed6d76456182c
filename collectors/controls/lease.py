"""The lease of one control of a device: commands and time in, instructions out. Pure.

The rules, for one control (its power limit, the lock of one of its clocks, or its power profiles):

- A record on disk says what was found before every change. No record, no change.
- The value found is the upper bound, and what is restored: when the lease is released or runs out,
  when its run ends, when the collector stops, or when it starts over a dead collector's record.
- Restored is only what is ours: the value that was read back right after a set, whatever the driver made of
  the one asked for, one that it took later, or one to which it moved ours as its range changed. Any other
  value is another program's: it stays, the lease ends, and it is the new "found".
- A value that was asked for, and that the driver has not taken, counts as ours for LATE_NS, also after its
  lease. Another program's value that equals it is restored too. A collector that died has forgotten it.
- If what was found is not allowed any more, the nearest that is allowed is restored.
- A clock's lock cannot be read: unlocked counts as found, the lock as ours, that of another program unseen.
- A lease that an analyzer made longer for a busy host ends soon after its connection closed, unless it
  comes back and renews it.
- One owner (an analyzer for one run) at a time, of all controls of a device. An analyzer may take over from
  its own run for a power budget, and give back to it. A renewal never revives an ended lease. A command
  that comes again gets the outcome it had; one older than its owner's last is stale.

What is under way at the device, and what follows:

    nothing     a SetControl that passes the rules  -> Setting     CallSet
                something of ours, its lease over   -> Restoring   CallRestore
    Setting     RecordFailed                        -> nothing     refused: storage
                SetDone                             -> nothing     applied, as read back
                SetDone, above what was found       -> nothing     refused: "range"; lease over
                SetIgnored                          -> nothing     refused: "ignored"
                SetFoundOther, one taken late       -> nothing     WriteRecord, refused: "device"; restored
                SetFoundOther, nothing of ours set  -> nothing     ClearRecord, refused: "other_program"
                SetFoundOther, else                 -> nothing     refused: "other_program"; lease over
                SetFailed                           -> nothing     refused; if it was the first, restored
                                                                   unless the driver denied it
    Restoring   RestoreDone, one taken late         -> nothing     WriteRecord, restored
                RestoreDone                         -> nothing     ClearRecord, lease ended
                RestoreFailed                       -> nothing     tried again, ever more slowly

Commands that come in the meantime wait, at most MAX_WAITING of them.
"""

from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from collectors.control import READ_BACK, spell, spell_change, words
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
    Outcome,
    OwnerDisconnected,
    PlanEnded,
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
    close,
)
from zeus_stream.protocol.commands import ReleaseControl, RenewLeases, SetControl
from zeus_stream.protocol.fields import BUDGET, Control, spell_profiles
from zeus_stream.protocol.notes import Cause, ControlApplied, ControlLeaseEnded, ControlRefused, LeaseCause

MAX_WAITING = 16
MAX_OUTCOMES = 64
MAX_OWNERS = 16
"""Owners whose last fence is remembered."""
LATE_NS = 60_000_000_000
"""A driver that has not taken a value may take it for so long."""
MAX_LATE = 16
"""Such values that are remembered."""
RETRY_NS = 100_000_000
RETRY_MOST_NS = 5_000_000_000
"""A restore that failed is tried again after RETRY_NS, 2 RETRY_NS, 4 RETRY_NS, ... up to this."""


# ---- the state of the lease of one control of one device ------------------------------------------------

DEAD = "a collector that died"
"""Owner of what a dead collector left behind."""


class LeaseRules(Struct, frozen=True, kw_only=True):
    """The constants of a leased control, and what its machine has to know of the rest."""

    gpu: str
    incarnation: str
    least_mw: int = 0
    """Lowest limit the device accepts."""
    observe: bool = False
    trouble: str | None = None
    """Why no restore record can be kept."""
    control: Control = "power_limit"
    clocks_mhz: tuple[int, ...] = ()
    """Clocks that can be locked, descending."""
    profiles: int = 0
    """Bits of the power profiles that the device has."""
    beside: "tuple[Lease, ...]" = ()
    """Leases of the device's other controls."""


class Ending(Struct, frozen=True):
    cause: LeaseCause
    reason: str


LAPSED = Ending("lapsed", "its owner was silent for too long")
RELEASED = Ending("released", "its owner gave it back")
RUN_ENDED = Ending("run", "its run has ended")
STOPPING = Ending("shutdown", "the collector stops")
FORGOTTEN = Ending("device", "the GPU was lost, and may have forgotten it")
LEFT_OVER = Ending("restart", "a collector died and left it")
OTHER_VALUE = Ending("other_program", "another value was in force")
"""Until the restore has found out whether another program set it."""


class Lease(Struct, frozen=True):
    owner: str
    run: str
    deadline_ns: int
    ending: Ending | None = None
    """Why it is over, from when that was noticed."""

    def over(self, now_ns: int) -> bool:
        return self.ending is not None or now_ns >= self.deadline_ns


class Setting(Struct, frozen=True):
    command: SetControl


class Restoring(Struct, frozen=True):
    pass


class WaitingCommand(Struct, frozen=True):
    command: Command
    received_ns: int
    objection: str | None
    """Why its run may not command this device."""


class LateValue(Struct, frozen=True):
    """A value that we asked for, and that was not read afterwards."""

    value: int
    until_ns: int


class ControlState(Struct, frozen=True, kw_only=True):
    """State of one control of one device."""

    limits: Limits
    lease: Lease | None = None
    busy: Setting | Restoring | None = None
    waiting: tuple[WaitingCommand, ...] = ()
    releasing: tuple[ReleaseControl, ...] = ()
    """Releases that the restore under way will answer."""
    outcomes: tuple[Outcome, ...] = ()
    fences: tuple[tuple[str, int], ...] = ()
    """Highest fence of each owner, least recent first."""
    late: tuple[LateValue, ...] = ()
    """Those that the driver may take yet."""
    failures: int = 0
    """Restores that failed in a row."""
    retry_ns: int = 0
    closing: bool = False

    @property
    def at_rest(self) -> bool:
        """Nothing of ours is in force, and nothing is under way."""
        return self.busy is None and not self.limits.changed and not self.waiting

    def unmoved(self, requested: int | None, now_ns: int, control: Control = "power_limit") -> bool:
        """Return True if a `Beat` with this value would change nothing."""
        if self.busy is not None or self.waiting:
            return False
        if self.lease is None:
            return not self.limits.changed and requested in (None, self.limits.found)
        confirmed = self.limits.confirmed
        if confirmed is None or self.lease.over(now_ns):
            return False
        return requested is None or close(requested, confirmed, control)


Answer: TypeAlias = tuple[ControlState, tuple[Instruction, ...]]


# ---- the machine -------------------------------------------------------------------------------------


def begin(
    rules: LeaseRules,
    requested: int,
    left: Limits | None,
    *,
    same_boot: bool,
    now_ns: int,
    settled: str | None = None,
) -> Answer:
    """Return the state of a device that was just opened, and what to do about a record found with it.

    ``requested``: of a clock, what its record says. ``left``: of a dead collector; None: there is no record.
    ``same_boot``: the record is of this boot, else the device has forgotten what was set. ``settled``: how
    another process has settled the record in the meantime.
    """
    if left is None:
        return ControlState(limits=Limits(requested)), ()
    if settled is not None:
        said = _ended(rules, DEAD, Ending("restart", settled), requested, now_ns)
        return ControlState(limits=Limits(requested)), (ClearRecord(), said)
    if not same_boot:
        reason = "the host was restarted, which ended what the record says was set; nothing was changed"
        said = _ended(rules, DEAD, Ending("restart", reason), requested, now_ns)
        return ControlState(limits=Limits(requested)), (ClearRecord(), said)
    if rules.observe:
        reason = (
            f"it was not restored to {spell(rules.control, left.found)}, because this collector only"
            " observes. Start it without --observe once"
        )
        said = _ended(rules, DEAD, Ending("restart", reason), requested, now_ns)
        return ControlState(limits=Limits(left.found)), (said,)
    lease = Lease(DEAD, "", now_ns, LEFT_OVER)
    return _go_on(rules, ControlState(limits=left, lease=lease), now_ns)


def step(rules: LeaseRules, state: ControlState, event: Event, now_ns: int) -> Answer:
    """Return the next state and what to do about it. Every (state, event) is answered."""
    state, done = _take_in(rules, state, event, now_ns)
    state, more = _go_on(rules, state, now_ns)
    return state, (*done, *more)


def validate(state: ControlState) -> None:
    """Check what holds between events; an AssertionError names the state."""
    limits, lease = state.limits, state.lease
    match state.busy:
        case Setting(command):
            assert lease is not None, state
            assert limits.pending == command.value, state
        case Restoring():
            assert limits.changed, state
        case None:
            # Something of ours is in force: under a lease, or its restore failed and is tried again.
            assert not limits.changed or lease is not None or state.failures, state
            assert limits.changed or lease is None, state
            assert not state.waiting or state.failures, state
    assert not state.releasing or isinstance(state.busy, Restoring), state
    assert len(state.waiting) <= MAX_WAITING, state
    assert len(state.outcomes) <= MAX_OUTCOMES, state
    assert len(state.fences) <= MAX_OWNERS, state
    assert len(state.late) <= MAX_LATE, state


def _take_in(rules: LeaseRules, state: ControlState, event: Event, now_ns: int) -> Answer:
    match event, state.busy:
        case Asked(command, objection), _:
            return _receive(rules, state, WaitingCommand(command, now_ns, objection))
        case RenewLeases(owner, incarnation, _, lease_ms), _:
            lease = state.lease
            alive = lease is not None and lease.owner == owner and not lease.over(now_ns)
            if lease is not None and alive and incarnation == rules.incarnation:
                lease = replace(lease, deadline_ns=now_ns + lease_ms * 1_000_000)
            return replace(state, lease=lease), ()
        case OwnerDisconnected(owner, until_ns), _:
            lease = state.lease
            if lease is not None and lease.owner == owner and until_ns < lease.deadline_ns:
                lease = replace(lease, deadline_ns=until_ns)
            return replace(state, lease=lease), ()
        case Beat(int(requested)), None:
            return _look(rules, state, requested, now_ns)
        case RunGone(run), _:
            ended = tuple(
                replace(w, objection="its run has ended. Start another")
                if isinstance(w.command, SetControl) and w.command.run == run
                else w
                for w in state.waiting
            )
            mine = state.lease is not None and state.lease.run == run
            return replace(_end(state, RUN_ENDED) if mine else state, waiting=ended), ()
        case Returned(), _:
            return _end(state, FORGOTTEN), ()
        case Stopping(), _:
            return replace(_end(state, STOPPING), closing=True), ()
        case PlanEnded(reason), _:
            return _end(state, Ending("plan", f"its plan of clocks ended: {reason}")), ()
        case RecordFailed(reason), Setting(command):
            return _give_up_set(rules, state, command, "storage", reason, now_ns)
        case SetDone(), Setting(command):
            return _finish_set(rules, state, command, event, now_ns)
        case SetIgnored(), Setting(command):
            why = f"the driver accepted the {words(rules.control)} and did not change it"
            state = _remember(state, command, now_ns)
            return _give_up_set(rules, state, command, "ignored", why, now_ns)
        case SetFoundOther(requested), Setting(command):
            return _lose_set(rules, state, command, requested, now_ns)
        case SetFailed(), Setting(command):
            return _fail_set(rules, state, command, event, now_ns)
        case RestoreDone(requested, True), Restoring() if _taken_late(rules, state, requested, now_ns):
            return _take_back(replace(state, busy=None), requested)
        case RestoreDone(requested, other_program), Restoring():
            return _finish(rules, state, requested, other_program=other_program, now_ns=now_ns)
        case RestoreFailed(reason), Restoring():
            return _put_off(rules, state, reason, now_ns)
        case _:
            return state, ()  # a beat while something is under way


def _go_on(rules: LeaseRules, state: ControlState, now_ns: int) -> Answer:
    """Begin what is due, as long as nothing is under way."""
    todo: list[Instruction] = []
    while state.busy is None:
        lease = state.lease
        if state.limits.changed and (lease is None or lease.over(now_ns)):
            if now_ns < state.retry_ns:
                break
            state = replace(_end(state, LAPSED), busy=Restoring())
            todo.append(CallRestore(state.limits))
        elif state.waiting:
            first, *others = state.waiting
            state, asked = _consider(rules, replace(state, waiting=tuple(others)), first, now_ns)
            todo.extend(asked)
        else:
            break
    return state, tuple(todo)


def _receive(rules: LeaseRules, state: ControlState, new: WaitingCommand) -> Answer:
    command = new.command.command
    for outcome in state.outcomes:
        if outcome.command == command:
            return state, (Repeat(outcome),)
    if command in _under_way(state):
        return state, ()
    if len(state.waiting) >= MAX_WAITING:
        reason = _refusal(rules, new.command, f"{MAX_WAITING} commands wait already. Send fewer")
        return _conclude(state, ControlRefused(new.received_ns, command, rules.gpu, "device", reason))
    return replace(state, waiting=(*state.waiting, new)), ()


def _under_way(state: ControlState) -> Iterator[str]:
    """Name the commands that have no outcome yet."""
    if isinstance(state.busy, Setting):
        yield state.busy.command.command
    yield from (waiting.command.command for waiting in state.waiting)
    yield from (release.command for release in state.releasing)


def _consider(rules: LeaseRules, state: ControlState, waiting: WaitingCommand, now_ns: int) -> Answer:
    """Carry out a command whose turn it is, or refuse it."""
    command = waiting.command
    objection = _objection(rules, state, waiting, now_ns)
    if objection is None:
        state = replace(state, fences=_raise_fence(state.fences, command))
        if isinstance(command, ReleaseControl) and state.lease is None:  # the run's end was quicker
            return _conclude(state, _applied(rules, command, state.limits.found, now_ns))
        if isinstance(command, ReleaseControl):
            released = _end(state, RELEASED)
            return replace(released, releasing=(*state.releasing, command)), ()
        limits = replace(state.limits, pending=command.value)
        lease = Lease(command.owner, command.run, waiting.received_ns + command.lease_ms * 1_000_000)
        return replace(state, limits=limits, lease=lease, busy=Setting(command)), (CallSet(limits),)
    cause, why = objection
    if cause != "stale":
        state = replace(state, fences=_raise_fence(state.fences, command))
    refused = ControlRefused(now_ns, command.command, rules.gpu, cause, _refusal(rules, command, why))
    return _conclude(state, refused)


def _look(rules: LeaseRules, state: ControlState, requested: int, now_ns: int) -> Answer:
    """Compare what is requested with what should be."""
    lease, limits = state.lease, state.limits
    known = requested in (limits.confirmed, limits.pending)
    if not known and _taken_late(rules, state, requested, now_ns):
        return _take_back(state, requested)
    if not limits.changed:
        if requested != limits.found:
            # An administrator set it: that is what we find when we come to change it.
            state = replace(state, limits=Limits(requested))
        return state, ()
    confirmed = limits.confirmed
    same = confirmed is None or close(requested, confirmed, rules.control)
    if lease is None or lease.over(now_ns) or same:
        return state, ()
    return _end(state, OTHER_VALUE), ()


def _finish_set(
    rules: LeaseRules, state: ControlState, command: SetControl, done: SetDone, now_ns: int
) -> Answer:
    """Take what the driver made of our request for ours."""
    requested = done.requested
    limits = state.limits.read_back(requested)
    state = replace(state, limits=limits, busy=None)
    if not close(requested, command.value, rules.control):
        state = _remember(state, command, now_ns)
    if requested <= limits.found or close(requested, limits.found) or rules.control != "power_limit":
        return _conclude(state, _applied(rules, command, requested, now_ns, done.took_us))
    taken, asked = spell(rules.control, requested), spell(rules.control, command.value)
    why = f"the driver took {taken} for {asked}, above {spell(rules.control, limits.found)}, which was found"
    reason = _refusal(rules, command, why)
    state = _end(state, Ending("device", why))
    return _conclude(state, ControlRefused(now_ns, command.command, rules.gpu, "range", reason))


def _give_up_set(
    rules: LeaseRules, state: ControlState, command: SetControl, cause: Cause, why: str, now_ns: int
) -> Answer:
    """Nothing was set; what was in force before still is."""
    reason, limits = _refusal(rules, command, why), replace(state.limits, pending=None)
    first = not limits.changed
    state = replace(state, limits=limits, busy=None, lease=None if first else state.lease)
    state, said = _conclude(state, ControlRefused(now_ns, command.command, rules.gpu, cause, reason))
    return state, (ClearRecord() if first else WriteRecord(limits), *said)


def _fail_set(
    rules: LeaseRules, state: ControlState, command: SetControl, failed: SetFailed, now_ns: int
) -> Answer:
    """The device may or may not have taken the new limit."""
    limits, seen = state.limits, failed.requested
    refused = ControlRefused(now_ns, command.command, rules.gpu, failed.cause, failed.reason)
    state, said = _conclude(replace(state, busy=None), refused)
    if not failed.denied:
        state = _remember(state, command, now_ns)
    if limits.confirmed is None and seen == limits.found and failed.denied:
        return replace(state, limits=Limits(seen), lease=None), (ClearRecord(), *said)
    if limits.confirmed is None:
        return replace(state, lease=None), said  # the restore finds out, and clears the record
    if seen is None:
        return _end(state, Ending("device", f"the device failed: {failed.reason}")), said
    if limits.ours(seen, rules.control):
        limits = Limits(limits.found, seen) if failed.denied else limits.read_back(seen)
        return replace(state, limits=limits), (WriteRecord(limits), *said)
    return _end(state, OTHER_VALUE), said


def _lose_set(
    rules: LeaseRules, state: ControlState, command: SetControl, requested: int, now_ns: int
) -> Answer:
    """Another value is there: somebody else's, or one of ours that the driver took late."""
    if _taken_late(rules, state, requested, now_ns):
        why = f"the driver took {spell(rules.control, requested)} late, which we had asked for"
        refused = ControlRefused(now_ns, command.command, rules.gpu, "device", _refusal(rules, command, why))
        first = state.limits.confirmed is None  # the lease had not begun
        state = replace(state, busy=None, lease=None if first else state.lease)
        state, said = _conclude(state, refused)
        state, todo = _take_back(state, requested)
        return state, (*todo, *said)
    reason = _refusal(rules, command, f"somebody else set {spell(rules.control, requested)}, which stays")
    refused = ControlRefused(now_ns, command.command, rules.gpu, "other_program", reason)
    state, said = _conclude(replace(state, busy=None), refused)
    if state.limits.confirmed is None:  # the lease had not begun
        return replace(state, limits=Limits(requested), lease=None), (ClearRecord(), *said)
    state = replace(state, limits=replace(state.limits, pending=None))
    return _end(state, OTHER_VALUE), said


def _finish(
    rules: LeaseRules, state: ControlState, requested: int, *, other_program: bool, now_ns: int
) -> Answer:
    """Nothing of ours is in force any more."""
    todo: list[Instruction] = [ClearRecord()]
    why = f"somebody else set {spell(rules.control, requested)}, which stays"
    for release in state.releasing:
        outcome: Outcome = _applied(rules, release, requested, now_ns)
        if other_program:
            reason = _refusal(rules, release, why)
            outcome = ControlRefused(now_ns, release.command, rules.gpu, "other_program", reason)
        state, said = _conclude(state, outcome)
        todo.extend(said)
    if state.lease is not None:
        ending = _explain(rules, state, state.lease.ending or LAPSED, requested, other_program=other_program)
        todo.append(_ended(rules, state.lease.owner, ending, requested, now_ns))
    state = replace(state, limits=Limits(requested), lease=None, busy=None, releasing=())
    return replace(state, failures=0, retry_ns=0), tuple(todo)


def _explain(
    rules: LeaseRules, state: ControlState, ending: Ending, requested: int, *, other_program: bool
) -> Ending:
    """Return why a lease ended, with what was restored if that is not what was found."""
    now, found = spell(rules.control, requested), spell(rules.control, state.limits.found)
    if other_program:
        why = f"somebody else set {now}, which stays"
        return Ending("other_program", why if ending == OTHER_VALUE else f"{ending.reason}; {why}")
    if ending == OTHER_VALUE:
        ending = Ending("device", "the driver changed our limit by itself")
    if rules.control not in READ_BACK or close(requested, state.limits.found, rules.control):
        return ending
    return Ending(
        ending.cause, f"{ending.reason}; restored was {now}, the nearest to {found} that is allowed"
    )


def _put_off(rules: LeaseRules, state: ControlState, reason: str, now_ns: int) -> Answer:
    """The restore failed: say so once, and try again later."""
    todo: list[Instruction] = []
    for release in state.releasing:
        state, said = _conclude(state, ControlRefused(now_ns, release.command, rules.gpu, "device", reason))
        todo.extend(said)
    if state.failures == 0 and state.lease is not None:
        ending = state.lease.ending or LAPSED
        why = f"{ending.reason}; its value could not be restored yet, which is tried again: {reason}"
        todo.append(_ended(rules, state.lease.owner, Ending(ending.cause, why), None, now_ns))
    wait_ns = min(RETRY_NS << min(state.failures, 10), RETRY_MOST_NS)
    state = replace(state, busy=None, releasing=(), failures=state.failures + 1, retry_ns=now_ns + wait_ns)
    return state, tuple(todo)


def _remember(state: ControlState, command: SetControl, now_ns: int) -> ControlState:
    """Note that the driver may take a value later."""
    new = LateValue(command.value, now_ns + LATE_NS)
    others = (each for each in state.late if each.value != new.value and each.until_ns > now_ns)
    return replace(state, late=(*others, new)[-MAX_LATE:])


def _taken_late(rules: LeaseRules, state: ControlState, requested: int, now_ns: int) -> bool:
    """Tell whether this may be a value of ours that the driver took late."""
    if close(requested, state.limits.found, rules.control):
        return False
    return any(close(requested, each.value, rules.control) and each.until_ns > now_ns for each in state.late)


def _take_back(state: ControlState, requested: int) -> Answer:
    """Have a value restored that the driver took late."""
    limits = replace(state.limits, pending=requested)
    return _end(replace(state, limits=limits, retry_ns=0), OTHER_VALUE), (WriteRecord(limits),)


def _end(state: ControlState, ending: Ending) -> ControlState:
    """Return the state with its lease, if there is one, over."""
    if state.lease is None or state.lease.ending is not None:
        return state
    return replace(state, lease=replace(state.lease, ending=ending))


def _ended(rules: LeaseRules, owner: str, ending: Ending, value: int | None, now_ns: int) -> Say:
    return Say(
        ControlLeaseEnded(
            t_ns=now_ns,
            gpu=rules.gpu,
            control=rules.control,
            owner=owner,
            cause=ending.cause,
            reason=ending.reason[:2000],
            value=value,
        )
    )


def _applied(rules: LeaseRules, command: Command, value: int, now_ns: int, took_us: int = 0) -> Outcome:
    return ControlApplied(now_ns, command.command, rules.gpu, rules.control, value, took_us)


def _conclude(state: ControlState, outcome: Outcome) -> Answer:
    return replace(state, outcomes=(*state.outcomes, outcome)[-MAX_OUTCOMES:]), (Say(outcome),)


def _raise_fence(fences: tuple[tuple[str, int], ...], command: Command) -> tuple[tuple[str, int], ...]:
    others = tuple(fence for fence in fences if fence[0] != command.owner)
    return (*others, (command.owner, command.fence))[-MAX_OWNERS:]


def _refusal(rules: LeaseRules, command: Command, why: str) -> str:
    what = spell_change(rules.control, command.value if isinstance(command, SetControl) else None)
    return f"{rules.gpu}: could not {what}: {why}."[:2000]


# ---- why a command is refused -------------------------------------------------------------------------


def _objection(
    rules: LeaseRules, state: ControlState, waiting: WaitingCommand, now_ns: int
) -> tuple[Cause, str] | None:
    """Return why a command whose turn it is must not be carried out, or None."""
    command, lease = waiting.command, state.lease
    if state.closing:
        return "stale", "the collector stops. Send it to the next one"
    if command.incarnation != rules.incarnation:
        return "stale", "it was meant for an earlier start of the collector. Greet it again"
    if command.fence <= dict(state.fences).get(command.owner, -1):
        return "stale", f"fence {command.fence} came after a later command of {command.owner}"
    if lease is not None and lease.owner != command.owner:
        return "owned", f"run {lease.run} of {lease.owner} holds it. Wait until its lease ends"
    if isinstance(command, ReleaseControl):
        return None
    if rules.observe:
        return "observe", "this collector only observes. Start it without --observe"
    if waiting.objection is not None:
        return "ownership", waiting.objection
    if rules.trouble is not None:
        return "storage", rules.trouble
    if lease is not None and not _one_run(lease.run, command.run):
        return "owned", f"run {lease.run} of {lease.owner} holds it. Wait until its lease ends"
    for beside in rules.beside:
        ours = beside.owner == command.owner and _one_run(beside.run, command.run)
        if not ours and not beside.over(now_ns):
            return "owned", f"run {beside.run} of {beside.owner} holds the GPU. Wait until its lease ends"
    if (why := _out_of_range(rules, state.limits, command.value)) is not None:
        return "range", why
    if now_ns >= waiting.received_ns + command.lease_ms * 1_000_000:
        return "stale", "its lease ran out before its turn came. Ask for a longer one"
    return None


def _one_run(one: str, other: str) -> bool:
    """Return True if one owner's leases of these names may follow each other: one run, or a budget's."""
    return one == other or one.startswith(BUDGET) or other.startswith(BUDGET)


def _out_of_range(rules: LeaseRules, limits: Limits, value: int) -> str | None:
    if rules.control == "power_limit":
        if rules.least_mw <= value <= limits.found:
            return None
        span = f"{spell(rules.control, rules.least_mw)} to {spell(rules.control, limits.found)}"
        return f"it is not within {span}, the limit that was found. Choose one that is"
    if rules.control == "power_profile":
        lacking = value & ~rules.profiles
        return f"the GPU has no power profile {spell_profiles(lacking)}. Choose another" if lacking else None
    if not rules.clocks_mhz:
        return "the GPU names no clock that could be locked. Measure only"
    if value in rules.clocks_mhz:
        return None
    nearest = min(rules.clocks_mhz, key=lambda clock_mhz: abs(clock_mhz - value))
    count, nearest_words = len(rules.clocks_mhz), spell(rules.control, nearest)
    return f"it is none of the GPU's {count} clocks. The nearest is {nearest_words}"
