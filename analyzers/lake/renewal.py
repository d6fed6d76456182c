"""Extend the time of a holder while its process works, however slow a commit or the opening of a lake is.

A process that is suspended extends nothing. One step that takes longer than STEP_S is taken as hung: another
process may take the part over then.
"""

import threading

from analyzers.lake.holders import TTL_S, Held, Holders
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import StorageError

STEP_S = 120.0
"""A step longer than this is taken as hung. A commit takes a second, and many on a busy host."""
END_S = 1.0
"""Time that the end waits for a renewal under way."""


class Renewal:
    """A thread that extends the time of a holder, over a connection of its own."""

    def __init__(self, dsn: str, held: Held, *, ttl_s: float = TTL_S, step_s: float = STEP_S) -> None:
        """Begin at once.

        Args:
            dsn: of PostgreSQL.
            held: the part.
            ttl_s: by which its time is extended, four times as often.
            step_s: a step longer than this is taken as hung.
        """
        self._dsn, self._held = dsn, held
        self._ttl_s, self._step_ns = ttl_s, round(step_s * 1e9)
        self._ended = threading.Event()
        self._stepped_ns = monotonic_ns()
        self._thread = threading.Thread(target=self._run, name=f"renewal of {held.name}", daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Say that the work goes on."""
        self._stepped_ns = monotonic_ns()

    def end(self) -> None:
        """Extend it no more."""
        self._ended.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        holders = Holders(self._dsn)
        try:
            while not self._ended.wait(self._ttl_s / 4):
                if monotonic_ns() - self._stepped_ns > self._step_ns:
                    continue
                try:
                    if not holders.renew(self._held, self._ttl_s):
                        return  # another process has the part: the next commit finds that out
                except StorageError:
                    continue  # PostgreSQL is away: the work cannot commit either, and says so
        finally:
            holders.close()
