"""Connections of other hosts that have shown no key yet.

They come over TCP: few at a time, and few bytes of each. ZeroMQ bounds the time and the size of one
handshake message, not how many connections have one open. Until a message with a key has come over it, a
connection counts as a newcomer for as long as its handshake may last.
"""

import os
import socket
from collections.abc import Callable

from msgspec import Struct

NEWCOMERS = 64
"""Of one port at a time; one more, and the oldest is shut."""
MAX_BYTES = 1_000_000
"""That a newcomer may send; as much as a message of a client."""
RECEIVED_AT = 128
"""Offset of ``tcpi_bytes_received`` in Linux's ``struct tcp_info`` (linux/tcp.h, since 4.1)."""
INFO_BYTES = 136


class _Newcomer(Struct, frozen=True):
    fd: int
    inode: int
    since_ns: int


class Newcomers:
    """The newcomers of one port, oldest first."""

    def __init__(self, port: int, handshake_ns: int) -> None:
        """``handshake_ns``: after which ZeroMQ has closed a connection that has shown no key."""
        self.shut = 0
        """Connections that were shut, since they were too many or sent too much."""
        self._port = port
        self._handshake_ns = handshake_ns
        self._there: dict[int, _Newcomer] = {}
        """By inode."""

    def accepted(self, fd: int, now_ns: int) -> None:
        """Take in a connection. One that is closed by now, or no connection of this port, is left out."""
        inode = _inode(fd)
        if inode is None or self._on_port(fd, lambda _: True) is not True:
            return
        self._there[inode] = _Newcomer(fd, inode, now_ns)
        if len(self._there) > NEWCOMERS:
            self._shut(next(iter(self._there.values())))

    def has_key(self, inode: int) -> None:
        """Take in that a message with a key came over a connection."""
        self._there.pop(inode, None)

    def look(self, now_ns: int) -> None:
        """Forget those whose handshake must be over, and shut who has sent too much."""
        for each in list(self._there.values()):
            if now_ns - each.since_ns > self._handshake_ns or _inode(each.fd) != each.inode:
                del self._there[each.inode]
            elif (sent := self._on_port(each.fd, _received_bytes)) is None or sent > MAX_BYTES:
                self._shut(each)

    def __len__(self) -> int:
        """Return the number of newcomers."""
        return len(self._there)

    def _shut(self, newcomer: _Newcomer) -> None:
        """End a connection; ZeroMQ finds it ended and closes it."""
        del self._there[newcomer.inode]
        if _inode(newcomer.fd) == newcomer.inode and self._on_port(newcomer.fd, _shut_down) is not None:
            self.shut += 1

    def _on_port(self, fd: int, look: Callable[[socket.socket], int]) -> int | None:
        """Return what a look at a connection gives; None: it is closed, or none of this port."""
        try:
            connection = socket.socket(fileno=os.dup(fd))
        except OSError:
            return None
        with connection:
            try:
                return look(connection) if connection.getsockname()[1] == self._port else None
            except (OSError, IndexError):
                return None


def _inode(fd: int) -> int | None:
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return None


def _received_bytes(connection: socket.socket) -> int:
    """Return how many bytes a peer has sent; 0 where the kernel does not say."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    return int.from_bytes(info[RECEIVED_AT:INFO_BYTES], "little") if len(info) == INFO_BYTES else 0


def _shut_down(connection: socket.socket) -> int:
    connection.shutdown(socket.SHUT_RDWR)
    return 1
