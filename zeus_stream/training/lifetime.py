"""The publishers of this process: closed at its end, silent in its forks.

The one global of the project: a script of one line has nowhere to keep a publisher.
"""

import atexit
import os
import sys
import threading
from dataclasses import dataclass, field
from typing import Protocol

from zeus_stream.protocol.events import RunStarted

MAX_FAILURE = 500
"""Characters of the text of an exception."""


class LifetimeEnd(Protocol):
    """A publisher."""

    def close(self) -> None: ...

    def silence(self, reason: str) -> None:
        """Publish nothing from now on."""

    @property
    def started(self) -> RunStarted:
        """Return the event by which it introduced its process."""


@dataclass(slots=True)
class PublisherLifetimes:
    """The publishers of this process that are not closed."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    default: LifetimeEnd | None = None
    """The publisher of a script that makes none of its own."""
    open: set[LifetimeEnd] = field(default_factory=set)
    hooked: bool = False

    def enroll(self, publisher: LifetimeEnd) -> None:
        """Close a publisher when this process ends, unless it was closed before."""
        with self.lock:
            self.open.add(publisher)
            if not self.hooked:
                self.hooked = True
                atexit.register(self.close)
                os.register_at_fork(after_in_child=self.forked)
        # A forked child of multiprocessing leaves without atexit.
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            util.Finalize(None, self.close, exitpriority=0)

    def first_run(self) -> str | None:
        """Return the name of the run whose first rank this script is. None: it is none."""
        started = self.default.started if self.default is not None else None
        return started.run if started is not None and started.rank == 0 else None

    def close(self) -> None:
        """Close all of them."""
        for publisher in tuple(self.open):
            publisher.close()

    def forked(self) -> None:
        """Leave the parent's publishers to the parent. A child that calls the module gets its own."""
        for publisher in self.open:
            publisher.silence("this process is a fork of the one that measures")
        self.lock, self.default, self.open = threading.RLock(), None, set()


def describe_failure(error: BaseException | None = None) -> str | None:
    """Return as text ``error``, or the exception that ends this process (Python sets it before `atexit`)."""
    if error is None and not hasattr(sys, "ps1"):  # an interactive shell goes on after an exception
        error = getattr(sys, "last_value", None)
    if error is None or isinstance(error, SystemExit):
        return None
    name, text = type(error).__name__, str(error)
    return (f"{name}: {text}" if text else name)[:MAX_FAILURE].encode("utf-8", "replace").decode()


publishers = PublisherLifetimes()
