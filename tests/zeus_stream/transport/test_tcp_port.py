"""Connections over TCP that show no key: few are open at a time, each sends little, and not for long."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.waiting import eventually
from tests.zeus_stream.transport.conftest import Sockets
from tests.zeus_stream.transport.test_access import echoed, running
from zeus_stream.own_cost import memory_bytes
from zeus_stream.transport.endpoints import PORTS
from zeus_stream.transport.listening.tcp_port import NEWCOMERS
from zeus_stream.transport.listening.zmtp import CURVE_GREETING

pytestmark = pytest.mark.anyio
LARGE = 900_000
COMMAND = b"\x06" + LARGE.to_bytes(8, "big")
"""Head of a handshake command of `LARGE` bytes."""
FLOOD = 200
MAX_BYTES = 40 << 20


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


def flooded(address: tuple[str, int], *parts: bytes) -> socket.socket:
    """Return a connection over which these bytes were sent, as far as the other side takes them."""
    connection = socket.create_connection(address)
    connection.setblocking(False)  # noqa: FBT003
    for part in parts:
        try:
            connection.send(part)
        except OSError:
            break  # it was ended, or its buffers are full
    return connection


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((), id="no byte"),
        pytest.param((CURVE_GREETING,), id="a greeting"),
        pytest.param((CURVE_GREETING, COMMAND, bytes(LARGE - 1)), id="handshakes of 900 kB"),
    ],
)
async def test_of_many_without_a_key_few_are_open_and_those_with_one_are_served(
    zeus_dir: Path,
    opened: Sockets,
    parts: tuple[bytes, ...],
) -> None:
    async with running(zeus_dir) as host:
        there = host.distant(await host.ticket("otto", "follow", "command"))
        known = opened.ask(there.control)
        assert await echoed(known) == ("otto", "None")
        before, port = memory_bytes(), host.control.port
        assert port is not None
        with ExitStack() as held:
            for _ in range(FLOOD):
                held.enter_context(flooded(("127.0.0.1", host.port + PORTS["control"]), *parts))
            await eventually(lambda: port.newcomers.refused + port.failed >= FLOOD - NEWCOMERS)
            assert len(port.newcomers) <= NEWCOMERS
            assert memory_bytes() - before < MAX_BYTES
            assert known.send(b"still there"), "its connection was never ended"
            assert await echoed(known, b"again") == ("otto", "None")
            assert await echoed(opened.ask(there.control)) == ("otto", "None")
        rows = {name: value for _, name, value in host.gate.status()}
        assert int(rows["cut before they showed a key"]) + int(rows["refused"]) >= FLOOD - NEWCOMERS


async def test_who_shows_no_key_in_time_is_ended(zeus_dir: Path) -> None:
    async with running(zeus_dir) as host:
        address = ("127.0.0.1", host.port + PORTS["control"])
        with flooded(address) as silent, flooded(address, CURVE_GREETING) as begun:
            await eventually(lambda: over(silent) and over(begun))
            assert host.control.port is not None
            assert len(host.control.port.newcomers) == 0
