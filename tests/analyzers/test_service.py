"""What the analyzer takes from notes about leases, to keep them alive. (The rest of it runs as a process.)"""

from analyzers.results.rows import ApplyControl, ApplyControl
from analyzers.service import Host, _note_leases
from zeus_stream.protocol.notes import ControlApplied, ControlLeaseEnded, Notes, ControlRefused


def test_limits_and_clocks_are_held_apart_and_each_is_settled_by_its_own_outcome() -> None:
    host = Host()
    host.deferred = {
        ("g", False): ApplyControl("c1", "r", "h", "g", 200_000),
        ("g", True): ApplyControl("c2", "r", "h", "g", 1380),
    }
    _note_leases(host, Notes((ControlApplied(1, "c1", "g", 200_000),)))
    assert (host.held, host.locked, [*host.deferred]) == ({"g"}, set(), [("g", True)])
    _note_leases(host, Notes((ControlApplied(2, "c2", "g", 1380), ControlRefused(3, "c3", "g", "range", "no"))))
    assert (host.held, host.locked, host.deferred) == ({"g"}, {"g"}, {})
    _note_leases(host, Notes((ControlLeaseEnded(4, "g", "o", "lapsed", "silent", 250_000),)))
    assert (host.held, host.locked) == (set(), {"g"})
    _note_leases(host, Notes((ControlLeaseEnded(5, "g", "o", "lapsed", "silent", unlocked=True),)))
    assert host.locked == set()
    _note_leases(host, Notes((ControlApplied(6, "c4", "g", 1380), ControlApplied(7, "c5", "g", None))))
    assert host.locked == set()
