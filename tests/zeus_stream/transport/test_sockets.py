import grp
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from tests import hostile
from tests.waiting import eventually
from tests.zeus_stream.transport.conftest import Sockets
from zeus_stream.errors import SettingsError, StorageError
from zeus_stream.transport import sockets
from zeus_stream.transport.listening.listener import REQUEST_BYTES, Listener

pytestmark = pytest.mark.anyio
PATIENCE_S = 20.0
LARGE = 8 * 1024 * 1024
KERNEL_BYTES = 1_000_000
"""More than a socket's own buffers hold."""


@asynccontextmanager
async def taken(listener: Listener) -> AsyncIterator[list[sockets.Received]]:
    """Take in messages in the background; give those that came."""
    messages: list[sockets.Received] = []

    async def take() -> None:
        while True:
            messages.extend(await listener.receive())

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            yield messages
            tasks.cancel_scope.cancel()


async def test_the_kernel_says_who_sent_a_message(opened: Sockets, zeus_dir: Path) -> None:
    router = opened.listen(zeus_dir / "publish", mode=0o666)
    dealer = opened.ask(zeus_dir / "publish")
    async with taken(router) as messages:
        await eventually(lambda: dealer.send(b"hello"))
        await eventually(lambda: messages)
        [message] = messages
        assert (message.parts, message.uid, message.pid) == ([b"hello"], os.geteuid(), os.getpid())
        assert router.send(message.sender, b"and you")
        assert [reply.parts for reply in await dealer.receive()] == [[b"and you"]]


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
async def test_a_socket_has_its_mode_from_the_first_moment(
    opened: Sockets, zeus_dir: Path, mode: int
) -> None:
    opened.listen(zeus_dir / "control", mode=mode)
    assert stat.S_IMODE((zeus_dir / "control").stat().st_mode) == mode


async def test_a_directory_in_the_place_of_a_socket_is_a_sentence_with_the_cure(
    opened: Sockets, zeus_dir: Path
) -> None:
    (zeus_dir / "publish").mkdir()
    with pytest.raises(StorageError, match=r"publish: could not be made a socket: Is a dir.*Move away what"):
        opened.listen(zeus_dir / "publish", mode=0o666)


async def test_a_socket_of_a_group_is_the_group_s(opened: Sockets, zeus_dir: Path) -> None:
    path = zeus_dir / "control"
    opened.listen(path, group=grp.getgrgid(os.getegid()).gr_name)
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, os.getegid())
    with pytest.raises(SettingsError, match="no-such-group"):
        opened.listen(zeus_dir / "other", group="no-such-group")


async def test_a_send_to_nobody_is_refused_and_never_waits(opened: Sockets, zeus_dir: Path) -> None:
    router = opened.listen(zeus_dir / "control")
    assert not router.send(b"nobody", b"hello")
    assert not opened.ask(zeus_dir / "absent").send(b"hello")


async def test_a_receive_that_is_cancelled_leaves_the_message_to_the_next(
    opened: Sockets, zeus_dir: Path
) -> None:
    router = opened.listen(zeus_dir / "control")
    dealer = opened.ask(zeus_dir / "control")
    async with taken(router) as messages:
        await eventually(lambda: dealer.send(b"hello"))
        await eventually(lambda: messages)
    assert dealer.send(b"again")
    with anyio.fail_after(PATIENCE_S):
        with anyio.CancelScope() as cancelled:
            cancelled.cancel()
            await router.receive()
        [message] = await router.receive()
    assert message.parts == [b"again"]


async def test_a_feed_reaches_who_follows_its_topic(opened: Sockets, zeus_dir: Path) -> None:
    feed = opened.listen(zeus_dir / "feed", feed=True)
    follower = opened.follow(zeus_dir / "feed", "events/")
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:

            async def publish() -> None:
                tasks.start_soon(feed.serve)
                while True:  # until the subscription has arrived
                    feed.send(b"readings/h", b"1")
                    feed.send(b"events/h", b"2")
                    await anyio.sleep(0.005)

            tasks.start_soon(publish)
            assert (await follower.receive())[0].parts == [b"events/h", b"2"]
            tasks.cancel_scope.cancel()


async def test_what_a_peer_does_not_read_is_counted_until_it_reads_or_goes(
    opened: Sockets, zeus_dir: Path
) -> None:
    router = opened.listen(zeus_dir / "query")
    async with taken(router) as messages:
        with closing(await run_sync(hostile.dealer, zeus_dir / "query")) as deaf:
            deaf.sendall(hostile.zmtp(0, b"ask"))
            await eventually(lambda: messages)
            for count in (1, 2):
                assert router.send(messages[0].sender, b"small", bytes(LARGE))
                assert router.unread_bytes >= count * LARGE - KERNEL_BYTES
            await run_sync(read, deaf, LARGE + KERNEL_BYTES)
            await eventually(lambda: router.unread_bytes < LARGE)
        await eventually(lambda: not router.unread_bytes)


def read(connection: socket.socket, size: int) -> None:
    while size > 0:
        size -= len(connection.recv(2**20))


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([b"first", bytes(REQUEST_BYTES), bytes(REQUEST_BYTES)], id="bytes"),
        pytest.param([b"first", *([b""] * 10_000)], id="parts"),
    ],
)
async def test_of_a_message_of_endless_parts_only_the_first_is_taken(
    opened: Sockets, zeus_dir: Path, parts: list[bytes]
) -> None:
    router, dealer = opened.listen(zeus_dir / "control"), opened.ask(zeus_dir / "control")
    async with taken(router) as messages:
        await eventually(lambda: dealer.send(b"whole", bytes(REQUEST_BYTES - 5)))
        assert dealer.send(*parts)
        assert dealer.send(b"still", b"there")
        await eventually(lambda: len(messages) == 3)
    assert [message.parts for message in messages[1:]] == [[b"first"], [b"still", b"there"]]
    assert messages[0].parts == [b"whole", bytes(REQUEST_BYTES - 5)]


@pytest.mark.parametrize("connect", [hostile.dealer, hostile.raw])
async def test_a_client_that_breaks_the_protocol_is_cut_off_and_others_are_not(
    opened: Sockets, zeus_dir: Path, connect: Callable[[Path], socket.socket]
) -> None:
    router, dealer = opened.listen(zeus_dir / "control"), opened.ask(zeus_dir / "control")
    async with taken(router) as messages:
        with closing(await run_sync(connect, zeus_dir / "control")) as greedy:
            with suppress(ConnectionError):
                await run_sync(greedy.sendall, hostile.zmtp(0, bytes(REQUEST_BYTES + 1)))
            await eventually(lambda: router.malformed)
            await eventually(lambda: dealer.send(b"still", b"there"))
            await eventually(lambda: messages)
    assert messages[0].parts == [b"still", b"there"]
