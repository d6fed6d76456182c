"""Why a command for a control is refused: the rules at the head of `lease`, one by one. Pure."""

from collectors.control import spell
from collectors.controls.lease_messages import Limits
from collectors.controls.lease_state import Guarded, Rules, Waiting
from zeus_stream.protocol.commands import ReleaseControl
from zeus_stream.protocol.fields import BUDGET
from zeus_stream.protocol.notes import Cause


def objection(rules: Rules, state: Guarded, waiting: Waiting, now_ns: int) -> tuple[Cause, str] | None:
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


def _out_of_range(rules: Rules, limits: Limits, value: int) -> str | None:
    if rules.control == "power_limit":
        if rules.least_mw <= value <= limits.found:
            return None
        span = f"{spell(rules.control, rules.least_mw)} to {spell(rules.control, limits.found)}"
        return f"it is not within {span}, the limit that was found. Choose one that is"
    if not rules.clocks_mhz:
        return "the GPU names no clock that could be locked. Measure only"
    if value in rules.clocks_mhz:
        return None
    nearest = min(rules.clocks_mhz, key=lambda clock_mhz: abs(clock_mhz - value))
    count, nearest_words = len(rules.clocks_mhz), spell(rules.control, nearest)
    return f"it is none of the GPU's {count} clocks. The nearest is {nearest_words}"
