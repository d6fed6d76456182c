"""The times at which the state of the machines is written: often enough to restart in seconds. Pure.

A restart repeats the work since the last checkpoint. So one is due after so much work, not after so much of
the stream: a busy site writes more often than an idle one.
"""

EVERY_NS = 60_000_000_000
"""Between two checkpoints, at most, once there was as much work as `LITTLE_NS`."""
LITTLE_NS = 500_000_000
"""Work of the interpreter that a restart may repeat at any time; an idle host gives as much in 15 min."""
WORK_NS = 2_000_000_000
"""Work of the interpreter after which one is due: a restart takes about as long."""
LEAST_TIMES = 50
"""A checkpoint waits until so many times the processor time of the last one: they take 2 % of a core at most.
On a busy host it takes ten times as long: what a restart repeats is not to grow with that."""
SOONER = 16
"""The first after a start is due this many times sooner than these two say, the next half as many times: of
any life of an analyzer that is killed again and again, half the work is not repeated."""


class CheckpointTimes:
    """The time of the next checkpoint."""

    def __init__(self, now_ns: int) -> None:
        """``now_ns``: on the clock of this process, as everywhere here."""
        self.wanted = False
        """One is due as soon as it may be: something was decided."""
        self._sooner = SOONER
        self._worked_ns = 0
        self._taken_ns = now_ns
        self._not_before_ns = now_ns

    def work(self, spent_ns: int) -> None:
        """Take in that the interpreter has worked."""
        self._worked_ns += spent_ns

    def due(self, now_ns: int) -> bool:
        """Return whether it is time."""
        late = self._worked_ns >= LITTLE_NS and now_ns - self._taken_ns >= EVERY_NS
        due = self.wanted or late or self._worked_ns >= WORK_NS // self._sooner
        return due and now_ns >= self._not_before_ns

    def taken(self, now_ns: int, cpu_ns: int) -> None:
        """Take in that one was taken, with so much processor time."""
        self.wanted, self._worked_ns, self._taken_ns = False, 0, now_ns
        self._not_before_ns = now_ns + LEAST_TIMES * cpu_ns // self._sooner
        self._sooner = max(1, self._sooner // 2)
