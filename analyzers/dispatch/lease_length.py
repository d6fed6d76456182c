"""The length of leases on a busy host: it grows with the delay that is seen. Pure."""

from collections import deque

FACTOR = 4
"""Times the longest delay that a lease outlasts."""
REMEMBERED_NS = 60_000_000_000
MOST_MS = 30_000
"""A lease is never longer: so long a limit may stay after the analyzer has ended."""
MAX_DELAYS = 1_000


class LeaseLength:
    """The length of the leases of one collector."""

    def __init__(self, least_ms: int) -> None:
        self.least_ms = least_ms
        """Where nothing delays."""
        self._delays: deque[tuple[int, int]] = deque(maxlen=MAX_DELAYS)
        """When and how long, ns; descending in length: a longer one hides those before it."""

    def delayed(self, now_ns: int, delay_ns: int) -> None:
        """Note that a renewal left, or an answer came, this much later than it was due."""
        while self._delays and self._delays[-1][1] <= delay_ns:
            self._delays.pop()
        self._delays.append((now_ns, delay_ns))

    def ms(self, now_ns: int) -> int:
        """Return the length of a lease that is asked for now."""
        while self._delays and now_ns - self._delays[0][0] > REMEMBERED_NS:
            self._delays.popleft()
        worst_ms = self._delays[0][1] // 1_000_000 if self._delays else 0
        return max(self.least_ms, min(FACTOR * worst_ms, MOST_MS))
