"""Sessions whose windows are short, by how often their events come. Pure."""

from collections.abc import Mapping

COUNT_NS, FEW = 10_000_000_000, 6
"""Windows are long where a session sends fewer events than that within that time."""


class ShortWindows:
    """The sessions that compare short windows: a counter under them is read closely."""

    def __init__(self) -> None:
        self._counted_ns = 0
        self._counts: dict[str, int] = {}
        self._long: set[str] = set()

    def count(self, events: Mapping[str, int], now_ns: int) -> None:
        """Take in how many events each session has sent so far. It may be called often."""
        if now_ns - self._counted_ns < COUNT_NS:
            return
        before, self._counts, self._counted_ns = self._counts, dict(events), now_ns
        self._long = {name for name, count in events.items() if count - before.get(name, -FEW) < FEW}

    def __contains__(self, session: str) -> bool:
        """Return whether a session's windows are short, or may be: it is young."""
        return session not in self._long
