"""A link that holds no lease, in virtual time: it asks seldom, and notices nevertheless who is gone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from analyzers.dispatch import collector_link
from analyzers.dispatch.collector_link import FIRST_NS, GREET_S, RESEND_S, SILENCE_NS, Commander, Link
from collectors.sampling.schedule import ALIVE_NS
from tests.analyzers.dispatch.virtual_loop import IN_VIRTUAL_TIME
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import Hello, RenewLeases, Welcome
from zeus_stream.transport import sockets
from zeus_stream.transport.channel import Received

pytestmark = pytest.mark.anyio
FIRST_S, SILENCE_S, FRAMES_S = FIRST_NS / 1e9, SILENCE_NS / 1e9, ALIVE_NS / 1e9
HOUR_S = 3600.0
WELCOME = Welcome(
    host="host", incarnation="incarnation", log_id="log", first_offset=0, next_offset=10, observe=False
)


@pytest.fixture
def anyio_backend() -> object:
    return IN_VIRTUAL_TIME


class Way:
    """A way to the collector: it answers at once, as long as it does."""

    trouble = None

    def __init__(self, collector: "Collector") -> None:
        self._collector = collector
        self._replies, self._received = anyio.create_memory_object_stream[bytes](100)

    def send(self, *parts: bytes) -> bool:
        request = codec.decode(parts[1], Hello, RenewLeases)
        self._collector.heard.append((anyio.current_time(), request))
        if isinstance(request, Hello) and self._collector.answers:
            self._replies.send_nowait(codec.encode(WELCOME))
        return True

    async def receive(self) -> list[Received]:
        part = await self._received.receive()
        return [Received(sender=b"", parts=[bytes(8), part], uid=None, pid=None)]

    def close(self) -> None:
        self._replies.close()
        self._received.close()


class Collector:
    """A collector, the ways to it, and a link that sees its frames."""

    def __init__(self, context: sockets.Context) -> None:
        self.answers = self.logs = True
        self.used = False
        self.opened = 0
        self.heard: list[tuple[float, object]] = []
        """When, and what."""
        self.feed = self.control = self
        self.link = Link(context, self, Commander("test", 1), 1500)

    def open(self) -> Way:
        self.opened += 1
        return Way(self)

    async def log(self) -> None:
        """Log a frame each time that a collector at rest says that it is alive."""
        while True:
            await anyio.sleep(FRAMES_S)
            if self.logs:
                self.link.saw_frames(used=self.used)

    def count(self, kind: type) -> int:
        return sum(isinstance(request, kind) for _, request in self.heard)


@asynccontextmanager
async def linked(monkeypatch: pytest.MonkeyPatch, *, logs: bool = True) -> AsyncIterator[Collector]:
    """Give a collector whose link has come to rest. ``logs``: its frames reach the analyzer."""
    monkeypatch.setattr(collector_link, "monotonic_ns", lambda: round(anyio.current_time() * 1e9))
    with sockets.context() as context:  # which opens no socket here
        collector = Collector(context)
        collector.logs = logs
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collector.link.run, lambda *_: None)
            tasks.start_soon(collector.log)
            await anyio.sleep(2 * FIRST_S)
            yield collector
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("logs", "pause_s"),
    [
        pytest.param(True, GREET_S, id="frames say that the collector is there"),
        pytest.param(False, RESEND_S, id="without frames, it is asked"),
    ],
)
async def test_it_keeps_its_connection_over_many_greetings(
    monkeypatch: pytest.MonkeyPatch,
    logs: bool,  # noqa: FBT001  (a column of the table)
    pause_s: float,
) -> None:
    """Greetings that came almost as seldom as silence lasts opened the connection again each 12.7 s."""
    async with linked(monkeypatch, logs=logs) as collector:
        before = collector.count(Hello)
        await anyio.sleep(HOUR_S)
        assert collector.count(Hello) - before == pytest.approx(HOUR_S / pause_s, rel=0.01)
        assert collector.link.connected
        assert collector.opened == 1


async def test_a_collector_whose_host_has_sessions_is_asked_although_frames_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with linked(monkeypatch) as collector:
        collector.used = True
        await anyio.sleep(GREET_S)
        before = collector.count(Hello)
        await anyio.sleep(10 * RESEND_S)
        assert collector.count(Hello) - before == pytest.approx(10, abs=1)


async def test_a_collector_that_is_gone_is_noticed_as_soon_as_one_that_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with linked(monkeypatch) as collector:
        collector.answers = collector.logs = False
        await anyio.sleep(FRAMES_S + SILENCE_S + RESEND_S)
        assert not collector.link.connected
        assert collector.opened > 1


async def test_frames_do_not_answer_for_a_collector_that_takes_no_greeting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with linked(monkeypatch) as collector:
        collector.answers = False
        await anyio.sleep(GREET_S + SILENCE_S + RESEND_S)
        assert not collector.link.connected
        collector.answers = True
        await anyio.sleep(2 * SILENCE_S)
        assert collector.link.connected


async def test_a_lease_that_is_known_later_is_renewed_while_frames_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with linked(monkeypatch) as collector:
        collector.link.leases = lambda: frozenset({"GPU-1"})
        await anyio.sleep(RESEND_S)
        assert collector.count(RenewLeases) > 0
        before = collector.count(RenewLeases)
        await anyio.sleep(10 * collector_link.BEAT_S)
        assert collector.count(RenewLeases) - before == pytest.approx(10, abs=1)
