"""Limits on what other programs hold of a process: connections, and bytes of messages that are not complete.

A process has room for a number of connections. When it is full, the user with most of them gives one up: the
oldest that has sent no message, else the oldest. A newcomer of that same user takes the place of a connection
that has been silent for a while, or is refused. So no user keeps another out, whatever the number of its
processes.
"""

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import SettingsError

User: TypeAlias = int | str
"""A user of this host; the name of a key; or the address of a host that has shown none yet."""
MOST_CONNECTIONS = 4_096
SHARE = 4
"""Of the files that this process may open, one in so many may be a connection of this host."""
LEAST_FILES = 128
"""That a service may open: it has about 40 open without any connection."""
SILENT_NS = 1_000_000_000
"""A program has so long for its first message. In a flood, most connections are refused before that."""
MAX_HELD_BYTES = 128 * 1024 * 1024
"""Of messages that are not complete, in all connections together."""


@dataclass(slots=True, eq=False)
class ConnectionSlot:
    """The place of one connection."""

    user: User
    close: Callable[[], None]
    """Ends the connection; its place is free already."""
    since_ns: int
    held_bytes: int = 0


class ConnectionLimits:
    """The connections of one process. It calls `ConnectionSlot.close` of those that give way."""

    def __init__(
        self,
        most: int,
        most_bytes: int = MAX_HELD_BYTES,
        silent_ns: int = SILENT_NS,
        now: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.most = most
        self.refused = 0
        """Connections that were refused, or closed for others."""
        self._most_bytes, self._silent_ns, self._now = most_bytes, silent_ns, now
        self._silent: dict[User, dict[ConnectionSlot, None]] = {}
        """By user, oldest first: those that have sent no message."""
        self._known: dict[User, dict[ConnectionSlot, None]] = {}
        """By user, oldest first: all others."""
        self._count: dict[User, int] = {}
        self._total = 0
        self._bytes: dict[User, int] = {}
        """Held by user."""
        self._total_bytes = 0

    def __len__(self) -> int:
        """Return the number of connections."""
        return self._total

    def enter(self, user: User, close: Callable[[], None]) -> ConnectionSlot | None:
        """Give a new connection of a user its place. None: it is refused."""
        now_ns = self._now()
        if self._total >= self.most:
            self.refused += 1
            if (gives_way := self._to_close(user, now_ns)) is None:
                return None
            self._end(gives_way)
        place = ConnectionSlot(user, close, now_ns)
        self._silent.setdefault(user, {})[place] = None
        self._count[user] = self._count.get(user, 0) + 1
        self._total += 1
        return place

    def _to_close(self, user: User, now_ns: int) -> ConnectionSlot | None:
        most = max(self._count, key=self._count.__getitem__)
        if self._count[most] > self._count.get(user, 0):
            return next(self._of(most))
        oldest = next(iter(self._silent.get(user, ())), None)
        return oldest if oldest is not None and now_ns - oldest.since_ns >= self._silent_ns else None

    def _of(self, user: User) -> Iterator[ConnectionSlot]:
        yield from self._silent.get(user, ())
        yield from self._known.get(user, ())

    def settle(self, place: ConnectionSlot) -> None:
        """Take in that a connection has sent a message."""
        if place in (silent := self._silent.get(place.user, {})):
            del silent[place]
            self._known.setdefault(place.user, {})[place] = None

    def hold(self, place: ConnectionSlot, held_bytes: int) -> None:
        """Take in how much of an incomplete message a connection has sent; too much closes the largest."""
        self._add(place, held_bytes - place.held_bytes)
        while self._total_bytes > self._most_bytes:
            self.refused += 1
            most = max(self._bytes, key=self._bytes.__getitem__)
            self._end(max(self._of(most), key=lambda each: each.held_bytes))

    def _end(self, place: ConnectionSlot) -> None:
        self.leave(place)
        place.close()

    def _add(self, place: ConnectionSlot, more: int) -> None:
        place.held_bytes += more
        self._total_bytes += more
        self._bytes[place.user] = self._bytes.get(place.user, 0) + more

    def leave(self, place: ConnectionSlot) -> None:
        """Take in that a connection is closed."""
        user = place.user
        for by_user in (self._silent, self._known):
            if place in by_user.get(user, ()):
                del by_user[user][place]
                break
        else:
            return
        self._add(place, -place.held_bytes)
        self._total -= 1
        self._count[user] -= 1
        if not self._count[user]:
            for table in (self._silent, self._known):
                table.pop(user, None)
            del self._count[user], self._bytes[user]


def process_limits() -> ConnectionLimits:
    """Return the limits of this process, by the number of files that it may open."""
    return ConnectionLimits(min(MOST_CONNECTIONS, raise_file_limit() // SHARE))


def raise_file_limit() -> int:
    """Open as many files as this process may; return how many. SettingsError: fewer than a service needs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < LEAST_FILES:
        raise SettingsError(
            f"service: could not start: it may open {most} files, and needs {LEAST_FILES} or more. Raise the"
            " limit: `ulimit -Hn 4096`, or LimitNOFILE= in its systemd unit."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
