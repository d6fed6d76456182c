import grp
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from tests import hostile
from zeus_stream.errors import SettingsError
from zeus_stream.transport import sockets

pytestmark = pytest.mark.anyio
PATIENCE_S = 180.0
LARGE = 8 * 1024 * 1024


class Sockets:
    """The functions under test over one context; closes what it opened."""

    def __init__(self) -> None:
        self._context = sockets.context()
        self._opened: list[sockets.Channel] = []

    def listen(
        self,
        path: Path,
        *,
        feed: bool = False,
        mode: int = 0o600,
        group: str | None = None,
        watched: bool = False,
    ) -> sockets.Channel:
        return self._keep(
            sockets.listen(self._context, path, feed=feed, mode=mode, group=group, watched=watched)
        )

    def ask(self, path: Path) -> sockets.Channel:
        return self._keep(sockets.ask(self._context, path))

    def follow(self, path: Path, topic: str) -> sockets.Channel:
        return self._keep(sockets.follow(self._context, path, topic))

    def _keep(self, channel: sockets.Channel) -> sockets.Channel:
        self._opened.append(channel)
        return channel

    def close(self) -> None:
        for channel in self._opened:
            channel.close()
        self._context.destroy(linger=0)


@pytest.fixture
def opened() -> Iterator[Sockets]:
    with closing(Sockets()) as made:
        yield made


async def test_the_kernel_says_who_sent_a_message(opened: Sockets, zeus_dir: Path) -> None:
    router = opened.listen(zeus_dir / "publish", mode=0o666)
    dealer = opened.ask(zeus_dir / "publish")
    with anyio.fail_after(PATIENCE_S):
        while not dealer.send(b"hello"):
            await anyio.sleep(0.001)
        [message] = await router.receive()
        assert (message.parts, message.uid, message.pid) == ([b"hello"], os.geteuid(), os.getpid())
        assert router.send(message.sender, b"and you")
        assert [reply.parts for reply in await dealer.receive()] == [[b"and you"]]


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
async def test_a_socket_has_its_mode_from_the_first_moment(
    opened: Sockets, zeus_dir: Path, mode: int
) -> None:
    opened.listen(zeus_dir / "control", mode=mode)
    assert stat.S_IMODE((zeus_dir / "control").stat().st_mode) == mode


async def test_a_socket_of_a_group_is_the_group_s_after_a_cut_as_well(
    opened: Sockets, zeus_dir: Path
) -> None:
    path = zeus_dir / "control"
    channel = opened.listen(path, group=grp.getgrgid(os.getegid()).gr_name)
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, os.getegid())
    await channel.cut()
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, os.getegid())
    with pytest.raises(SettingsError, match="no-such-group"):
        opened.listen(zeus_dir / "other", group="no-such-group")


async def test_a_flood_of_connections_whose_reports_are_not_read_yet_stops_nothing(
    opened: Sockets, zeus_dir: Path
) -> None:
    listener = opened.listen(zeus_dir / "any", watched=True)
    for _ in range(3_000):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 60, 0))
            peer.connect(str(zeus_dir / "any"))
    await listener.cut()
    asking = opened.ask(zeus_dir / "any")
    with anyio.fail_after(PATIENCE_S):
        while not asking.send(b"", b"still there"):
            await anyio.sleep(0.01)
        [message, *_] = await listener.receive()
    assert message.parts == [b"", b"still there"]


async def test_a_send_to_nobody_is_refused_and_never_waits(opened: Sockets, zeus_dir: Path) -> None:
    router = opened.listen(zeus_dir / "control")
    assert not router.send(b"nobody", b"hello")
    assert not opened.ask(zeus_dir / "absent").send(b"hello")


async def test_a_receive_that_is_cancelled_leaves_the_message_to_the_next(
    opened: Sockets, zeus_dir: Path
) -> None:
    router = opened.listen(zeus_dir / "control")
    dealer = opened.ask(zeus_dir / "control")
    with anyio.fail_after(PATIENCE_S):
        while not dealer.send(b"hello"):
            await anyio.sleep(0.001)
        while not router._readable():
            await anyio.sleep(0.001)
        with anyio.CancelScope() as cancelled:
            cancelled.cancel()
            await router.receive()
        [message] = await router.receive()
    assert message.parts == [b"hello"]


@pytest.mark.sweep
async def test_a_message_that_comes_in_while_another_task_sends_is_not_forgotten(
    opened: Sockets, zeus_dir: Path
) -> None:
    """The descriptor is edge-triggered, and a send can swallow the edge: thousands of tries find it."""
    router = opened.listen(zeus_dir / "control")
    dealer = opened.ask(zeus_dir / "control")
    rounds = 2000

    async def echo() -> None:
        answered = 0
        while answered < rounds:
            for message in await router.receive():
                router.send(message.sender, *message.parts)
                answered += 1

    async def chatter() -> None:
        while True:
            router.send(b"nobody", b"noise")
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chatter)
            tasks.start_soon(echo)
            for number in range(rounds):
                while not dealer.send(b"%d" % number):
                    await anyio.sleep(0.001)
                [reply] = await dealer.receive()
                assert reply.parts == [b"%d" % number]
            tasks.cancel_scope.cancel()


async def test_a_feed_reaches_who_follows_its_topic(opened: Sockets, zeus_dir: Path) -> None:
    feed = opened.listen(zeus_dir / "feed", feed=True)
    follower = opened.follow(zeus_dir / "feed", "events/")
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:

            async def publish() -> None:
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
    with closing(hostile.dealer(zeus_dir / "query")) as deaf, anyio.fail_after(PATIENCE_S):
        deaf.sendall(hostile.zmtp(0, b"ask"))
        [asked] = await router.receive()
        for count in (1, 2):
            assert router.send_counted(asked.sender, b"small", bytes(LARGE))
            assert router.unread_bytes >= count * LARGE
        read = 0
        while read < LARGE:
            read += len(deaf.recv(2**20))
        while router.unread_bytes >= 2 * LARGE:
            await anyio.sleep(0.001)
    with anyio.fail_after(PATIENCE_S):
        while router.unread_bytes:
            await anyio.sleep(0.001)


async def test_of_a_message_of_endless_parts_only_the_first_is_taken(opened: Sockets, zeus_dir: Path) -> None:
    router, dealer = opened.listen(zeus_dir / "control"), opened.ask(zeus_dir / "control")
    most = [bytes(500_000)] * 32
    with anyio.fail_after(PATIENCE_S):
        while not dealer.send(b"first", *most):
            await anyio.sleep(0.001)
        assert dealer.send(b"first", *most, *most)
        received: list[list[bytes]] = []
        while len(received) < 2:
            received += [message.parts for message in await router.receive()]
    assert received == [[b"first", *most], [b"first"]]
