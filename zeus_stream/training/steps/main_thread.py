"""Has the main thread call something between two of its bytecodes, soon, when any thread asks for it.

It is what Python does when a signal arrives, without the signal: no system call is interrupted, and a main
thread that is busy in C does it when it comes back. For that, the handler of one real-time signal is ours in
this process; where somebody else has it, there are no nudges.
"""

import signal
import threading
from _thread import interrupt_main
from collections.abc import Callable

SIGNAL = signal.SIGRTMAX - 7


class Nudge:
    """One call that may be asked for."""

    def __init__(self) -> None:
        self._call: Callable[[], object] | None = None

    def arm(self, call: Callable[[], object]) -> None:
        """Make it possible, if this is the main thread and the signal is free."""
        if self._call is None and _in_main_thread() and signal.getsignal(SIGNAL) is signal.SIG_DFL:
            signal.signal(SIGNAL, lambda _signal, _frame: call())
            self._call = call

    def ask(self) -> None:
        """Ask for the call, from any thread."""
        if self._call is not None:
            interrupt_main(SIGNAL)  # type: ignore[arg-type]  # a real-time signal's number has no name

    def disarm(self) -> None:
        """Give the signal back. From then on a request does nothing."""
        if self._call is not None and _in_main_thread():
            self._call = None
            signal.signal(SIGNAL, signal.SIG_DFL)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
