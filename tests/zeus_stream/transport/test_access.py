"""Real sockets on 127.0.0.1: who is let in, who is not, and how both sides learn of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from msgspec.structs import asdict, replace

from tests.environment import free_port
from tests.waiting import eventually
from tests.zeus_stream.transport.conftest import Sockets
from zeus_stream.errors import RefusedError
from zeus_stream.transport import keys, sockets
from zeus_stream.transport.access import AccessGate
from zeus_stream.transport.endpoints import Distant
from zeus_stream.transport.keys import Role, Ticket
from zeus_stream.transport.listening.listener import Listener

pytestmark = pytest.mark.anyio
PATIENCE_S = 180.0


@dataclass
class Host:
    """A host with a control socket that echoes and a feed that counts, and its gate."""

    directory: Path
    port: int
    gate: AccessGate
    feed: Listener
    control: Listener

    async def ticket(self, name: str, *roles: Role) -> Ticket:
        """Make a key, and wait until the gate knows it."""
        ring = self.directory / "keys"
        server = keys.server_pair(ring)
        issued = keys.create(ring, name, roles, "alpha", server)
        there = self.directory / name / "servers" / f"127.0.0.1:{self.port}.key"
        there.parent.mkdir(parents=True)
        issued.rename(there)
        await eventually(lambda: f"key {name}" in [row[1] for row in self.gate.status()])
        return keys.ticket(self.directory / name, f"127.0.0.1:{self.port}")

    def distant(self, ticket: Ticket) -> Distant:
        return Distant("127.0.0.1", self.port, ticket)

    def revoke(self, name: str) -> None:
        keys.revoke(self.directory / "keys", name)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Host]:
    control = Listener(directory / "control")
    feed = Listener(directory / "feed", feed=True)
    port = free_port()
    gate = AccessGate(f"127.0.0.1:{port}", directory / "keys", {"control": control, "feed": feed})

    async def echo() -> None:
        while True:
            for message in await control.receive():
                objection = gate.objection(message, "command")
                control.send(
                    message.sender,
                    message.parts[0],
                    (message.key or "local").encode(),
                    str(objection).encode(),
                )

    async def publish() -> None:
        while True:
            feed.send(b"tick")
            await anyio.sleep(0.005)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gate.run)
            tasks.start_soon(echo)
            tasks.start_soon(publish)
            tasks.start_soon(feed.serve)
            yield Host(directory, port, gate, feed, control)
            tasks.cancel_scope.cancel()
    finally:
        feed.close()
        control.close()


async def echoed(channel: sockets.Channel, text: bytes = b"hello") -> tuple[str, str]:
    """Return by which name we are known, and what we lack to command."""
    with anyio.fail_after(PATIENCE_S):
        while not channel.send(text):
            await anyio.sleep(0.005)
        while True:
            for message in await channel.receive():
                if message.parts[0] == text:
                    return message.parts[1].decode(), message.parts[2].decode()


async def ticks(channel: sockets.Channel) -> None:
    with anyio.fail_after(PATIENCE_S):
        await channel.receive()


async def test_who_has_a_key_comes_in_by_name_and_who_is_local_needs_none(
    zeus_dir: Path, opened: Sockets
) -> None:
    async with running(zeus_dir) as host:
        there = host.distant(await host.ticket("anna", "follow", "command"))
        assert await echoed(opened.ask(there.control)) == ("anna", "None")
        await ticks(opened.follow(there.feed))
        assert await echoed(opened.ask(zeus_dir / "control")) == ("local", "None")
        await ticks(opened.follow(zeus_dir / "feed"))
        assert host.gate.refused == 0


async def test_a_key_that_is_not_on_the_list_is_refused_with_a_sentence_on_both_sides(
    zeus_dir: Path, opened: Sockets, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(zeus_dir) as host:
        ticket = replace(await host.ticket("anna", "follow"), **asdict(keys.new_keys()))
        for _ in range(3):
            asking = opened.ask(host.distant(ticket).control)
            await eventually(lambda: asking.trouble)  # noqa: B023  (it is over within the turn)
            assert "refused the key anna" in str(asking.trouble)
            assert "zeus-stream keys create" in str(asking.trouble)
        assert host.gate.refused >= 3
        refusals = [record.getMessage() for record in caplog.records]
        assert len(refusals) == 1, "named once"
        assert "could not let in 127.0.0.1" in refusals[0]
        assert ticket.public in refusals[0]


async def test_a_key_for_another_host_is_refused_with_a_sentence_on_both_sides(
    zeus_dir: Path, opened: Sockets, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(zeus_dir) as host:
        ticket = replace(await host.ticket("anna", "follow"), server=keys.new_keys().public)
        asking = opened.ask(host.distant(ticket).control)
        await eventually(lambda: asking.trouble)
        assert "could not agree on keys" in str(asking.trouble)
        await eventually(lambda: host.gate.refused > 2 and caplog.records)
        assert [record.getMessage().count("it knows another key") for record in caplog.records] == [1]


async def test_a_revoked_key_is_cut_off_within_a_second_and_all_others_go_on(
    zeus_dir: Path, opened: Sockets
) -> None:
    async with running(zeus_dir) as host:
        anna, otto = [host.distant(await host.ticket(name, "follow", "command")) for name in ("anna", "otto")]
        annas, ottos = (opened.follow(there.feed) for there in (anna, otto))
        ottos_asking = opened.ask(otto.control)
        local = opened.ask(zeus_dir / "control")
        asking = opened.ask(anna.control)
        for channel in (annas, ottos):
            await ticks(channel)
        for each in (asking, ottos_asking):
            await echoed(each)
        await echoed(local, b"before")
        host.revoke("anna")
        with anyio.fail_after(PATIENCE_S):
            while asking.trouble is None:
                await anyio.sleep(0.005)
        while True:  # what came in before that
            with anyio.move_on_after(0.2):
                await annas.receive()
                continue
            break
        await ticks(ottos)
        await ticks(ottos)
        assert await echoed(opened.ask(otto.control)) == ("otto", "None")
        for each in (local, ottos_asking):
            assert each.send(b"after"), "its connection was never ended"


async def test_who_asks_once_is_told_at_once_that_its_key_is_refused(zeus_dir: Path) -> None:
    async with running(zeus_dir) as host:
        there = host.distant(await host.ticket("anna", "query")).control
        with anyio.fail_after(PATIENCE_S), pytest.raises(RefusedError, match="refused the key anna"):
            await anyio.to_thread.run_sync(partial(sockets.exchange, there, b"hello", 60))


async def test_without_an_address_to_listen_at_there_is_no_port(zeus_dir: Path) -> None:
    with closing(Listener(zeus_dir / "control")) as control:
        gate = AccessGate(None, zeus_dir / "keys", {"control": control})
        await gate.run()
    assert gate.status() == []
    assert not (zeus_dir / "keys").exists()


async def test_a_key_directory_that_cannot_be_read_revokes_nothing(
    zeus_dir: Path, opened: Sockets, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(zeus_dir) as host:
        there = host.distant(await host.ticket("anna", "follow", "command"))
        anna = opened.ask(there.control)
        assert await echoed(anna) == ("anna", "None")
        allowed = zeus_dir / "keys" / "allowed"
        allowed.rename(allowed.with_name("moved"))
        allowed.write_text("as unreadable as a directory when no file can be opened")
        await eventually(lambda: "are still let in" in caplog.text)
        assert await echoed(anna) == ("anna", "None")
        assert await echoed(opened.ask(there.control)) == ("anna", "None")
        allowed.unlink()
        allowed.with_name("moved").rename(allowed)
        host.revoke("anna")
        await eventually(lambda: not [row for row in host.gate.status() if "anna" in row[1]])
