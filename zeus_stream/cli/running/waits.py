"""Waits of a command, and what it says about them."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from zeus_stream.cli.running.signals import Signals
from zeus_stream.clock import monotonic_ns
from zeus_stream.own_services import SAYS_S, say

LOOK_S, LOOK_MOST_S = 0.02, 0.5
"""Time between two checks of a condition."""


class Late(KeyboardInterrupt):
    """A block took longer than its deadline."""


def until(condition: Callable[[], bool], timeout_s: float, signals: Signals, waited_for: str = "") -> bool:
    """Wait until a condition is true, a signal arrives, or the time is over. Return whether it was true.

    Args:
        condition: to be checked again and again.
        timeout_s: longest wait.
        signals: end the wait.
        waited_for: completes "waiting for"; printed once the wait takes `SAYS_S`.
    """
    began_ns = monotonic_ns()
    end_ns = began_ns + round(timeout_s * 1e9)
    said = not waited_for
    asked_ns = began_ns
    while not condition():
        now_ns = monotonic_ns()
        if signals.told is not None or now_ns >= end_ns:
            return False
        if not said and now_ns - began_ns >= SAYS_S * 1e9:
            said = True
            say(f"waiting for {waited_for}: {timeout_s:g} s at most ...")
        # A look costs collector or analyzer as long as it costs us: they have other work.
        time.sleep(max(LOOK_S, min((now_ns - asked_ns) / 1e9, LOOK_MOST_S, (end_ns - now_ns) / 1e9)))
        asked_ns = monotonic_ns()
    return True


@contextmanager
def deadline(within_s: float, waited_for: str) -> Iterator[None]:
    """End the block with `Late` after this time, also within a query. For the main thread.

    Args:
        within_s: longest duration of the block, more than `SAYS_S`.
        waited_for: completes "waiting for"; printed once the block takes `SAYS_S`.
    """
    end_ns = monotonic_ns() + round(within_s * 1e9)

    def alarm(_number: int, _frame: FrameType | None) -> None:
        if monotonic_ns() >= end_ns:
            raise Late
        say(f"waiting for {waited_for}: {within_s:g} s at most ...")

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, SAYS_S, within_s - SAYS_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
