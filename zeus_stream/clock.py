"""The only file that reads time.

Times that are subtracted are CLOCK_MONOTONIC in ns, valid within one boot of one host. Wall time is
an anchor that lets tables show UTC; no energy and no duration depends on it. The processor time of a thread
says what something cost.
"""

from pathlib import Path
from time import monotonic_ns, thread_time_ns, time_ns

from msgspec import Struct

__all__ = ["Anchor", "anchor", "boot_id", "monotonic_ns", "thread_time_ns", "to_next_s"]


MOVED_NS = 100_000_000
"""UTC that has moved by so much against CLOCK_MONOTONIC was set, or the host was suspended."""


class Anchor(Struct, frozen=True):
    """One instant on both clocks: ``wall_ns`` (ns since 1970, UTC) was read at ``monotonic_ns``."""

    monotonic_ns: int
    wall_ns: int
    error_ns: int
    """Half the time between the two monotonic reads around the wall read: the anchor's bound."""

    def is_outdated(self, now: "Anchor", age_ns: int) -> bool:
        """Return whether it is so old, or UTC was set since, or the host was suspended."""
        passed_ns, passed_wall_ns = now.monotonic_ns - self.monotonic_ns, now.wall_ns - self.wall_ns
        return passed_ns >= age_ns or abs(passed_wall_ns - passed_ns) >= MOVED_NS


def anchor() -> Anchor:
    """Read both clocks, three times, and keep the tightest pair."""
    pairs = []
    for _ in range(3):
        before = monotonic_ns()
        wall = time_ns()
        after = monotonic_ns()
        pairs.append(Anchor((before + after) // 2, wall, (after - before + 1) // 2))
    return min(pairs, key=lambda pair: pair.error_ns)


def boot_id() -> str:
    """Return the kernel's id of this boot: monotonic times of two boots must never be subtracted."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def to_next_s(every_s: float) -> float:
    """Return the time to the next whole multiple: tasks that sleep so wake together, which costs less."""
    return to_next_ns(monotonic_ns(), round(every_s * 1e9)) / 1e9


def to_next_ns(now_ns: int, every_ns: int) -> int:
    """Return the time to the next whole multiple of ``every_ns``, ns."""
    return every_ns - now_ns % every_ns
