"""The status of a collector and its devices, as rows for people."""

from typing import TypeAlias

from collectors.control import spell, words
from collectors.controls.device_thread import DeviceThread
from collectors.controls.supervisor import SupervisedControl, SupervisedDevice
from collectors.device import watts
from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.fields import Control, spell_profiles

Row: TypeAlias = tuple[str, str, str]
"""Section, name, value."""


def device_rows(guard: SupervisedDevice) -> list[Row]:
    """Return the rows of one device."""
    watch = guard.watch
    section = f"{guard.description.name} {watch.gpu}"
    period = "not known yet" if watch.sampled.period_ns is None else f"{watch.sampled.period_ns / 1e6:.1f} ms"
    if watch.sampled.timed:
        period += ", by a timer"
    rows = [
        (section, "state", watch.trouble or ("there" if guard.there else "lost")),
        (section, "refreshes every", period),
        (section, "reads", f"{watch.reads}, {watch.retries} failed and tried again"),
    ]
    if watch.card:
        rows.append((section, "sensor card", watch.card))
    if (cost := watch.sampled.cost) is not None:
        words_of_cost = (
            f"{cost.per_s:.1f} a second, {cost.p50_ns / 1e6:.2f} ms p50, {cost.p99_ns / 1e6:.2f} ms p99"
        )
        rows.append((section, "reads cost", words_of_cost))
    if watch.slept:
        rows.append((section, "suspended", f"{watch.slept} reads left out, which would have woken it"))
    rows += [(section, "does not answer", sentence) for sentence in guard.description.unanswered]
    if "power_limit" not in guard.controls:
        rows.append((section, "power limit", "cannot be set"))
    for control, guarding in guard.controls.items():
        rows += [(section, *row) for row in _control_rows(watch, control, guarding)]
    return rows


def _control_rows(
    watch: DeviceThread, control: Control, guarding: SupervisedControl
) -> list[tuple[str, str]]:
    state = guarding.state
    name = words(control)
    which = "" if control == "power_limit" else f"{name}: "
    if control == "power_limit":
        found, enforced = spell(control, state.limits.found), _watts(watch.enforced_mw)
        rows = [(name, f"{_watts(watch.requested_mw)}, found {found}, enforced {enforced}")]
    elif control == "power_profile":
        asked, in_force = watch.profiles or (state.limits.last, None)
        found, enforced = (_profiles(each) for each in (state.limits.found, in_force))
        rows = [(name, f"{spell_profiles(asked)}, found {found}, enforced {enforced}")]
    else:
        locked = f"locked at {spell(control, state.limits.last)}"
        rows = [(name, locked if state.limits.changed else "not locked by us")]
    if guarding.rules.trouble is not None:
        rows.append((f"{which}restore record", guarding.rules.trouble))
    if state.lease is not None:
        left_s = (state.lease.deadline_ns - monotonic_ns()) / 1e9
        lease = f"run {state.lease.run} of {state.lease.owner}, {max(left_s, 0):.1f} s left"
        rows.append((f"{which}lease", lease))
    if state.failures:
        rows.append((f"{which}failed restores", str(state.failures)))
    return rows


def _profiles(bits: int | None) -> str:
    return "not known" if bits is None else spell_profiles(bits)


def _watts(limit_mw: int | None) -> str:
    return "not known" if limit_mw is None else watts(limit_mw)
