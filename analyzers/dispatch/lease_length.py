"""The length of leases on a busy host: it grows with the delay that is seen. Pure."""

from collections import deque

MAX_DELAYS = 1_000


class LeaseLength:
    """The length of the leases that one process renews."""

    def __init__(
        self, least_ms: int, *, factor: float = 4, most_ms: int = 30_000, remembered_s: float = 60
    ) -> None:
        """Begin with the least length. A lease outlasts ``factor`` times the longest delay remembered.

        What is leased stays up to ``most_ms`` after its holder has ended, or ``least_ms`` if that is more.
        """
        self.least_ms, self._most_ms = least_ms, most_ms
        """Where nothing delays; and the greatest."""
        self._factor, self._remembered_ns = factor, round(remembered_s * 1e9)
        self._delays: deque[tuple[int, int]] = deque(maxlen=MAX_DELAYS)
        """When and how long, ns; descending in length: a longer one hides those before it."""

    def delayed(self, now_ns: int, delay_ns: int) -> None:
        """Note that a renewal left, or an answer came, this much later than it was due."""
        while self._delays and self._delays[-1][1] <= delay_ns:
            self._delays.pop()
        self._delays.append((now_ns, delay_ns))

    def ms(self, now_ns: int) -> int:
        """Return the length of a lease that is asked for now."""
        while self._delays and now_ns - self._delays[0][0] > self._remembered_ns:
            self._delays.popleft()
        worst_ms = self._delays[0][1] / 1e6 if self._delays else 0.0
        return max(self.least_ms, round(min(self._factor * worst_ms, self._most_ms)))
