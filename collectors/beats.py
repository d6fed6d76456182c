"""The collector's clock: what only time brings is done here, and nothing wakes before it is due.

while somebody waits (a command, a question, a young run)     every BEAT_NS: readings are logged at once
while a lease is held, or a device is read closely            every REST_NS, and at the end of a lease
at rest: no lease, and every device is read seldom            after each reading of the devices; between
                                                              them a frame without readings, each ALIVE_NS
"""

from collections.abc import Callable, Iterator

import anyio

from collectors.controls.supervisor import Supervisor
from collectors.ingest.pace import GatherPace
from collectors.log.feed import LogFeed
from collectors.sampling import schedule
from zeus_stream.clock import monotonic_ns, to_next_ns

BEAT_NS = 50_000_000
REST_NS = 250_000_000
AFTER_READING_NS = 20_000_000
"""From the instant at which the unused devices are read to when the readings of all are logged."""
KEEP_NS = 2_000_000_000
"""Between two looks at what the log may forget while it grows fast."""
KEEP_AT_REST_NS = 20_000_000_000
RELAX_NS = 1_000_000_000
"""Between two looks at which devices sessions use."""


class Beats:
    """Readings to the log, time to the leases, and age to the log."""

    def __init__(
        self,
        guards: Supervisor,
        journal: LogFeed,
        pace: GatherPace,
        used: Callable[[], None],
        log_bytes: int,
        log_ns: int,
    ) -> None:
        """``used``: tells the guards which devices are used. ``log_bytes``, ``log_ns``: the log's limits."""
        self._guards, self._journal, self._pace, self._used = guards, journal, pace, used
        self._log_bytes, self._log_ns = log_bytes, log_ns
        self._bell = anyio.Event()
        self._logged_ns = self._kept_ns = self._relaxed_ns = 0
        self._forgets = False
        """The log had something to forget, so it may have more."""

    def hurry(self) -> None:
        """Let the next beat be due."""
        self._bell.set()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self._bell = anyio.Event()
            pause_s = self._beat()
            with anyio.move_on_after(pause_s):
                await self._bell.wait()

    def _beat(self) -> float:
        """Do what is due, and return how long nothing will be, s."""
        now_ns = monotonic_ns()
        gather_ns = self._pace.gather_ns(now_ns)
        resting = self._resting()
        if resting or now_ns - self._logged_ns >= gather_ns:
            if not self._guards.log_readings() and resting:
                self._guards.say_alive()
            self._logged_ns = now_ns
        check_ns = self._guards.beat()
        self._journal.flush()
        if now_ns - self._relaxed_ns >= RELAX_NS:
            self._relaxed_ns = now_ns
            self._used()
            self._guards.relax()
        if self._forgets or now_ns - self._kept_ns >= (KEEP_AT_REST_NS if resting else KEEP_NS):
            self._kept_ns = now_ns
            self._forgets = bool(self._journal.prune(self._log_bytes, self._log_ns))
        pause_ns = self._pause_ns(now_ns, hurried=not gather_ns or self._forgets, resting=resting)
        return (pause_ns if check_ns is None else min(pause_ns, max(check_ns - now_ns, 0))) / 1e9

    def _pause_ns(self, now_ns: int, *, hurried: bool, resting: bool) -> int:
        if hurried:
            return to_next_ns(now_ns, BEAT_NS)
        if resting and self._journal.trouble is None:
            return to_next_ns(now_ns - AFTER_READING_NS, schedule.ALIVE_NS)
        rest_ns = to_next_ns(now_ns, REST_NS)
        return min((rest_ns, *(max(due_ns - now_ns, 0) for due_ns in self._due_ns(now_ns))))

    def _resting(self) -> bool:
        """Tell whether no control is changed, or about to be, and no device is read closely."""
        return all(
            guard.watch.at_rest and all(each.state.at_rest for each in guard.controls.values())
            for guard in self._guards.guards
        )

    def _due_ns(self, now_ns: int) -> Iterator[int]:
        """Yield when leases end, and when failed restores are tried again."""
        for guard in self._guards.guards:
            for each in guard.controls.values():
                if each.state.lease is not None and not each.state.lease.over(now_ns):
                    yield each.state.lease.deadline_ns
                elif each.state.limits.changed and each.state.retry_ns > now_ns:
                    yield each.state.retry_ns
