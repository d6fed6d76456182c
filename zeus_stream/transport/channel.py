"""A ZeroMQ socket in an event loop: bounded in both directions, never blocking.

A request on ``control`` and ``query`` is ``[8 bytes, message]``, its reply ``[the same 8 bytes, message,
...]``. The limits of all sockets are set here.
"""

import os
import resource
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio
import zmq
from msgspec import Struct

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import SettingsError
from zeus_stream.paths import endpoint
from zeus_stream.protocol.codec import MAX_BYTES
from zeus_stream.transport.newcomers import Connections, Newcomers

if TYPE_CHECKING:
    from zmq.utils.monitor import _MonitorMessage

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
DRAIN = 256
"""Messages taken from a socket before other tasks have their turn."""
DRAIN_BYTES = 1_000_000
"""About the same in bytes."""
MESSAGE_BYTES = 16 * 1024 * 1024
"""Of a larger message only the first part is taken, which means nothing by itself: replies to fetches, the
largest there are, have a few MB. (SQL answers are read whole, by `exchange`.)"""
SPARE_FILES = 64
"""Descriptors that are free before a port is listened at."""
HANDSHAKE_MS = 2_000
"""A connection that has not shown its key by then is closed."""
CUT_S = 0.001
"""Between two looks at whether a port is free."""
HEARTBEAT_MS = 2_000
"""A host that is gone says nothing: over TCP it is asked so often,"""
SILENCE_MS = 6_000
"""and after so long without a sign of life the connection is over."""
NOBODY = None, None, None
"""Uid, pid and key of a peer that is not asked for."""
BROKEN_OFF = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Received(Struct, frozen=True, kw_only=True):
    """One message. ``sender`` is a ROUTER's address of the peer.

    A peer on this host has uid and pid, from the kernel; one on another has the name of its key. They are
    given for peers of a ROUTER alone.
    """

    sender: bytes
    parts: list[bytes]
    uid: int | None
    pid: int | None
    key: str | None = None
    connection: "Connected | None" = None


class Connected(Struct, frozen=True):
    """The connection over which a message came: a descriptor of this process, and its socket."""

    fd: int
    inode: int

    @property
    def open(self) -> bool:
        """Tell whether the peer is still connected."""
        return _inode(self.fd) == self.inode


def monitor_event(parts: list[bytes]) -> "_MonitorMessage":
    """Return what a monitor socket reports: ``event``, ``value`` and ``endpoint``."""
    from zmq.utils.monitor import parse_monitor_message  # noqa: PLC0415  (it imports asyncio)

    return parse_monitor_message(parts)


def _inode(fd: int) -> int | None:
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return None


class Channel:
    """A socket in an event loop. One task receives; any task of the same thread may send."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        path: Path | None = None,
        mode: int = 0,
        group: str | None = None,
    ) -> None:
        """``path``, ``mode``, ``group``: of the socket file of a listener."""
        self._socket = socket
        self._path = path
        self._mode = mode
        self._group = group
        self._distant: tuple[str, bytes, bytes] | None = None
        """TCP address, secret key and door, when other hosts may come."""
        self.connections = Connections(anybody=bool(mode & 0o006))
        """Those that were accepted, as far as `note_accepted` or `Failures.count` has come."""
        self.newcomers: Newcomers | None = None
        """Connections of other hosts that have not shown a key; None: other hosts may not come."""
        self._monitor: zmq.Socket[bytes] | None = None
        self._cutting = anyio.Lock()
        self._routes = socket.get(zmq.TYPE) == zmq.ROUTER
        self._waiting: anyio.CancelScope | None = None
        self._leaving: list[tuple[zmq.MessageTracker, int]] = []

    @property
    def trouble(self) -> str | None:
        """Why nobody is reached, in a sentence; None: that is not known."""
        return None

    def send(self, *parts: bytes) -> bool:
        """Hand over a message (to a ROUTER: address first). False: the queue is full or nobody is there."""
        return self._send(parts)

    def send_counted(self, *parts: bytes) -> bool:
        """`send`, and count it in `unread_bytes` until it has gone out, or with its peer."""
        frames = [zmq.Frame(part, track=True, copy=False, copy_threshold=0) for part in parts]
        sent = self._send(frames, copy=False)
        if sent:
            self._leaving += [(frame.tracker, len(frame)) for frame in frames if frame.tracker is not None]
        return sent

    @property
    def unread_bytes(self) -> int:
        """Bytes of counted messages that have not gone out."""
        self._leaving = [(tracker, size) for tracker, size in self._leaving if not tracker.done]
        return sum(size for _, size in self._leaving)

    def _send(self, parts: Sequence[bytes | zmq.Frame], *, copy: bool = True) -> bool:
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK, copy=copy)
        except (zmq.Again, zmq.ZMQError) as wrong:
            if wrong.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        finally:
            # Sending may swallow the descriptor's edge for a message that came in the meantime.
            if self._waiting is not None and self._readable():
                self._waiting.cancel()
        return True

    async def receive(self) -> list[Received]:
        """Wait for messages and return those that are there: at least one, at most DRAIN.

        Cancelled, it has taken none.
        """
        others_ran = False
        while True:
            if self._readable():
                if not others_ran:
                    await anyio.lowlevel.checkpoint()
                if messages := self._drain():
                    return messages
            with anyio.CancelScope() as self._waiting:
                # The descriptor is edge-triggered: look at EVENTS before each wait.
                if not self._readable():
                    others_ran = True
                    await anyio.wait_readable(self._socket.fileno())
            self._waiting = None

    def _readable(self) -> bool:
        return bool(int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def _drain(self) -> list[Received]:
        messages: list[Received] = []
        drained = 0
        while len(messages) < DRAIN and drained < DRAIN_BYTES:
            try:
                frames = [self._socket.recv(zmq.NOBLOCK, copy=False)]
                while frames[-1].more:
                    frames.append(self._socket.recv(zmq.NOBLOCK, copy=False))
            except zmq.Again:
                break  # before a first part: the others of a message are there with it
            size = sum(map(len, frames))
            drained += size
            # Only a listener asks who it is: on the feed, this took as long as the message itself.
            peer, connection = (_peer(frames[0]), _connected(frames[0])) if self._routes else (NOBODY, None)
            if self.newcomers is not None and connection is not None:
                self.newcomers.has_key(connection.inode)
            if size > MESSAGE_BYTES:
                del frames[1 + self._routes :]
            parts = [frame.bytes for frame in frames]
            sender = parts.pop(0) if self._routes else b""
            uid, pid, key = peer
            messages.append(
                Received(sender=sender, parts=parts, uid=uid, pid=pid, key=key, connection=connection)
            )
        return messages

    def bind(self) -> None:
        """Listen at the socket file. Raises SettingsError: it cannot be given to the group."""
        assert self._path is not None
        # Options hold for what is bound after them. Here the mode of the file says who may come.
        self._socket.setsockopt(zmq.CURVE_SERVER, 0)
        mask = os.umask(0o777 & ~self._mode)
        try:
            self._socket.bind(endpoint(self._path))
        finally:
            os.umask(mask)
        if self._group is not None:
            try:
                shutil.chown(self._path, group=self._group)
                self._path.chmod(0o660)
            except (LookupError, OSError) as wrong:
                raise SettingsError(
                    f"group: could not give {self._path} to {self._group!r}: {wrong}."
                    " Name a group that there is, and that this user belongs to."
                ) from wrong

    def let_in(self, address: str, secret: str, door: str) -> "Failures":
        """Listen at a TCP address as well, for those whose keys the context's `Judge` accepts at ``door``.

        Returns:
            The handshakes that fail before the judge is asked.

        Raises:
            SettingsError: the address cannot be listened at.
        """
        self._distant = (address, secret.encode(), door.encode())
        try:
            self._bind_distant(*self._distant)
        except zmq.ZMQError as wrong:
            raise SettingsError(
                f"{address}: could not be listened at: {wrong.strerror}."
                " Give a free port and an address of this host with --listen."
            ) from wrong
        self.newcomers = Newcomers(int(address.rpartition(":")[2]), HANDSHAKE_MS * 1_000_000)
        return Failures(self.monitor(), self.newcomers, self.connections)

    def _bind_distant(self, address: str, secret: bytes, door: bytes) -> None:
        self._socket.setsockopt(zmq.CURVE_SERVER, 1)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self._socket.setsockopt(zmq.ZAP_DOMAIN, door)
        over_tcp(self._socket, address)
        self._socket.bind(address)

    async def note_accepted(self) -> None:
        """Note connections as they are accepted, until cancelled. After `let_in`, `Failures` does it."""
        if self.distant:
            return
        events = Channel(self.monitor())
        while True:
            for message in await events.receive():
                event = monitor_event(message.parts)
                if event["event"] == zmq.EVENT_ACCEPTED:
                    self.connections.accepted(event["value"], monotonic_ns())

    def monitor(self) -> "zmq.Socket[bytes]":
        """Return the socket that reports connections, from the first call on. It has to be read then.

        Its queue has no end: ZeroMQ's own thread would wait at a full one, and `bind` for that thread.
        """
        if self._monitor is None:
            where = f"inproc://monitor-{id(self._socket)}"
            self._socket.monitor(where, BROKEN_OFF | zmq.EVENT_ACCEPTED)
            self._monitor = self._socket.context.socket(zmq.PAIR)
            self._monitor.setsockopt(zmq.RCVHWM, 0)
            self._monitor.connect(where)
        return self._monitor

    async def cut(self) -> None:
        """Cut all connections, and listen again."""
        assert self._path is not None
        await self.cut_distant()
        self._socket.unbind(endpoint(self._path))
        self.bind()

    async def cut_distant(self) -> None:
        """Cut all connections with other hosts, and listen again.

        Those that have not shown a key end at the latest after `HANDSHAKE_MS`; none is accepted before.
        """
        async with self._cutting:
            if self._distant is None:
                return
            self._socket.unbind(self._distant[0])
            with anyio.move_on_after(2 * HANDSHAKE_MS / 1000):
                while not _can_open_files(_most_files() // 2):  # noqa: ASYNC110  (the kernel reports no event for it)
                    await anyio.sleep(CUT_S)
            while not self._bound_again(*self._distant):  # noqa: ASYNC110  (ZeroMQ closes the port in a thread)
                await anyio.sleep(CUT_S)

    def _bound_again(self, address: str, secret: bytes, door: bytes) -> bool:
        if not _can_open_files(SPARE_FILES):  # without one, libzmq ends the process
            return False
        try:
            self._bind_distant(address, secret, door)
        except zmq.ZMQError as wrong:
            if wrong.errno != zmq.EADDRINUSE:
                raise
            return False
        return True

    @property
    def distant(self) -> bool:
        """Tell whether it listens for other hosts."""
        return self._distant is not None

    def close(self) -> None:
        self._socket.close(linger=0)
        if self._monitor is not None:
            self._monitor.close(linger=0)


def _most_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _can_open_files(number: int) -> bool:
    """Tell whether this process may open so many more files."""
    try:
        lowest = os.eventfd(0)
    except OSError:
        return False
    os.close(lowest)
    return lowest + number < _most_files()


class Failures:
    """Handshakes with somebody who has another key of ours, or none, or is no ZeroMQ at all."""

    def __init__(self, monitor: "zmq.Socket[bytes]", newcomers: Newcomers, connections: Connections) -> None:
        """``newcomers``, ``connections``: learn of each connection that is accepted."""
        self._events = Channel(monitor)
        self._newcomers = newcomers
        self._connections = connections

    async def count(self) -> int:
        """Wait for some, and return how many there were over TCP."""
        failed = 0
        for message in await self._events.receive():
            event = monitor_event(message.parts)
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._connections.accepted(event["value"], monotonic_ns())
            if not bytes(event["endpoint"]).startswith(b"tcp:"):
                continue
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._newcomers.accepted(event["value"], monotonic_ns())
            else:
                failed += 1
        return failed


def _peer(frame: zmq.Frame) -> tuple[int | None, int | None, str | None]:
    """Return uid and pid of an ipc peer, for which the kernel vouches; of one on TCP its key's name."""
    try:
        # localhost:UID:GID:PID; on TCP it is an IP address, which may have colons, but no such beginning.
        where, *fields = str(frame.get("Peer-Address")).split(":")
        if where == "localhost" and len(fields) == 3:
            return int(fields[0]), int(fields[2]), None
        return None, None, str(frame.get("User-Id"))
    except zmq.ZMQError:
        return None, None, None


def _connected(frame: zmq.Frame) -> Connected | None:
    """Return the connection that a message came over; None: it is closed already, or within this process."""
    try:
        fd = int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return None
    inode = _inode(fd)
    return None if inode is None else Connected(fd, inode)


def over_tcp(socket: "zmq.Socket[bytes]", address: str) -> None:
    socket.setsockopt(zmq.IPV6, int("[" in address))
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)


def open_socket(context: Context, kind: int, queue: int) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = context.socket(kind)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDHWM, queue),
        (zmq.RCVHWM, queue),
        (zmq.MAXMSGSIZE, MAX_BYTES),
        (zmq.RECONNECT_IVL, 50),
        (zmq.RECONNECT_IVL_MAX, 1_000),
        (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        (zmq.BACKLOG, 256),
    ):
        socket.setsockopt(option, value)
    return socket
