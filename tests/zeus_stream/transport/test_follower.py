"""The sequencer against any network; `follow` against real sockets and a collector that comes and goes."""

import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.messages import WELCOME
from tests.waiting import eventually
from zeus_stream.paths import Places
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import Fetch, Fetched, Hello, Welcome
from zeus_stream.protocol.frames import Break, Frame, encode_frame
from zeus_stream.protocol.queries import No
from zeus_stream.transport import sockets
from zeus_stream.transport.channel import DRAIN
from zeus_stream.transport.follower import MAX_FETCH, MAX_KEPT, FollowerSequence, follow
from zeus_stream.transport.listening.listener import Listener


def frame(offset: int, log_id: str = "log", body: bytes = b"xxx", host: str = "host") -> Frame:
    return Frame(log_id=log_id, offset=offset, host=host, t_ns=offset, topic="readings/host", body=body)


class Log:
    """A collector's log: bounded, and at times replaced by another."""

    def __init__(self) -> None:
        self.log_id = "log-0"
        self.oldest = self.next = 0
        self.renamed = range(0)
        """Offsets at which it is another host's."""

    def append(self) -> Frame:
        self.next += 1
        return self._frame(self.next - 1)

    def prune(self, count: int) -> None:
        self.oldest = min(self.next, self.oldest + count)

    def replace(self) -> None:
        self.log_id = f"log-{int(self.log_id[4:]) + 1}"
        self.oldest = self.next = 0

    def welcome(self) -> Welcome:
        return replace(WELCOME, log_id=self.log_id, first_offset=self.oldest, next_offset=self.next)

    def fetch(self, fetch: Fetch, most: int) -> tuple[Fetched, list[Frame]]:
        first = max(fetch.first_offset, self.oldest)
        found = range(first, min(self.next, first + min(fetch.count, most)))
        if fetch.log_id != self.log_id:
            found = range(0)
        header = Fetched(self.log_id, fetch.first_offset, self.oldest, self.next)
        return header, [self._frame(offset) for offset in found]

    def _frame(self, offset: int) -> Frame:
        return frame(offset, self.log_id, host="renamed" if offset in self.renamed else "host")


# ---- the sequencer


@pytest.mark.sweep
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.2]), st.sampled_from([0.0, 0.05]))
def test_through_any_feed_each_frame_comes_once_and_in_order_or_is_named_as_gone(
    seed: int, prune: float, replace: float
) -> None:
    rng = random.Random(seed)
    log, sequencer, out, in_flight = Log(), FollowerSequence("log-0", 0), list[Frame | Break](), list[Frame]()
    lengths = {"log-0": 0}

    def ask() -> None:
        """Ask what the follower would: lost now and then."""
        wanted = sequencer.wanted()
        if rng.random() < 0.2:
            return
        if wanted is None or rng.random() < 0.1:
            out.extend(sequencer.welcome(log.welcome()))
        else:
            out.extend(sequencer.fetched(*log.fetch(wanted, most=rng.randint(0, 5))))

    for _ in range(rng.randint(0, 120)):
        in_flight += [log.append() for _ in range(rng.randint(0, 4))]
        lengths[log.log_id] = log.next
        rng.shuffle(in_flight)
        for _ in range(rng.randint(0, len(in_flight))):
            late = in_flight.pop()
            if rng.random() < 0.7:
                out += sequencer.frames([late] * rng.choice([1, 1, 2]))
        if rng.random() < 0.5:
            ask()
        if rng.random() < prune:
            log.prune(rng.randint(1, 20))
        if rng.random() < replace:
            log.replace()
            lengths[log.log_id] = 0
    out += sequencer.welcome(log.welcome())
    while (wanted := sequencer.wanted()) is not None:
        out += sequencer.fetched(*log.fetch(wanted, most=5))

    reached = {"log-0": 0}
    for part in out:
        log_id, offset = (part.log_id, part.first_offset if isinstance(part, Break) else part.offset)
        assert offset == reached.setdefault(log_id, 0), "in order, once, and what is left out is named"
        reached[log_id] += part.count if isinstance(part, Break) else 1
        assert log_id == list(reached)[-1], "a log that was left does not come back"
    assert reached.get(log.log_id, 0) == log.next, "in the end nothing of the present log is owed"
    assert all(reached[log_id] <= lengths[log_id] for log_id in reached), "nothing is made up"


def test_a_feed_without_loss_is_never_asked_for_anything() -> None:
    sequencer = FollowerSequence("log", 5)
    assert sequencer.frames(map(frame, range(5, 9))) == [frame(offset) for offset in range(5, 9)]
    assert sequencer.wanted() is None


def test_who_does_not_know_where_to_begin_begins_with_the_oldest_and_calls_nothing_gone() -> None:
    sequencer = FollowerSequence()
    assert sequencer.frames([frame(20)]) == []
    assert sequencer.wanted() is None
    assert sequencer.welcome(replace(WELCOME, log_id="log", first_offset=12, next_offset=21)) == []
    assert sequencer.wanted() == Fetch("log", 12, 9)


def test_what_was_pruned_is_named_but_what_the_feed_brought_of_it_is_kept() -> None:
    sequencer = FollowerSequence("log", 2)
    sequencer.frames([frame(6), frame(7)])
    gone = "they had left the log"
    assert sequencer.fetched(Fetched("log", 2, 10, 11), [frame(10)]) == [
        Break("log", 2, 4, gone), frame(6), frame(7), Break("log", 8, 2, gone), frame(10),
    ]  # fmt: skip


def test_a_new_log_is_gone_over_to_when_the_collector_says_so_not_when_a_frame_of_it_strays_in() -> None:
    sequencer = FollowerSequence("old", 5)
    sequencer.frames([frame(8, "old")])
    assert sequencer.frames([frame(0, "new")]) == []
    new = replace(WELCOME, log_id="new", first_offset=0, next_offset=2)
    assert sequencer.welcome(new) == [Break("old", 5, 4, "the collector began a new log, new")]
    assert sequencer.wanted() == Fetch("new", 0, 2)
    assert sequencer.frames([frame(5, "old"), frame(0, "new")]) == [frame(0, "new")]


def test_a_frame_that_claims_an_absurd_offset_is_let_go_once_the_collector_says_how_far_its_log_goes() -> (
    None
):
    counters: Counter[str] = Counter()
    sequencer = FollowerSequence("log", 0, counters)
    assert sequencer.frames([frame(2**53)]) == []
    assert sequencer.wanted() == Fetch("log", 0, MAX_FETCH)
    frames = [frame(offset) for offset in range(3)]
    assert sequencer.fetched(Fetched("log", 0, 0, 3), frames) == frames
    assert sequencer.wanted() is None
    assert counters["put off"] == 1
    assert sequencer.frames([frame(3)]) == [frame(3)]


@pytest.mark.parametrize("size", [1, 1024 * 1024])
def test_what_is_kept_while_a_hole_is_open_is_bounded_and_comes_nevertheless(size: int) -> None:
    counters: Counter[str] = Counter()
    sequencer = FollowerSequence("log", 0, counters)
    count = MAX_KEPT + 100
    body = b"x" * size
    assert sequencer.frames(frame(n, body=body) for n in range(1, count)) == []
    assert counters["put off"] >= 99
    out: list[Frame | Break] = []
    while (wanted := sequencer.wanted()) is not None:
        assert wanted.count <= MAX_FETCH
        first = wanted.first_offset
        found = (frame(n, body=body) for n in range(first, first + wanted.count))
        out += sequencer.fetched(Fetched("log", first, 0, count), found)
    assert [part.offset for part in out if isinstance(part, Frame)] == list(range(count))


def test_a_collector_may_speak_for_its_own_host_only() -> None:
    counters: Counter[str] = Counter()
    sequencer = FollowerSequence("log", 0, counters, host="alpha")
    spoken = [frame(0, host=host) for host in ("beta", "alpha")]
    assert sequencer.frames(spoken) == spoken[1:]
    assert counters["of another host"] == 1


def test_what_a_log_itself_has_of_another_host_is_named_and_passed_over() -> None:
    sequencer = FollowerSequence("log", 0, host="alpha")
    hosts = ("alpha", "beta", "beta", "alpha", "alpha")
    spoken = [frame(offset, host=host) for offset, host in enumerate(hosts)]
    assert sequencer.frames([*spoken[:3], spoken[4]]) == spoken[:1]
    assert sequencer.wanted() == Fetch("log", 1, 3)
    why = "they are of another host, beta"
    ready = sequencer.fetched(Fetched("log", 1, 0, 5), spoken[1:4])
    assert ready == [Break("log", 1, 1, why), Break("log", 2, 1, why), *spoken[3:]]
    assert sequencer.wanted() is None


# ---- following


class Collector:
    """A collector's feed and control socket over a `Log`; of the feed, what `loses` says does not arrive."""

    def __init__(self, where: Places) -> None:
        self.where = where
        self.log = Log()
        self.requests: list[Hello | Fetch] = []
        self.loses = 0.0
        self.garbles = False
        self._rng = random.Random(1)
        self._feed: Listener | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        context = sockets.context()
        try:
            with (
                closing(Listener(self.where.feed, feed=True)) as self._feed,
                closing(Listener(self.where.control)) as control,
            ):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._answer, control)
                    tasks.start_soon(self._feed.serve)
                    yield
                    tasks.cancel_scope.cancel()
        finally:
            self._feed = None
            context.destroy(linger=0)

    def append(self, count: int) -> None:
        """Log frames, and publish those that are not lost."""
        for _ in range(count):
            logged = self.log.append()
            if self._feed is not None and self._rng.random() >= self.loses:
                self._feed.send(*encode_frame(logged))

    async def _answer(self, control: Listener) -> None:
        while True:
            for message in await control.receive():
                correlation, payload = message.parts
                request = codec.decode(payload, Hello, Fetch)
                assert isinstance(request, Hello | Fetch)
                self.requests.append(request)
                if self.garbles:
                    replies = [[b"nonsense"], [codec.encode(No("not now"))]]
                    reply = replies[len(self.requests) % 2]
                elif isinstance(request, Hello):
                    reply = [codec.encode(self.log.welcome())]
                else:
                    header, frames = self.log.fetch(request, most=100)
                    reply = [codec.encode(header)]
                    reply += [part for found in frames for part in encode_frame(found)]
                control.send(message.sender, correlation, *reply)


@pytest.fixture
def collector(zeus_dir: Path) -> Collector:
    return Collector(Places(zeus_dir, zeus_dir))


class Following:
    """A follower in a task, and what it has yielded."""

    def __init__(
        self,
        collector: Collector,
        log_id: str | None = None,
        next_offset: int | None = None,
        host: str | None = None,
        pause_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.host = host
        self.groups = 0
        self.counters: Counter[str] = Counter()
        self.parts: list[Frame | Break] = []
        self._collector = collector
        self._from = log_id, next_offset
        self._pause_s = pause_s

    async def run(self) -> None:
        context = sockets.context()
        try:
            async with aclosing(
                follow(
                    context,
                    self._collector.where,
                    *self._from,
                    host=self.host,
                    counters=self.counters,
                    pause_s=self._pause_s,
                )
            ) as stream:  # type: ignore[type-var]
                async for group in stream:
                    self.groups += 1
                    self.parts += [group] if isinstance(group, Break) else group
        finally:
            context.destroy(linger=0)

    @property
    def offsets(self) -> list[int]:
        return [part.offset for part in self.parts if isinstance(part, Frame)]

    async def until(self, count: int) -> None:
        await eventually(lambda: len(self.parts) >= count)


@pytest.mark.anyio
async def test_what_was_logged_before_and_after_is_followed_without_a_hole(collector: Collector) -> None:
    collector.append(250)
    following = Following(collector)
    async with collector.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(following.run)
        await following.until(250)
        for _ in range(50):
            collector.append(10)
            await anyio.lowlevel.checkpoint()
        await following.until(750)
        tasks.cancel_scope.cancel()
    assert following.offsets == list(range(750))


@pytest.mark.anyio
async def test_between_two_looks_at_the_feed_lies_the_pause(collector: Collector) -> None:
    following = Following(collector, pause_s=lambda: 0.1)
    began_s = anyio.current_time()
    async with collector.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(following.run)
        for _ in range(100):
            collector.append(1)
            await anyio.sleep(0.002)
        await following.until(100)
        tasks.cancel_scope.cancel()
    assert following.offsets == list(range(100))
    assert following.groups <= (anyio.current_time() - began_s) / 0.1 + len(collector.requests) + 1


class Pages:
    """A feed that gives frames page by page, logged when they are asked for."""

    trouble = None

    def __init__(self, collector: Collector, sizes: list[int]) -> None:
        self.feed, self.control = self, collector.where.control
        self._log, self._sizes = collector.log, sizes

    def open(self) -> "Pages":
        return self

    def send(self, *_: bytes) -> bool:
        return False

    async def receive(self) -> list[sockets.Received]:
        await anyio.lowlevel.checkpoint()
        parts = [encode_frame(self._log.append()) for _ in range(self._sizes.pop(0))]
        return [sockets.Received(sender=b"", parts=[*each], uid=None, pid=None) for each in parts]

    def close(self) -> None:
        pass


@pytest.mark.anyio
async def test_a_look_at_the_feed_that_finds_all_that_it_may_is_followed_by_another_at_once(
    collector: Collector,
) -> None:
    found, paused_at = 0, list[int]()

    def pause_s() -> float:
        paused_at.append(found)
        return 0.0

    context, pages = sockets.context(), Pages(collector, [DRAIN, DRAIN, 10, 1])
    async with (
        collector.running(),
        aclosing(follow(context, pages, pause_s=pause_s)) as stream,  # type: ignore[type-var]
    ):
        async for group in stream:
            assert isinstance(group, list)
            found += len(group)
            if found == 2 * DRAIN + 11:
                break
    context.destroy(linger=0)
    assert paused_at == [0, 2 * DRAIN + 10]


@pytest.mark.anyio
async def test_holes_of_a_lossy_feed_are_fetched(collector: Collector) -> None:
    collector.loses = 0.5
    following = Following(collector, "log-0", 0)
    async with collector.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(following.run)
        for _ in range(200):
            collector.append(5)
            await anyio.sleep(0.001)
        collector.loses = 0
        collector.append(1)
        await following.until(1001)
        tasks.cancel_scope.cancel()
    assert following.offsets == list(range(1001))
    assert any(isinstance(request, Fetch) for request in collector.requests)


@pytest.mark.sweep
@pytest.mark.anyio
async def test_a_last_frame_that_the_feed_lost_is_found_by_asking_when_it_is_quiet(
    collector: Collector,
) -> None:
    following = Following(collector)
    async with collector.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(following.run)
        await eventually(lambda: collector.requests)
        collector.loses = 1
        collector.append(3)
        await following.until(3)
        tasks.cancel_scope.cancel()
    assert following.offsets == [0, 1, 2]


@pytest.mark.sweep
@pytest.mark.anyio
async def test_restarts_of_the_collector_are_survived_and_a_new_log_is_named(collector: Collector) -> None:
    following = Following(collector)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(following.run)  # before there is a collector
        async with collector.running():
            collector.append(10)
            await following.until(10)
        collector.append(10)  # while nobody is reached
        async with collector.running():
            await following.until(20)
        collector.log.replace()
        collector.append(5)
        async with collector.running():
            await following.until(26)
        tasks.cancel_scope.cancel()
    broken = Break("log-0", 20, 0, "the collector began a new log, log-1")
    assert following.parts[20] == broken
    assert following.offsets == [*range(20), *range(5)]


@pytest.mark.anyio
async def test_who_goes_on_from_an_archive_gets_the_rest_and_the_name_of_what_is_gone(
    collector: Collector,
) -> None:
    collector.append(30)
    collector.log.prune(20)
    following = Following(collector, "log-0", 15)
    async with collector.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(following.run)
        await following.until(11)
        tasks.cancel_scope.cancel()
    assert following.parts[0] == Break("log-0", 15, 5, "they had left the log")
    assert following.offsets == list(range(20, 30))


@pytest.mark.sweep
@pytest.mark.anyio
async def test_replies_that_make_no_sense_are_counted_and_asked_for_again_at_leisure(
    collector: Collector,
) -> None:
    collector.garbles = True
    collector.append(3)
    following = Following(collector, "log-0", 0)
    async with collector.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(following.run)
        await eventually(lambda: following.counters["malformed"] and following.counters["refused"])
        asked, began_s = len(collector.requests), time.monotonic()
        await eventually(lambda: len(collector.requests) >= asked + 4)
        assert len(collector.requests) - asked <= 2 + 2 * (time.monotonic() - began_s) / 0.05
        collector.garbles = False
        await following.until(3)
        tasks.cancel_scope.cancel()
    assert following.offsets == [0, 1, 2]


@pytest.mark.anyio
async def test_a_log_that_is_another_host_s_for_a_while_does_not_end_the_stream(
    collector: Collector,
) -> None:
    following = Following(collector, "log-0", 0, host="host")
    collector.log.renamed = range(30)
    collector.append(30)
    async with collector.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(following.run)
        await following.until(1)
        collector.append(5)
        await following.until(6)
        tasks.cancel_scope.cancel()
    assert following.parts[0] == Break("log-0", 0, 30, "they are of another host, renamed")
    assert following.offsets == list(range(30, 35))
