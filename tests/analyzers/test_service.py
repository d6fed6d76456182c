"""What the analyzer takes from notes about leases, to keep them alive. (The rest of it runs as a process.)"""

from analyzers.results.rows import ApplyClock, ApplyLimit
from analyzers.service import Host, _note_leases
from zeus_stream.protocol.notes import Applied, ClockApplied, ClockLeaseEnded, LeaseEnded, Notes, Refused


def test_limits_and_clocks_are_held_apart_and_each_is_settled_by_its_own_outcome() -> None:
    host = Host()
    host.deferred = {
        ("g", False): ApplyLimit("c1", "r", "h", "g", 200_000),
        ("g", True): ApplyClock("c2", "r", "h", "g", 1380),
    }
    _note_leases(host, Notes((Applied(1, "c1", "g", 200_000),)))
    assert (host.held, host.locked, [*host.deferred]) == ({"g"}, set(), [("g", True)])
    _note_leases(host, Notes((ClockApplied(2, "c2", "g", 1380), Refused(3, "c3", "g", "range", "no"))))
    assert (host.held, host.locked, host.deferred) == ({"g"}, {"g"}, {})
    _note_leases(host, Notes((LeaseEnded(4, "g", "o", "lapsed", "silent", 250_000),)))
    assert (host.held, host.locked) == (set(), {"g"})
    _note_leases(host, Notes((ClockLeaseEnded(5, "g", "o", "lapsed", "silent", unlocked=True),)))
    assert host.locked == set()
    _note_leases(host, Notes((ClockApplied(6, "c4", "g", 1380), ClockApplied(7, "c5", "g", None))))
    assert host.locked == set()
