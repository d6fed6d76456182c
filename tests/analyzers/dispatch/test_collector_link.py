"""A link over a real socket, to a collector that is played here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from analyzers.dispatch.collector_link import Commander, Link
from analyzers.results.result import ApplyControl, RestoreControl
from tests.messages import SET_CONTROL, WELCOME
from zeus_stream.paths import Places
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import Hello, ReleaseControl, RenewLeases, SetControl, Welcome
from zeus_stream.protocol.fields import UNLOCKED, Control
from zeus_stream.protocol.frames import Frame
from zeus_stream.protocol.notes import ControlApplied
from zeus_stream.protocol.queries import No, Reply, Request
from zeus_stream.transport import sockets
from zeus_stream.transport.listening.listener import Listener

POWER: Control = "power_limit"
MEMORY: Control = "memory_clock"
pytestmark = pytest.mark.anyio


def welcome(host: str) -> Welcome:
    return replace(WELCOME, host=host, next_offset=10)


@asynccontextmanager
async def linked(
    directory: Path, reply: Reply, host: str | None = None, heard: list[Request] | None = None
) -> AsyncIterator[Link]:
    """Give a link to a collector that answers a greeting with ``reply``, and applies every command."""
    context = sockets.context()
    where = Places(directory, directory)
    control = Listener(where.control)
    link = Link(context, where, Commander("test", 1), 1500, host)

    async def serve() -> None:
        while True:
            for message in await control.receive():
                request = codec.decode(message.parts[1], Hello, SetControl, ReleaseControl, RenewLeases)
                if heard is not None:
                    heard.append(request)
                match request:
                    case Hello():
                        answers: list[Reply] = [reply]
                    case SetControl() | ReleaseControl():
                        value = request.value if isinstance(request, SetControl) else UNLOCKED
                        answers = [ControlApplied(0, request.command, request.gpu, request.control, value)]
                    case _:
                        answers = []
                for answer in answers:
                    control.send(message.sender, message.parts[0], codec.encode(answer))

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            tasks.start_soon(link.run, lambda *_: None)
            with anyio.fail_after(60):
                while not link.connected and link.trouble is None:
                    await anyio.sleep(0.005)
            yield link
            tasks.cancel_scope.cancel()
    finally:
        control.close()
        context.destroy(linger=0)


async def test_a_collector_is_known_by_the_host_it_speaks_for(zeus_dir: Path) -> None:
    async with linked(zeus_dir, welcome("alpha")) as link:
        assert await link.host() == "alpha"
        assert link.behind(Frame(log_id="log", offset=7, host="alpha", t_ns=0, topic="t", body=b"")) == 2
        assert link.behind(Frame(log_id="log", offset=20, host="alpha", t_ns=0, topic="t", body=b"")) == 0
        assert (
            link.behind(Frame(log_id="another log", offset=7, host="alpha", t_ns=0, topic="t", body=b""))
            is None
        )


async def test_clocks_are_commanded_until_answered_and_their_leases_renewed(zeus_dir: Path) -> None:
    heard: list[Request] = []
    async with linked(zeus_dir, welcome("alpha"), heard=heard) as link:
        for command, control, value in (("c1", POWER, 200_000), ("c2", MEMORY, 877)):
            link.carry_out(
                ApplyControl(
                    command=command, run="r", host="alpha", gpu="GPU-1", control=control, value=value
                )
            )
        link.leases = lambda: frozenset({"GPU-1", "GPU-2"})
        with anyio.fail_after(60):
            while not any(isinstance(request, RenewLeases) for request in heard):
                await anyio.sleep(0.005)
        (renewed,) = {request.gpus for request in heard if isinstance(request, RenewLeases)}
        link.carry_out(RestoreControl(command="c3", run="r", host="alpha", gpu="GPU-1", control=MEMORY))
        with anyio.fail_after(60):
            while not any(isinstance(request, ReleaseControl) for request in heard):
                await anyio.sleep(0.005)
    # Sent again until answered, and so perhaps more than once.
    limit, lock, unlock = dict.fromkeys(r for r in heard if isinstance(r, SetControl | ReleaseControl))
    assert isinstance(limit, SetControl)
    assert lock == replace(
        SET_CONTROL,
        command="c2",
        owner="test",
        incarnation="incarnation",
        fence=limit.fence + 1,
        control=MEMORY,
        value=877,
    )
    assert unlock == ReleaseControl(
        command="c3",
        owner="test",
        incarnation="incarnation",
        fence=limit.fence + 2,
        gpu="GPU-1",
        control=MEMORY,
    )
    assert renewed == ("GPU-1", "GPU-2")


async def test_a_collector_that_speaks_for_another_host_than_its_key_is_not_commanded(zeus_dir: Path) -> None:
    async with linked(zeus_dir, welcome("beta"), host="alpha") as link:
        assert not link.connected
        assert "keys create --host beta" in str(link.trouble)
        assert await link.host() == "alpha"


async def test_why_a_collector_refuses_us_is_known(zeus_dir: Path) -> None:
    async with linked(zeus_dir, No("key anna: has no role 'command'.")) as link:
        assert not link.connected
        assert link.trouble == "key anna: has no role 'command'."
