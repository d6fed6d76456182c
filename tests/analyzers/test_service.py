"""What the analyzer takes from notes about leases, to keep them alive. (The rest of it runs as a process.)"""

from analyzers.results.rows import ApplyControl
from analyzers.service import Host, _note_leases
from zeus_stream.protocol.fields import UNLOCKED, Control
from zeus_stream.protocol.notes import ControlApplied, ControlLeaseEnded, ControlRefused, Notes


def asking(command: str, control: Control, value: int) -> ApplyControl:
    return ApplyControl(command=command, run="r", host="h", gpu="g", control=control, value=value)


def lapsed(control: Control, value: int) -> ControlLeaseEnded:
    return ControlLeaseEnded(
        t_ns=4, gpu="g", control=control, owner="o", cause="lapsed", reason="silent", value=value
    )


def test_limits_and_clocks_are_held_apart_and_each_is_settled_by_its_own_outcome() -> None:
    host = Host()
    host.deferred = {
        ("g", "power_limit"): asking("c1", "power_limit", 200_000),
        ("g", "graphics_clock"): asking("c2", "graphics_clock", 1380),
    }
    limit, clock = ("g", "power_limit"), ("g", "graphics_clock")
    _note_leases(host, Notes((ControlApplied(1, "c1", "g", "power_limit", 200_000),)))
    assert (host.held, [*host.deferred]) == ({limit}, [clock])
    refused = ControlRefused(3, "c3", "g", "range", "no")
    _note_leases(host, Notes((ControlApplied(2, "c2", "g", "graphics_clock", 1380), refused)))
    assert (host.held, host.deferred) == ({limit, clock}, {})
    _note_leases(host, Notes((lapsed("power_limit", 250_000),)))
    assert host.held == {clock}
    _note_leases(host, Notes((lapsed("graphics_clock", UNLOCKED),)))
    assert host.held == set()
    locked = ControlApplied(6, "c4", "g", "graphics_clock", 1380)
    _note_leases(host, Notes((locked, ControlApplied(7, "c5", "g", "graphics_clock", UNLOCKED))))
    assert host.held == set()
