"""The hourly budget of each user in the log: bytes and events, as token buckets. Pure.

The log is bounded, so that what one user writes displaces what others wrote. A user may write one log's worth
of bytes an hour, a quarter of it at once.
"""

from msgspec import Struct

EVENTS_PER_H = 36_000_000
AT_ONCE = 4
"""A quarter of an hour's budget may be used at once."""
MAX_USERS = 1_000
"""Users whose use is remembered; the least recent is forgotten."""
HOUR_NS = 3_600_000_000_000


class UsedBudget(Struct, frozen=True):
    """The part of an hour's budget that a user has used; it decreases as time passes."""

    log_bytes: float = 0.0
    events: float = 0.0
    at_ns: int = 0
    refused: int = 0
    """Messages."""


class UserBudgets:
    """The budgets of all users of a host."""

    def __init__(self, bytes_per_h: int) -> None:
        self._bytes_per_h = bytes_per_h
        self._used: dict[int | None, UsedBudget] = {}

    def take(self, uid: int | None, size: int, events: int, now_ns: int) -> bool:
        """Count a message of ``size`` bytes, or refuse it: False, its user has used the budget."""
        used = self._at(uid, now_ns)
        log_bytes, count = used.log_bytes + size, used.events + events
        if log_bytes > self._bytes_per_h / AT_ONCE or count > EVENTS_PER_H / AT_ONCE:
            self._put(uid, UsedBudget(used.log_bytes, used.events, now_ns, used.refused + 1))
            return False
        self._put(uid, UsedBudget(log_bytes, count, now_ns, used.refused))
        return True

    def status(self, now_ns: int) -> list[tuple[str, str]]:
        """Return a name and a sentence for each user whose budget is in use."""
        rows = []
        for uid in list(self._used)[:100]:
            used = self._at(uid, now_ns)
            most_mb, most_events = self._bytes_per_h / AT_ONCE / 1e6, EVENTS_PER_H // AT_ONCE
            text = f"{used.log_bytes / 1e6:.1f} of {most_mb:g} MB, {used.events:.0f} of {most_events} events"
            rows.append((f"budget of user {uid}", f"{text} in use, {used.refused} messages refused"))
        return rows

    def _at(self, uid: int | None, now_ns: int) -> UsedBudget:
        used = self._used.get(uid, UsedBudget(at_ns=now_ns))
        passed = max(0, now_ns - used.at_ns) / HOUR_NS
        return UsedBudget(
            max(0.0, used.log_bytes - passed * self._bytes_per_h),
            max(0.0, used.events - passed * EVENTS_PER_H),
            now_ns,
            used.refused,
        )

    def _put(self, uid: int | None, used: UsedBudget) -> None:
        self._used.pop(uid, None)
        self._used[uid] = used
        if len(self._used) > MAX_USERS:
            del self._used[next(iter(self._used))]
