"""Connections over TCP that show no key: few are open at a time, and each may send little."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.zeus_stream.transport.test_access import Clients, clients, echoed, running, until  # noqa: F401  (a fixture)
from zeus_stream.transport.endpoints import PORTS
from zeus_stream.transport.limits import memory_bytes
from zeus_stream.transport.listening.newcomers import MAX_BYTES, NEWCOMERS, Newcomers

pytestmark = pytest.mark.anyio
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""Of ZMTP 3.0 (RFC 23), by a client."""
LARGE = 900_000
COMMAND = b"\x06" + LARGE.to_bytes(8, "big")
"""Head of a handshake command of `LARGE` bytes."""
FLOOD = 200
S = 1_000_000_000


def over(connection: socket.socket) -> bool:
    """Return whether the other side has closed a connection."""
    connection.setblocking(False)  # noqa: FBT003
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def flooded(address: tuple[str, int]) -> socket.socket:
    """Return a connection over which a handshake of `LARGE` bytes has begun and does not end."""
    connection = socket.create_connection(address)
    connection.setblocking(False)  # noqa: FBT003
    for part in (GREETING, COMMAND, bytes(LARGE - 1)):
        try:
            connection.send(part)
        except OSError:
            break  # it was cut, or its buffers are full
    return connection


async def test_of_many_handshakes_of_900_kb_before_a_key_few_are_open(
    zeus_dir: Path,
    clients: Clients,  # noqa: F811
) -> None:
    async with running(zeus_dir) as host:
        known = clients.ask(host.distant(await host.ticket("otto", "follow", "command")).control)
        assert await echoed(known) == ("otto", "None")
        assert host.control.tcp is not None
        before, newcomers = memory_bytes(), host.control.tcp.newcomers
        with ExitStack() as held:
            for _ in range(FLOOD):
                held.enter_context(flooded(("127.0.0.1", host.port + PORTS["control"])))
            await until(lambda: newcomers.shut)
            assert len(newcomers) <= NEWCOMERS
            assert memory_bytes() - before < 2 * NEWCOMERS * MAX_BYTES
            assert await echoed(known, b"still there") == ("otto", "None")
        rows = {name: value for _, name, value in host.gate.status()}
        assert int(rows["cut before they showed a key"]) > 0


@pytest.fixture
def port() -> Iterator[socket.socket]:
    """A port that listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def test_who_sends_more_than_a_message_without_a_key_is_cut_and_who_has_one_is_not(
    port: socket.socket,
) -> None:
    newcomers = Newcomers(port.getsockname()[1], 2 * S)
    with ExitStack() as held:
        ends = []
        for _ in range(2):
            outer = held.enter_context(socket.create_connection(port.getsockname()))
            inner = held.enter_context(port.accept()[0])
            newcomers.accepted(inner.fileno(), 0)
            ends.append((outer, inner))
        newcomers.has_key(os.fstat(ends[1][1].fileno()).st_ino)
        for outer, inner in ends:
            sent = 0
            while sent <= MAX_BYTES:
                sent += outer.send(bytes(100_000))
                inner.recv(200_000)
        newcomers.look(S)
        assert newcomers.shut == 1
        assert over(ends[0][0])
        assert not over(ends[1][0])
        assert len(newcomers) == 0


def test_a_descriptor_that_is_another_file_by_now_is_left_alone(port: socket.socket) -> None:
    newcomers = Newcomers(port.getsockname()[1], 2 * S)
    with socket.create_connection(port.getsockname()) as outer, port.accept()[0] as inner:
        newcomers.accepted(outer.fileno(), 0)  # not of this port
        assert len(newcomers) == 0
        newcomers.accepted(inner.fileno(), 0)
        assert len(newcomers) == 1
        newcomers.look(3 * S)  # its handshake must be over
        assert len(newcomers) == 0
        assert not over(outer)
    newcomers.accepted(10**6, 0)
    assert len(newcomers) == 0
