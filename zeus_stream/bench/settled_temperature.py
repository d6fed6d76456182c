"""When a GPU has a stable temperature. Pure."""

from collections import deque

SPAN_S = 10.0
"""The temperature is stable if it has changed by at most `CHANGE_C` for so long."""
CHANGE_C = 1


class SettledTemperature:
    """The latest temperatures of all GPUs of a benchmark."""

    def __init__(self, span_s: float = SPAN_S) -> None:
        self._span_s = span_s
        self._seen: deque[tuple[float, tuple[int, ...]]] = deque()

    def look(self, now_s: float, temperatures_c: tuple[int, ...]) -> bool:
        """Add the temperatures, C, of the GPUs in order, and tell whether they are stable. Empty: no."""
        if not temperatures_c or (self._seen and len(self._seen[-1][1]) != len(temperatures_c)):
            self._seen.clear()
            return False
        self._seen.append((now_s, temperatures_c))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - self._span_s:
            self._seen.popleft()
        if self._seen[0][0] > now_s - self._span_s:
            return False
        columns = zip(*(row for _, row in self._seen), strict=True)
        return all(max(column) - min(column) <= CHANGE_C for column in columns)
