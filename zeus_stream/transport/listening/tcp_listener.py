"""A TCP port of a listener, for other hosts with keys: ZeroMQ accepts and decrypts, this counts and cuts."""

import os
import resource

import anyio
import zmq

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import SettingsError
from zeus_stream.transport.channel import (
    BROKEN_OFF,
    HANDSHAKE_MS,
    Channel,
    Context,
    Received,
    TcpConnection,
    monitor_event,
    open_socket,
    over_tcp,
)
from zeus_stream.transport.listening.newcomers import Newcomers
from zeus_stream.transport.listening.zmtp import Kind

SPARE_FILES = 64
"""Descriptors that are free before a port is listened at."""
CUT_S = 0.001
"""Between two looks at whether a port is free."""
YOUNG_NS = 10_000_000_000
"""From when a connection was accepted: floods begin with many connections, or soon after one."""


class TcpListener:
    """A port. A connection is a newcomer until a message with a key has come over it."""

    def __init__(
        self, context: Context, kind: Kind, queue: int, max_bytes: int, address: str, secret: str, door: str
    ) -> None:
        """Listen, for those whose keys the context's judge accepts at ``door``. Raises SettingsError."""
        socket = open_socket(context, zmq.PUB if kind == "PUB" else zmq.ROUTER, queue)
        if kind == "ROUTER":
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
        for option, value in (
            (zmq.MAXMSGSIZE, max_bytes),
            (zmq.CURVE_SERVER, 1),
            (zmq.CURVE_SECRETKEY, secret.encode()),
            (zmq.ZAP_DOMAIN, door.encode()),
        ):
            socket.setsockopt(option, value)
        over_tcp(socket, address)
        self.channel = Channel(socket)
        self.newcomers = Newcomers(int(address.rpartition(":")[2]), HANDSHAKE_MS * 1_000_000)
        self._socket, self._address = socket, address
        self._cutting = anyio.Lock()
        self._last_ns: int | None = None
        """When a connection was last accepted."""
        self._bell = anyio.Event()
        # The queue of reports has no end: ZeroMQ's own thread would wait at a full one, and `bind` for it.
        where = f"inproc://monitor-{id(socket)}"
        socket.monitor(where, BROKEN_OFF | zmq.EVENT_ACCEPTED)
        reports: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        reports.setsockopt(zmq.RCVHWM, 0)
        reports.connect(where)
        self._reports = Channel(reports)
        try:
            socket.bind(address)
        except zmq.ZMQError as wrong:
            self.close()
            raise SettingsError(
                f"{address}: could not be listened at: {wrong.strerror}."
                " Give a free port and an address of this host with --listen."
            ) from wrong

    def take(self) -> list[Received]:
        """Return the messages that are there."""
        messages = self.channel.take()
        for message in messages:
            if isinstance(message.connection, TcpConnection):
                self.newcomers.has_key(message.connection.inode)
        return messages

    async def count_failures(self) -> int:
        """Wait for reports; return how many handshakes failed before the judge was asked.

        They are with somebody who has another key of ours, or none, or is no ZeroMQ at all.
        """
        failed = 0
        for message in await self._reports.receive():
            event = monitor_event(message.parts)
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._last_ns = monotonic_ns()
                self.newcomers.accepted(event["value"], self._last_ns)
                self._bell.set()
            else:
                failed += 1
        return failed

    def busy(self, now_ns: int) -> bool:
        """Tell whether a connection was accepted within the last seconds."""
        if self._last_ns is not None and now_ns - self._last_ns < YOUNG_NS:
            return True
        self._bell = anyio.Event()
        return False

    async def accepted(self) -> None:
        """Wait for a connection that is accepted after `busy` was False."""
        await self._bell.wait()

    async def cut(self) -> None:
        """Cut all connections, and listen again.

        Those that have not shown a key end at the latest after `HANDSHAKE_MS`; none is accepted before.
        """
        async with self._cutting:
            self._socket.unbind(self._address)
            with anyio.move_on_after(2 * HANDSHAKE_MS / 1000):
                while not _can_open_files(_most_files() // 2):  # noqa: ASYNC110  (the kernel reports no event for it)
                    await anyio.sleep(CUT_S)
            while not self._bound_again():  # noqa: ASYNC110  (ZeroMQ closes the port in a thread)
                await anyio.sleep(CUT_S)

    def _bound_again(self) -> bool:
        if not _can_open_files(SPARE_FILES):  # without one, libzmq ends the process
            return False
        try:
            self._socket.bind(self._address)
        except zmq.ZMQError as wrong:
            if wrong.errno != zmq.EADDRINUSE:
                raise
            return False
        return True

    def close(self) -> None:
        self.channel.close()
        self._reports.close()


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
