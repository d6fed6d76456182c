"""The time for which readings and events may come together before they are logged. Pure.

Somebody waits for them at the beginning of a run and while limits are tried. Later, few and large frames cost
the training, the collector and the analyzer a fraction of many small ones.
"""

from collections.abc import Callable, Mapping

GATHER_NS = 500_000_000
BEGINNING_NS = 30_000_000_000
"""From the begin of a session."""
COMMAND_NS = 20_000_000_000
"""From a command: the next may depend on what it brings."""
QUESTION_NS = 2_000_000_000
COUNT_NS, FEW = 10_000_000_000, 6
"""Windows are long where a session sends fewer events than that within that time."""


class GatherPace:
    """The end of the time in which what comes in is handed on at once."""

    def __init__(self, hurried: Callable[[], None] = lambda: None) -> None:
        """``hurried``: called whenever somebody begins to wait."""
        self._until_ns = 0
        self._hurried = hurried

    def hurry(self, until_ns: int) -> None:
        """Hand on at once until then."""
        self._until_ns = max(self._until_ns, until_ns)
        self._hurried()

    def gather_ns(self, now_ns: int) -> int:
        """Return the time for which what comes in may wait now, ns."""
        return 0 if now_ns < self._until_ns else GATHER_NS


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
