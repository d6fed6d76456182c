"""A listener at a socket file and a TCP port: accepts under our own limits, before any ZeroMQ object exists.

    accept     for a while at a time, so that those already connected have their turn; `ConnectionLimits`
               gives the place, by the user that the kernel names, or by the key of another host
    receive    a message of a client at a time, all clients in turn; what is not read stays in the kernel
    send       at once, or queued for a client that reads slowly, up to a limit

A client is an ordinary ZeroMQ socket: a DEALER asks, a SUB follows the feed. libzmq itself does not accept
here: it ends the process when it has no descriptor left. Other hosts come by TCP, with keys (`tcp_port`).
"""

import select
import socket
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import MalformedError
from zeus_stream.transport.channel import DRAIN, DRAIN_BYTES, HANDSHAKE_MS, QUEUE, Received
from zeus_stream.transport.listening import zmtp
from zeus_stream.transport.listening.connection_limits import (
    ConnectionLimits,
    ConnectionSlot,
    User,
    process_limits,
)
from zeus_stream.transport.listening.socket_file import SocketFile

if TYPE_CHECKING:
    from zeus_stream.transport.listening.curve_server import CurveServer
    from zeus_stream.transport.listening.tcp_port import TcpPort

READ_BYTES = 65_536
REQUEST_BYTES = 1_000_000
"""Largest message part that is taken; the largest batches and queries have half of it."""
MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""Sent to one client and not read by it: one more message is refused. A larger one is sent if it is alone."""
PIECES = 64
"""Handed to the kernel at once."""
MAX_TOPICS = 32
"""That one client may subscribe to."""
_NOT_NOW = (BlockingIOError, InterruptedError)


@dataclass(slots=True, eq=False)
class ConnectedClient:
    """One connection: of a program on this host, or of another host."""

    socket: socket.socket | None
    """None: closed."""
    sender: bytes
    reader: zmtp.ZmtpReader
    limits: ConnectionLimits
    """That have its place: of those without a key, until it has shown one."""
    place: ConnectionSlot
    uid: int | None = None
    pid: int | None = None
    """Of a program on this host."""
    since_ns: int = 0
    """When a connection of another host was accepted."""
    queued: deque[memoryview] = field(default_factory=deque)
    queued_bytes: int = 0
    topics: list[bytes] = field(default_factory=list)
    """That it subscribed to."""

    @property
    def key(self) -> str | None:
        """Name of the key of another host, once it is let in."""
        return None if self.reader.curve is None else self.reader.curve.key

    @property
    def open(self) -> bool:
        """Tell whether the client is still connected."""
        return self.socket is not None


class Listener:
    """A ROUTER, or for the feed a PUB, at a socket file. One task receives; any of its thread may send."""

    def __init__(
        self,
        path: Path,
        *,
        feed: bool = False,
        mode: int = 0o600,
        group: str | None = None,
        queue: int = QUEUE,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """Listen at a socket file in a directory that the caller has claimed.

        ``group``: gets the file, with mode 0660. ``limits``: of all connections of this process. None: this
        is its only listener. Raises SettingsError: the path is too long, or the group cannot have the file.
        """
        self.malformed = 0
        """Connections that were closed because they did not keep to the protocol."""
        self.port: TcpPort | None = None
        """For other hosts; None: they may not come."""
        self.limits = process_limits() if limits is None else limits
        self._kind: zmtp.Kind = "PUB" if feed else "ROUTER"
        self._queue = queue
        self._names = count()
        self._clients: dict[int, ConnectedClient] = {}
        """By descriptor."""
        self._by_sender: dict[bytes, ConnectedClient] = {}
        self._newcomers: dict[ConnectedClient, None] = {}
        """Of other hosts, oldest first: those that have shown no key yet."""
        self._unread: deque[ConnectedClient] = deque()
        """Clients of which a complete message may be here already."""
        self._unread_bytes = 0
        self._file = SocketFile(path, mode, group)
        self._epoll = select.epoll()
        self._epoll.register(self._file.socket, select.EPOLLIN)

    # ---- other hosts -----------------------------------------------------------------------------------

    def let_in(self, port: "TcpPort") -> None:
        """Accept the connections of a port as well."""
        self.port = port
        self._epoll.register(port.socket, select.EPOLLIN)

    def end_late_newcomers(self) -> None:
        """End connections that have not shown a key in time."""
        oldest_ns = monotonic_ns() - HANDSHAKE_MS * 1_000_000
        for client in tuple(self._newcomers):
            if client.since_ns > oldest_ns:
                break
            client.limits.refused += 1
            self._end(client)

    def end_keys(self, names: Container[str | None]) -> None:
        """End the connections of keys."""
        for client in tuple(self._clients.values()):
            if client.key in names:
                self._end(client)

    # ---- messages --------------------------------------------------------------------------------------

    @property
    def unread_bytes(self) -> int:
        """Bytes of messages that have not gone out."""
        return self._unread_bytes

    async def receive(self) -> list[Received]:
        """Wait for messages; return those there, at least one, at most about DRAIN, or none if cancelled."""
        while True:
            if self._unread:
                await anyio.lowlevel.checkpoint()
            else:
                await anyio.wait_readable(self._epoll.fileno())
            if messages := self._drain():
                return messages

    async def serve(self) -> None:
        """Accept clients and take in what they subscribe to, until cancelled. For the feed."""
        while True:
            await self.receive()

    def send(self, sender: bytes, *parts: bytes) -> bool:
        """Send to a client, or, topic first, to all who follow it. False: it is gone, or does not read."""
        if self._kind == "PUB":
            self._publish(sender, *parts)
            return True
        client = self._by_sender.get(sender)
        return client is not None and self._send(client, parts)

    def _publish(self, topic: bytes, *parts: bytes) -> None:
        parts = (topic, *parts)
        pieces = None
        for client in tuple(self._by_sender.values()):
            if zmtp.follows(client.topics, topic):
                if client.reader.curve is None:
                    pieces = pieces or zmtp.encode(parts)
                self._send(client, parts, pieces)

    def close(self) -> None:
        for client in tuple(self._clients.values()):
            self._end(client)
        if self.port is not None:
            self.port.close()
        self._epoll.close()
        self._file.close()

    def _drain(self) -> list[Received]:
        messages: list[Received] = []
        for _ in range(len(self._unread)):
            self._take(self._unread.popleft(), messages)
        knocked = False
        for descriptor, events in self._epoll.poll(0, DRAIN):
            if (client := self._clients.get(descriptor)) is not None:
                self._attend(client, events, messages)
            else:
                knocked = True
        if knocked:
            self._accept()
        return messages

    # ---- clients ---------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for accepted in self._file.accept_all():
            if (client := self._let_in(accepted.socket, accepted.uid, self.limits)) is not None:
                client.uid, client.pid = accepted.uid, accepted.pid
        if (port := self.port) is not None:
            for opened, address, curve in port.accept_all():
                if (client := self._let_in(opened, address, port.newcomers, curve)) is not None:
                    client.since_ns = monotonic_ns()
                    self._newcomers[client] = None

    def _let_in(
        self, opened: socket.socket, user: User, limits: ConnectionLimits, curve: "CurveServer | None" = None
    ) -> ConnectedClient | None:
        """Give a connection its place. None: it is one too many, which costs no more than its refusal."""
        place = limits.enter(user, lambda: self._end(client))
        if place is None:
            opened.close()
            return None
        reader = zmtp.ZmtpReader(self._kind, REQUEST_BYTES, curve)
        sender = b"%c%d" % (b"l" if curve is None else b"k", next(self._names))
        client = ConnectedClient(opened, sender, reader, limits, place)
        self._clients[opened.fileno()] = client
        self._epoll.register(opened, select.EPOLLIN)
        return client

    def _attend(self, client: ConnectedClient, events: int, messages: list[Received]) -> None:
        if events & select.EPOLLOUT:
            self._flush(client)
        if events & ~select.EPOLLOUT and client not in self._unread:
            self._read(client, messages)

    def _read(self, client: ConnectedClient, messages: list[Received]) -> None:
        read = 0
        while client.socket is not None and read < 4 * READ_BYTES:
            try:
                data = client.socket.recv(READ_BYTES)
            except _NOT_NOW:
                break
            except OSError:
                data = b""
            if not data:
                self._take(client, messages)  # what it sent before it went
                self._fail(client)
                return
            client.reader.feed(data)
            read += len(data)
            if len(data) < READ_BYTES:
                break
        self._take(client, messages)

    def _take(self, client: ConnectedClient, messages: list[Received]) -> None:
        """Take the complete messages of a client, as far as there is room in this turn."""
        reader, size = client.reader, 0
        try:
            while True:
                if len(messages) >= DRAIN or size > DRAIN_BYTES:
                    self._unread.append(client)
                    break
                if (parts := reader.next()) is None:
                    if reader.behind:
                        self._unread.append(client)
                    break
                size += sum(map(len, parts))
                self._receive(client, parts, messages)
        except MalformedError:
            self.malformed += 1
            self._fail(client)
            return
        if reader.replies:
            replies, reader.replies = reader.replies, []
            if len(client.queued) < self._queue:
                self._send_now(client, replies)
        if client in self._newcomers:
            self._look_at_key(client)
        if client.open and client.place.held_bytes != reader.held_bytes:
            client.limits.hold(client.place, reader.held_bytes)

    def _fail(self, client: ConnectedClient) -> None:
        """End a connection; one without a key has failed to show it."""
        if self.port is not None and client in self._newcomers:
            self.port.failed += 1
        self._end(client)

    def _look_at_key(self, newcomer: ConnectedClient) -> None:
        """Give a newcomer whose key is let in the place of a client; end one whose key is not."""
        curve = newcomer.reader.curve
        if curve is None:
            return
        if curve.known:
            newcomer.limits.settle(newcomer.place)
        if curve.refused:
            self._end(newcomer)
        elif curve.key is not None and newcomer.open:
            del self._newcomers[newcomer]
            newcomer.limits.leave(newcomer.place)
            newcomer.limits = self.limits
            place = self.limits.enter(curve.key, lambda: self._end(newcomer))
            if place is None:
                self._end(newcomer)
            else:
                newcomer.place = place

    def _receive(self, client: ConnectedClient, parts: list[bytes], messages: list[Received]) -> None:
        if client.sender not in self._by_sender:
            self._by_sender[client.sender] = client
            client.limits.settle(client.place)
        if self._kind == "PUB":
            _subscribe(client.topics, parts[0])
            return
        messages.append(
            Received(
                sender=client.sender,
                parts=parts,
                uid=client.uid,
                pid=client.pid,
                key=client.key,
                connection=client,
            )
        )

    def _send(
        self, client: ConnectedClient, parts: Sequence[bytes], pieces: list[bytes] | None = None
    ) -> bool:
        if len(client.queued) >= self._queue or client.queued_bytes > MAX_QUEUED_BYTES:
            return False
        self._send_now(client, pieces or client.reader.encode(parts))
        return client.open

    def _send_now(self, client: ConnectedClient, pieces: list[bytes]) -> None:
        if client.socket is None:
            return
        waited = bool(client.queued)
        for piece in pieces:
            client.queued.append(memoryview(piece))
            client.queued_bytes += len(piece)
            self._unread_bytes += len(piece)
        if not waited:
            self._flush(client)
            if client.queued:
                self._epoll.modify(client.socket, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, client: ConnectedClient) -> None:
        """Hand the kernel what is queued, as far as it takes it."""
        queued = client.queued
        while queued and client.socket is not None:
            try:
                sent = client.socket.sendmsg([queued[n] for n in range(min(len(queued), PIECES))])
            except _NOT_NOW:
                return
            except OSError:
                self._end(client)
                return
            client.queued_bytes -= sent
            self._unread_bytes -= sent
            while sent:
                if sent < len(queued[0]):
                    queued[0] = queued[0][sent:]
                    break
                sent -= len(queued.popleft())
        if client.socket is not None:
            self._epoll.modify(client.socket, select.EPOLLIN)

    def _end(self, client: ConnectedClient) -> None:
        """Close a connection."""
        if client.socket is None:
            return
        opened, client.socket = client.socket, None
        self._epoll.unregister(opened)
        del self._clients[opened.fileno()]
        opened.close()
        self._by_sender.pop(client.sender, None)
        self._unread_bytes -= client.queued_bytes
        client.queued.clear()
        client.queued_bytes = 0
        if client in self._unread:
            self._unread.remove(client)
        self._newcomers.pop(client, None)
        client.limits.leave(client.place)


def _subscribe(topics: list[bytes], message: bytes) -> None:
    """Take in what a SUB follows from now on, or no longer. One that follows too much is not listened to."""
    topic = message[1:]
    if message[:1] == b"\x01" and topic not in topics and len(topics) < MAX_TOPICS:
        topics.append(topic)
    elif message[:1] == b"\x00" and topic in topics:
        topics.remove(topic)
