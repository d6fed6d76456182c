"""Opens ZeroMQ sockets with every limit written out. The only file that imports zmq, but for the courier.

ROUTER listens, DEALER asks; PUB is the feed, SUB follows it. On its host a socket is a file whose mode
says who may come; the same socket may listen on TCP as well, where CURVE keys say that (`gate`).

A request on ``control`` and ``query`` is ``[8 bytes, message]``, its reply ``[the same 8 bytes, message,
...]``. A `Channel` is a socket in an event loop: bounded in both directions and never blocking.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import anyio
import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import RefusedError, SettingsError
from zeus_stream.paths import endpoint
from zeus_stream.protocol.codec import MAX_BYTES
from zeus_stream.transport.endpoints import Address, Tcp
from zeus_stream.transport.keys import Pair

QUEUE = 1_000
"""Messages (frames are of up to 0.5 MB) queued per peer and direction; past it a send is refused, or, on the
feed, dropped: followers fetch."""
FOLLOWED = 200
"""Frames queued at a follower."""
Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
_CORRELATION = bytes(8)
DRAIN = 256
"""Messages taken from a socket before other tasks have their turn."""
DRAIN_BYTES = 1_000_000
"""Likewise, about."""
REQUEST_BYTES = 1_000_000
"""Largest message part that a listener takes; the largest batches and queries have half of it."""
MESSAGE_BYTES = 16 * 1024 * 1024
"""Of a larger message only the first part is taken, which means nothing by itself: replies to fetches, the
largest there are, have a few MB. (SQL answers are read whole, by `exchange`.)"""
CUT_S = 0.001
"""Between two looks at whether a port is free."""
HEARTBEAT_MS = 2_000
"""A host that is gone says nothing: over TCP it is asked so often,"""
SILENCE_MS = 6_000
"""and after so long without a sign of life the connection is over."""
LOOK_MS = 50
"""Between two looks at whether a handshake failed, for who waits without an event loop."""
_ZAP = "inproc://zeromq.zap.01"
_BROKEN_OFF = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


@dataclass(frozen=True, slots=True)
class Received:
    """One message. ``sender`` is a ROUTER's address of the peer.

    A peer on this host has uid and pid, from the kernel; one on another has the name of its key.
    """

    sender: bytes
    parts: list[bytes]
    uid: int | None
    pid: int | None
    key: str | None = None


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
        self._cutting = anyio.Lock()
        self._routes = socket.get(zmq.TYPE) == zmq.ROUTER
        self._waiting: anyio.CancelScope | None = None
        self._leaving: list[tuple[zmq.MessageTracker, int]] = []

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
            # Sending may swallow the descriptor's edge for a message that came in meanwhile.
            if self._waiting is not None and self._readable():
                self._waiting.cancel()
        return True

    async def receive(self) -> list[Received]:
        """Wait for messages and return those that are there: at least one, at most DRAIN.

        Cancelled, it has taken none.
        """
        await anyio.lowlevel.checkpoint()
        while not (messages := self._drain()):
            with anyio.CancelScope() as self._waiting:
                # The descriptor is edge-triggered: look at EVENTS before each wait.
                if not self._readable():
                    await anyio.wait_readable(self._socket.fileno())
            self._waiting = None
        return messages

    def _readable(self) -> bool:
        return bool(int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def _drain(self) -> list[Received]:
        messages: list[Received] = []
        drained = 0
        while len(messages) < DRAIN and drained < DRAIN_BYTES:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            size = sum(len(frame) for frame in frames)
            drained += size
            peer = _peer(frames[0])
            if size > MESSAGE_BYTES:
                del frames[1 + self._routes :]
            parts = [frame.bytes for frame in frames]
            sender = parts.pop(0) if self._routes else b""
            messages.append(Received(sender, parts, *peer))
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
        return Failures(self._socket.get_monitor_socket(_BROKEN_OFF))

    def _bind_distant(self, address: str, secret: bytes, door: bytes) -> None:
        self._socket.setsockopt(zmq.CURVE_SERVER, 1)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self._socket.setsockopt(zmq.ZAP_DOMAIN, door)
        _over_tcp(self._socket, address)
        self._socket.bind(address)

    async def cut(self) -> None:
        """Cut all connections, and listen again."""
        assert self._path is not None
        await self.cut_distant()
        self._socket.unbind(endpoint(self._path))
        self.bind()

    async def cut_distant(self) -> None:
        """Cut all connections with other hosts, and listen again."""
        async with self._cutting:
            if self._distant is None:
                return
            self._socket.unbind(self._distant[0])
            while not self._bound_again(*self._distant):  # noqa: ASYNC110  (ZeroMQ closes the port in a thread)
                await anyio.sleep(CUT_S)

    def _bound_again(self, address: str, secret: bytes, door: bytes) -> bool:
        try:
            self._bind_distant(address, secret, door)
        except zmq.ZMQError as wrong:
            if wrong.errno != zmq.EADDRINUSE:
                raise
            return False
        return True

    def close(self) -> None:
        self._socket.close(linger=0)


class Failures:
    """Handshakes with somebody who has another key of ours, or none, or is no ZeroMQ at all."""

    def __init__(self, monitor: "zmq.Socket[bytes]") -> None:
        self._events = Channel(monitor)

    async def count(self) -> int:
        """Wait for some, and return how many there were over TCP."""
        events = [parse_monitor_message(message.parts) for message in await self._events.receive()]
        return sum(bytes(event["endpoint"]).startswith(b"tcp:") for event in events)


class Asking(Channel):
    """A DEALER. To another host, ``trouble`` says why it is not let in."""

    def __init__(self, socket: "zmq.Socket[bytes]", address: Address) -> None:
        super().__init__(socket)
        self._address = address
        self._trouble: str | None = None
        self._handshakes = None
        if isinstance(address, Tcp):
            events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | _BROKEN_OFF
            self._handshakes = socket.get_monitor_socket(events)

    @property
    def trouble(self) -> str | None:
        """Why the last handshake failed, in a sentence."""
        while self._handshakes is not None and self._handshakes.poll(0):
            event = zmq.Event(parse_monitor_message(self._handshakes.recv_multipart())["event"])
            self._trouble = _why(event, self._address)
        return self._trouble

    def close(self) -> None:
        if self._handshakes is not None:
            self._socket.disable_monitor()
            self._handshakes.close(linger=0)
            self._handshakes = None
        super().close()


def _why(event: zmq.Event, address: Address) -> str | None:
    if event == zmq.Event.HANDSHAKE_SUCCEEDED or not isinstance(address, Tcp):
        return None
    ticket = address.ticket
    if event == zmq.Event.HANDSHAKE_FAILED_AUTH:
        return (
            f"{address.address}: refused the key {ticket.name} of {ticket.path}: it was revoked, or has not"
            " the role for this. Make another on that host with `zeus-stream keys create`."
        )
    return (
        f"{address.address}: could not agree on keys: that is not the zeus-stream which {ticket.path} was"
        f" made for. Make a key on that host with `zeus-stream keys create`, or correct the address."
    )


@dataclass(frozen=True, slots=True)
class Knock:
    """Somebody on another host wants to be let in."""

    door: str
    address: str
    """IP address."""
    public: str
    _reply: tuple[bytes, ...]


class Judge:
    """Answers, for all sockets of a context, who is let in over TCP (ZAP, ZeroMQ's RFC 27)."""

    def __init__(self, context: Context) -> None:
        socket = _open(context, zmq.ROUTER, QUEUE)
        socket.bind(_ZAP)
        self._channel = Channel(socket)

    async def knocks(self) -> list[Knock]:
        """Wait for somebody. Each has to be answered; until then its handshake waits."""
        knocks = []
        for asked in await self._channel.receive():
            empty, version, request, door, address, _, mechanism, *credentials = asked.parts
            reply = (asked.sender, empty, version, request)
            if mechanism != b"CURVE":  # by the socket file: a port takes CURVE only
                self._channel.send(*reply, b"200", b"", b"", b"")
                continue
            (public,) = credentials
            knocks.append(Knock(door.decode(), address.decode(), z85.encode(public).decode(), reply))
        return knocks

    def answer(self, knock: Knock, name: str | None) -> None:
        """Let somebody in under a name (`Received.key`); None: not."""
        verdict = (b"400", b"", b"", b"") if name is None else (b"200", b"", name.encode(), b"")
        self._channel.send(*knock._reply, *verdict)  # noqa: SLF001  (of this module)


def new_keys() -> Pair:
    """Return a new pair of CURVE keys."""
    public, secret = zmq.curve_keypair()
    return Pair(public.decode(), secret.decode())


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


def context() -> Context:
    """Return a new ZeroMQ context: one a process, ended with ``destroy(linger=0)``."""
    return zmq.Context()


def listen(
    context: Context,
    path: Path,
    *,
    feed: bool = False,
    mode: int = 0o600,
    group: str | None = None,
    queue: int = QUEUE,
) -> Channel:
    """Open a ROUTER (or, for the feed, a PUB) at a socket file.

    Args:
        mode: of the file, from the first moment.
        group: becomes the file's, which then has mode 0660.
        queue: see `QUEUE`.

    Raises:
        SettingsError: the path is too long, or the file cannot be given to the group.

    Whoever calls has `places.claim`-ed the directory: binding takes over a socket file that is there.
    """
    socket = _open(context, zmq.PUB if feed else zmq.ROUTER, queue)
    if not feed:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, REQUEST_BYTES)
    channel = Channel(socket, path, mode, group)
    try:
        channel.bind()
    except SettingsError:
        channel.close()
        raise
    return channel


def ask(context: Context, address: Address) -> Asking:
    """Open a DEALER to a listener. Nothing is queued for a peer that is not there."""
    socket = _open(context, zmq.DEALER, QUEUE)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    channel = Asking(socket, address)
    _connect(socket, address)
    return channel


def follow(context: Context, address: Address, topic: str = "") -> Channel:
    """Open a SUB to a feed."""
    socket = _open(context, zmq.SUB, FOLLOWED)
    socket.setsockopt_string(zmq.SUBSCRIBE, topic)
    _connect(socket, address)
    return Channel(socket)


def exchange(address: Address, payload: bytes, timeout_s: float) -> list[bytes] | None:
    """Ask a listener one thing, for programs without an event loop: its reply's parts, or None in time.

    Raises:
        RefusedError: a listener on another host does not let this key in.
    """
    opened = context()
    try:
        socket = _open(opened, zmq.DEALER, QUEUE)
        channel = Asking(socket, address)
        _connect(socket, address)
        socket.send_multipart((_CORRELATION, payload))
        until_ns = monotonic_ns() + round(timeout_s * 1e9)
        while not socket.poll(LOOK_MS):
            if channel.trouble is not None:
                raise RefusedError(channel.trouble)
            if monotonic_ns() > until_ns:
                return None
        return socket.recv_multipart()[1:]
    finally:
        opened.destroy(linger=0)


def _connect(socket: "zmq.Socket[bytes]", address: Address) -> None:
    if isinstance(address, Tcp):
        socket.setsockopt(zmq.CURVE_PUBLICKEY, address.ticket.pair.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, address.ticket.pair.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, address.ticket.server.encode())
        _over_tcp(socket, address.address)
        socket.connect(address.address)
    else:
        socket.connect(endpoint(address))


def _over_tcp(socket: "zmq.Socket[bytes]", address: str) -> None:
    socket.setsockopt(zmq.IPV6, int("[" in address))
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)


def _open(context: Context, kind: int, queue: int) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = context.socket(kind)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDHWM, queue),
        (zmq.RCVHWM, queue),
        (zmq.MAXMSGSIZE, MAX_BYTES),
        (zmq.RECONNECT_IVL, 50),
        (zmq.RECONNECT_IVL_MAX, 1_000),
        (zmq.HANDSHAKE_IVL, 5_000),
        (zmq.BACKLOG, 256),
    ):
        socket.setsockopt(option, value)
    return socket
