"""Marks of phases as times: how long which phase was under way until an instant. Pure."""

from collections.abc import Sequence

import numpy as np

from analyzers.measurement.knots import Floats, Ints

MAX_PHASES = 16
"""Names of phases of one session; what is marked with one more counts as `OTHER`."""
OTHER = "other"
"""The name of the time between phases."""
MAX_MARKS = 200_000
"""Marks kept until the readings of their time have come; of more, the older half goes."""


class MarkTimes:
    """The marks of one session. Phase 0 is `OTHER`."""

    def __init__(self) -> None:
        self.names = [OTHER]
        self.dropped = 0
        """Marks that were forgotten before they were measured."""
        self._t_ns = np.empty(0, np.int64)
        self._phase = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._t_ns)

    @property
    def first_ns(self) -> int:
        return int(self._t_ns[0])

    @property
    def last_ns(self) -> int:
        return int(self._t_ns[-1])

    def number(self, name: str) -> int:
        """Return the number of a phase; 0 where there are too many."""
        if name not in self.names:
            if len(self.names) == MAX_PHASES:
                return 0
            self.names.append(name)
        return self.names.index(name)

    def add(self, t_ns: Sequence[int], phases: Sequence[int]) -> None:
        """Take in marks: from each instant on, the phase of this number is under way."""
        fresh = np.array(t_ns, np.int64)
        if len(self._t_ns):
            fresh = np.maximum(fresh, self._t_ns[-1])
        self._t_ns = np.concatenate((self._t_ns, np.maximum.accumulate(fresh)))
        self._phase = np.concatenate((self._phase, np.array(phases, np.int64)))
        if len(self._t_ns) > MAX_MARKS:
            self.dropped += len(self._t_ns) // 2
            self._keep(len(self._t_ns) // 2)

    def forget(self, before_ns: int) -> None:
        self._keep(max(int(self._t_ns.searchsorted(before_ns, side="right")) - 1, 0))

    def _keep(self, first: int) -> None:
        self._t_ns, self._phase = self._t_ns[first:], self._phase[first:]

    def under_way(self, t_ns: Ints) -> Ints:
        """Return the phase at instants that are not before the first mark; shape (n,)."""
        return self._phase[self._t_ns.searchsorted(t_ns, side="right") - 1]

    def until(self, t_ns: Ints) -> Floats:
        """Return the seconds of each phase from the first mark until instants; shape (n, phases)."""
        count = len(self.names)
        took_s = np.diff(self._t_ns, append=self._t_ns[-1]) / 1e9
        sums = np.zeros((len(took_s) + 1, count))
        np.cumsum(np.eye(count)[self._phase] * took_s[:, None], axis=0, out=sums[1:])
        at = np.maximum(self._t_ns.searchsorted(t_ns, side="right") - 1, 0)
        seconds: Floats = sums[at]
        seconds[np.arange(len(at)), self._phase[at]] += (t_ns - self._t_ns[at]) / 1e9
        return seconds

    def entered(self, t_ns: Ints) -> Floats:
        """Return how often each phase was followed by each, between instants; shape (n - 1, k, k)."""
        count = len(self.names)
        moved = np.flatnonzero(np.diff(self._phase)) + 1
        found = np.zeros((len(t_ns) - 1, count, count))
        at = t_ns.searchsorted(self._t_ns[moved]) - 1
        inside = (at >= 0) & (at < len(found))
        np.add.at(found, (at[inside], self._phase[moved - 1][inside], self._phase[moved][inside]), 1.0)
        return found
