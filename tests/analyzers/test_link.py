"""A link over a real socket, to a collector that is played here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from analyzers.link import Link
from zeus_stream import sockets, wire
from zeus_stream.messages import Frame, Hello, No, Reply, Welcome
from zeus_stream.places import Places

pytestmark = pytest.mark.anyio


def welcome(host: str) -> Welcome:
    return Welcome(host, "incarnation", "log", 0, 10, observe=False)


@asynccontextmanager
async def linked(directory: Path, reply: Reply, host: str | None = None) -> AsyncIterator[Link]:
    """Give a link to a collector that answers a greeting with ``reply``."""
    context = sockets.context()
    where = Places(directory, directory)
    control = sockets.listen(context, where.control)
    link = Link(context, where, "test", 1500, 1, host)

    async def answer() -> None:
        while True:
            for message in await control.receive():
                wire.decode(message.parts[1], Hello)
                control.send(message.sender, message.parts[0], wire.encode(reply))

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            tasks.start_soon(link.run, lambda *_: None)
            with anyio.fail_after(10):
                while not link.connected and link.trouble is None:
                    await anyio.sleep(0.005)
            yield link
            tasks.cancel_scope.cancel()
    finally:
        context.destroy(linger=0)


async def test_a_collector_is_known_by_the_host_it_speaks_for(zeus_dir: Path) -> None:
    async with linked(zeus_dir, welcome("alpha")) as link:
        assert await link.host() == "alpha"
        assert link.behind(Frame("log", 7, "alpha", 0, "t", b"")) == 2
        assert link.behind(Frame("log", 20, "alpha", 0, "t", b"")) == 0
        assert link.behind(Frame("another log", 7, "alpha", 0, "t", b"")) is None


async def test_a_collector_that_speaks_for_another_host_than_its_key_is_not_commanded(zeus_dir: Path) -> None:
    async with linked(zeus_dir, welcome("beta"), host="alpha") as link:
        assert not link.connected
        assert "speaks for beta" in str(link.trouble)
        assert await link.host() == "alpha"


async def test_why_a_collector_refuses_us_is_known(zeus_dir: Path) -> None:
    async with linked(zeus_dir, No("key anna: has no role 'command'.")) as link:
        assert not link.connected
        assert link.trouble == "key anna: has no role 'command'."
