"""A listener at a socket file: accepts other programs under our own limits, before any ZeroMQ object exists.

    accept     a few at a time, so that those already connected have their turn; `ConnectionLimits` gives the
               place, by the user that the kernel names
    receive    a message of a client at a time, all clients in turn; what is not read stays in the kernel
    send       at once, or queued for a client that reads slowly, up to a limit

A client is an ordinary ZeroMQ socket: a DEALER asks, a SUB follows the feed. libzmq itself does not accept
here: it ends the process when it has no descriptor left. Other hosts come by TCP, with keys (`tcp_listener`).
"""

import select
import socket
from collections import deque
from itertools import count
from pathlib import Path

import anyio

from zeus_stream.errors import MalformedError
from zeus_stream.transport.channel import DRAIN, DRAIN_BYTES, Context, Received
from zeus_stream.transport.listening import zmtp
from zeus_stream.transport.listening.connection_limits import ConnectionLimits, ConnectionSlot
from zeus_stream.transport.listening.socket_file import Accepted, SocketFile
from zeus_stream.transport.listening.tcp_listener import TcpListener

ACCEPTS = 32
"""Connections taken in a turn: a flood of them delays those that are there by half a millisecond."""
READ_BYTES = 65_536
MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""Sent to one client and not read by it: one more message is refused. A larger one is sent if it is alone."""
PIECES = 64
"""Handed to the kernel at once."""
MAX_TOPICS = 32
"""That one client may subscribe to."""
_NOT_NOW = (BlockingIOError, InterruptedError)


class LocalClient:
    """One connection of a program on this host."""

    __slots__ = (
        "greeted",
        "pid",
        "place",
        "queued",
        "queued_bytes",
        "reader",
        "sender",
        "socket",
        "topics",
        "uid",
    )

    def __init__(self, accepted: Accepted, sender: bytes, reader: zmtp.ZmtpReader) -> None:
        self.socket: socket.socket | None = accepted.socket
        """None: closed."""
        self.sender = sender
        self.uid, self.pid = accepted.uid, accepted.pid
        self.reader = reader
        self.place: ConnectionSlot | None = None
        self.greeted = False
        self.queued: deque[memoryview] = deque()
        self.queued_bytes = 0
        self.topics: list[bytes] = []
        """That it subscribed to."""

    @property
    def open(self) -> bool:
        """Tell whether the client is still connected."""
        return self.socket is not None


class Listener:
    """A ROUTER, or for the feed a PUB, at a socket file. One task receives; any of its thread may send."""

    def __init__(
        self,
        path: Path,
        limits: ConnectionLimits,
        *,
        context: Context,
        kind: zmtp.Kind,
        mode: int,
        group: str | None,
        queue: int,
        max_bytes: int,
    ) -> None:
        """Listen. Raises SettingsError: the path is too long, or the file cannot be given to the group."""
        self.malformed = 0
        """Connections that were closed because they did not keep to the protocol."""
        self.tcp: TcpListener | None = None
        """For other hosts; None: they may not come."""
        self._limits, self._context = limits, context
        self._kind: zmtp.Kind = kind
        self._queue, self._max_bytes = queue, max_bytes
        self._names = count()
        self._clients: dict[int, LocalClient] = {}
        """By descriptor."""
        self._by_sender: dict[bytes, LocalClient] = {}
        self._unread: deque[LocalClient] = deque()
        """Clients of which a complete message may be here already."""
        self._unread_bytes = 0
        self._waiting: anyio.CancelScope | None = None
        self._file = SocketFile(path, mode, group)
        self._epoll = select.epoll()
        self._epoll.register(self._file.socket, select.EPOLLIN)

    # ---- other hosts -----------------------------------------------------------------------------------

    def let_in(self, address: str, secret: str, door: str) -> TcpListener:
        """Listen at a TCP address as well, for those whose keys the context's judge accepts at ``door``.

        Raises:
            SettingsError: the address cannot be listened at.
        """
        self.tcp = TcpListener(self._context, self._kind, self._queue, self._max_bytes, address, secret, door)
        self._epoll.register(self.tcp.channel.descriptor, select.EPOLLIN)
        return self.tcp

    # ---- messages --------------------------------------------------------------------------------------

    @property
    def unread_bytes(self) -> int:
        """Bytes of messages that have not gone out."""
        return self._unread_bytes + (0 if self.tcp is None else self.tcp.channel.unread_bytes)

    async def receive(self) -> list[Received]:
        """Wait for messages and return those that are there: at least one, at most about DRAIN.

        Cancelled, it has taken none.
        """
        while True:
            if self._unread or self._tcp_readable():
                await anyio.lowlevel.checkpoint()
            else:
                with anyio.CancelScope() as self._waiting:
                    await anyio.wait_readable(self._epoll.fileno())
                self._waiting = None
            if messages := self._drain():
                return messages

    async def serve(self) -> None:
        """Accept clients and take in what they subscribe to, until cancelled. For the feed."""
        while True:
            await self.receive()

    def send(self, sender: bytes, *parts: bytes) -> bool:
        """Send a message to a client. False: it is gone, or does not read what it was sent.

        To the feed: topic first. All who follow the topic get it, unless they do not read what they are sent.
        """
        if self._kind == "PUB":
            self._publish(sender, *parts)
            return True
        if (client := self._by_sender.get(sender)) is not None:
            return self._send(client, zmtp.encode(parts))
        if self.tcp is None:
            return False
        sent = self.tcp.channel.send_counted(sender, *parts)
        self._look_again()
        return sent

    def _publish(self, topic: bytes, *parts: bytes) -> None:
        pieces = None
        for client in tuple(self._by_sender.values()):
            if zmtp.follows(client.topics, topic):
                pieces = pieces or zmtp.encode((topic, *parts))
                self._send(client, pieces)
        if self.tcp is not None:
            self.tcp.channel.send(topic, *parts)

    def close(self) -> None:
        for client in tuple(self._clients.values()):
            self._end(client)
        if self.tcp is not None:
            self.tcp.close()
        self._epoll.close()
        self._file.close()

    def _tcp_readable(self) -> bool:
        return self.tcp is not None and self.tcp.channel.readable

    def _look_again(self) -> None:
        """Wake `receive`: sending to a ZeroMQ socket may swallow its descriptor's edge."""
        if self._waiting is not None and self._tcp_readable():
            self._waiting.cancel()

    def _drain(self) -> list[Received]:
        messages: list[Received] = []
        for _ in range(len(self._unread)):
            self._take(self._unread.popleft(), messages)
        accepting = False
        for descriptor, events in self._epoll.poll(0, DRAIN):
            if (client := self._clients.get(descriptor)) is not None:
                self._attend(client, events, messages)
            elif descriptor == self._file.socket.fileno():
                accepting = True
        if self.tcp is not None and self._tcp_readable():
            messages += self.tcp.take()
        if accepting:
            self._accept()
        return messages

    # ---- clients ---------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            if (accepted := self._file.accept()) is None:
                return
            self._greet(accepted)

    def _greet(self, accepted: Accepted) -> None:
        opened = accepted.socket
        reader = zmtp.ZmtpReader(self._kind, self._max_bytes)
        client = LocalClient(accepted, b"l%d" % next(self._names), reader)
        client.place = self._limits.enter(accepted.uid, lambda: self._end(client))
        if client.place is None:
            opened.close()
            return
        self._clients[opened.fileno()] = client
        self._epoll.register(opened, select.EPOLLIN)

    def _attend(self, client: LocalClient, events: int, messages: list[Received]) -> None:
        if events & select.EPOLLOUT:
            self._flush(client)
        if events & ~select.EPOLLOUT and client not in self._unread:
            self._read(client, messages)

    def _read(self, client: LocalClient, messages: list[Received]) -> None:
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
                self._end(client)
                return
            client.reader.feed(data)
            read += len(data)
            if len(data) < READ_BYTES:
                break
        if not client.greeted:
            client.greeted = True
            self._send_now(client, [zmtp.GREETING])
        self._take(client, messages)

    def _take(self, client: LocalClient, messages: list[Received]) -> None:
        """Take the complete messages of a client, as far as there is room in this turn."""
        reader, was_ready, size = client.reader, client.reader.ready, 0
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
            self._end(client)
            return
        if reader.ready and not was_ready:
            self._send_now(client, [zmtp.ready(self._kind)])
        if client.place is not None and client.open and client.place.held_bytes != reader.held_bytes:
            self._limits.hold(client.place, reader.held_bytes)

    def _receive(self, client: LocalClient, parts: list[bytes], messages: list[Received]) -> None:
        if client.place is not None and client.sender not in self._by_sender:
            self._by_sender[client.sender] = client
            self._limits.settle(client.place)
        if self._kind == "PUB":
            _subscribe(client.topics, parts[0])
            return
        messages.append(
            Received(sender=client.sender, parts=parts, uid=client.uid, pid=client.pid, connection=client)
        )

    def _send(self, client: LocalClient, pieces: list[bytes]) -> bool:
        if len(client.queued) >= self._queue or client.queued_bytes > MAX_QUEUED_BYTES:
            return False
        self._send_now(client, pieces)
        return client.open

    def _send_now(self, client: LocalClient, pieces: list[bytes]) -> None:
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

    def _flush(self, client: LocalClient) -> None:
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

    def _end(self, client: LocalClient) -> None:
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
        if client.place is not None:
            self._limits.leave(client.place)


def _subscribe(topics: list[bytes], message: bytes) -> None:
    """Take in what a SUB follows from now on, or no longer. One that follows too much is not listened to."""
    topic = message[1:]
    if message[:1] == b"\x01" and topic not in topics and len(topics) < MAX_TOPICS:
        topics.append(topic)
    elif message[:1] == b"\x00" and topic in topics:
        topics.remove(topic)
