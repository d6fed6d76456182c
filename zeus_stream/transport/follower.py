"""Feed and fetch -> a log's frames in order, each once; what is gone for good is named.

The feed loses by design. So a follower subscribes, sees a hole in the offsets, fetches what is missing
over the control socket, and goes on. `FollowerSequence` is that rule, without sockets; `follow` obeys it.

    a frame ahead of a hole     kept while there is room; else put off: it is fetched when its turn comes
    a frame a second time       ignored
    a hole                      fetched, the oldest first
    the log pruned there        `Break`, and on with the oldest frame there is
    the collector says that     `Break`, and on from that log's beginning; until it says so, the frames
      its log is another one      of another log are put off
    a frame of another host       ignored; if the log has it nevertheless: `Break`, and on with the next
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial

import anyio

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import MalformedError
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import Fetch, Fetched, Hello, Welcome
from zeus_stream.protocol.frames import Break, Frame, Part, decode_frame
from zeus_stream.protocol.queries import No
from zeus_stream.transport import sockets
from zeus_stream.transport.channel import DRAIN, FollowedSource, MessageWay

MAX_KEPT = 2_000
MAX_KEPT_BYTES = 64 * 1024 * 1024
MAX_FETCH = 1_000
QUIET_S = 2.0
"""Without a frame for so long, the collector is asked how far its log goes. Those of a host at rest come each
0.9 s; one that was late was taken for lost, and the feed opened again for it."""
REPLY_S = 1.0
RETRY_S = 0.05
LULL_NS = 600_000_000
"""After a wait so long for a frame, nothing is gained by letting more come together."""
HELLO = Hello("watcher", "follower")


class FollowerSequence:
    """Puts the frames of one collector's log in order. Pure.

    ``next_offset`` None: from the oldest frame on. ``host``: the only one that the collector may speak for.
    """

    def __init__(
        self,
        log_id: str | None = None,
        next_offset: int | None = None,
        counters: Counter[str] | None = None,
        host: str | None = None,
    ) -> None:
        self._log_id = log_id if next_offset is not None else None
        self._next = next_offset or 0
        self._end = self._next
        """The log is known to reach up to here."""
        self._kept: dict[int, Frame] = {}
        self._kept_bytes = 0
        self._counters = Counter() if counters is None else counters
        self._host = host

    def frames(self, frames: Iterable[Frame]) -> list[Part]:
        """Take in frames, in any order; return those whose turn it is."""
        ready: list[Part] = []
        for frame in frames:
            if self._host not in (None, frame.host):
                self._counters["of another host"] += 1
            elif frame.log_id != self._log_id:
                self._counters["put off"] += 1
            elif frame.offset == self._next:
                self._next += 1
                ready.append(frame)
                self._release(ready)
            else:
                self._keep(frame)
        return ready

    def welcome(self, welcome: Welcome) -> list[Part]:
        """Take in which log it is, and from where to where it goes."""
        return self._learn(welcome.log_id, welcome.first_offset, welcome.next_offset)

    def fetched(self, reply: Fetched, frames: Iterable[Frame]) -> list[Part]:
        """Take in the reply to what was `wanted`, before anything else is taken in."""
        oldest = reply.oldest_offset
        if reply.log_id == self._log_id:  # and not the offset that was asked for in another log
            oldest = max(oldest, reply.first_offset)
        ready = self._learn(reply.log_id, oldest, reply.next_offset)
        for frame in frames:
            ready += self.frames((frame,))
            if self._host not in (None, frame.host) and (frame.log_id, frame.offset) == self._position:
                self._next += 1
                ready.append(Break(frame.log_id, frame.offset, 1, f"they are of another host, {frame.host}"))
                self._release(ready)
        return ready

    def wanted(self) -> Fetch | None:
        """Return what has to be fetched before anything can go on: the oldest hole."""
        if self._log_id is None or self._next >= self._end:
            return None
        count = min(self._kept, default=self._end) - self._next
        return Fetch(self._log_id, self._next, min(count, MAX_FETCH))

    @property
    def _position(self) -> tuple[str | None, int]:
        return self._log_id, self._next

    def _learn(self, log_id: str, oldest: int, end: int) -> list[Part]:
        ready: list[Part] = []
        if log_id != self._log_id:
            if self._log_id is None:
                self._next = oldest
            else:
                reason = f"the collector began a new log, {log_id}"
                ready.append(Break(self._log_id, self._next, self._end - self._next, reason))
                self._next = 0
            self._log_id, self._end = log_id, self._next
            self._kept.clear()
            self._kept_bytes = 0
        self._end = max(end, self._next)  # a frame that lied about its offset ends here
        for offset in [offset for offset in self._kept if offset >= self._end]:
            self._kept_bytes -= len(self._kept.pop(offset).body)
            self._counters["put off"] += 1
        while oldest > self._next:
            resume = min(oldest, *self._kept) if self._kept else oldest
            ready.append(Break(log_id, self._next, resume - self._next, "they had left the log"))
            self._next = resume
            self._release(ready)
        return ready

    def _keep(self, frame: Frame) -> None:
        self._end = max(self._end, frame.offset + 1)
        if frame.offset < self._next or frame.offset in self._kept:
            self._counters["duplicates"] += 1
        elif len(self._kept) >= MAX_KEPT or self._kept_bytes + len(frame.body) > MAX_KEPT_BYTES:
            self._counters["put off"] += 1
        else:
            self._kept[frame.offset] = frame
            self._kept_bytes += len(frame.body)

    def _release(self, ready: list[Part]) -> None:
        """Follow up with the kept frames whose turn it has become."""
        while (frame := self._kept.pop(self._next, None)) is not None:
            self._kept_bytes -= len(frame.body)
            self._next += 1
            ready.append(frame)
        self._end = max(self._end, self._next)


async def follow(
    context: sockets.Context,
    where: FollowedSource,
    log_id: str | None = None,
    next_offset: int | None = None,
    *,
    host: str | None = None,
    counters: Counter[str] | None = None,
    pause_s: Callable[[], float] = lambda: 0.0,
) -> AsyncIterator[list[Frame] | Break]:
    """Yield the frames of a collector's log from ``next_offset`` of ``log_id`` on, and what is gone of them.

    It goes on for ever, through restarts of the collector. While the caller is busy nothing is read: what the
    feed then loses is fetched afterwards. ``pause_s``: lets frames come together before a look at the feed.
    """
    counters = Counter() if counters is None else counters
    sequencer = FollowerSequence(log_id, next_offset, counters, host)
    feed: MessageWay | None = await sockets.once_possible(partial(sockets.follow, context, where.feed))
    control = _Control(context, where, counters)
    request: Hello | Fetch | None = HELLO
    silent = full = lull = False
    try:
        while True:
            if request is None:
                feed = feed or await sockets.once_possible(partial(sockets.follow, context, where.feed))
                if not (full or lull) and (pause := pause_s()):
                    await anyio.sleep(pause)
                began_ns = monotonic_ns()
                received = await _received(feed, counters)
                lull = monotonic_ns() - began_ns > LULL_NS
                silent, full = not received, len(received) >= DRAIN
                ready = sequencer.frames(received)
                request = sequencer.wanted() or (None if ready else HELLO)
            else:
                ready = _heard(await control.ask(request), sequencer, counters)
                if ready or request is HELLO:
                    request = sequencer.wanted()
                    if silent and request is not None and feed is not None:
                        # It was logged and not brought. ZeroMQ does not try again where it was refused.
                        feed.close()
                        feed = await sockets.once_possible(partial(sockets.follow, context, where.feed))
                        silent = False
                else:  # what was there is not, or nobody is: ask how it stands, at leisure
                    request = HELLO
                    if feed is not None:
                        # Messages have any number of parts: of one who makes no sense none are to lie unread.
                        feed.close()
                        feed = None
                    await anyio.sleep(RETRY_S)
            for part in _grouped(ready):
                yield part
    finally:
        control.close()
        if feed is not None:
            feed.close()


class _Control:
    """Requests to the collector, one at a time."""

    def __init__(self, context: sockets.Context, where: FollowedSource, counters: Counter[str]) -> None:
        self._context = context
        self._where = where
        self._counters = counters
        self._channel: MessageWay | None = None
        self._asked = 0

    async def ask(self, request: Hello | Fetch) -> list[bytes]:
        """Return the parts of the reply; none if there was none in time."""
        self._asked += 1
        correlation = self._asked.to_bytes(8, "big")
        payload = codec.encode(request)
        opening = partial(sockets.ask, self._context, self._where.control)
        channel = self._channel = self._channel or await sockets.once_possible(opening)
        with anyio.move_on_after(REPLY_S):
            while not channel.send(correlation, payload):  # noqa: ASYNC110  (nothing tells of a connection)
                await anyio.sleep(RETRY_S)
            while True:
                for message in await channel.receive():
                    if message.parts[0] == correlation:
                        return message.parts[1:]
        self._counters["unanswered"] += 1
        self.close()  # what it still holds must not reach the collector's successor
        return []

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


async def _received(feed: MessageWay, counters: Counter[str]) -> list[Frame]:
    """Return the frames that the feed has; none if it has been quiet."""
    with anyio.move_on_after(QUIET_S):
        return [frame for message in await feed.receive() for frame in _decoded(message.parts, counters)]
    return []


def _heard(parts: list[bytes], sequencer: FollowerSequence, counters: Counter[str]) -> list[Part]:
    if not parts:
        return []
    try:
        reply: object = codec.decode(parts[0], Welcome, Fetched, No)
    except MalformedError:
        counters["malformed"] += 1
        return []
    match reply:
        case Welcome():
            return sequencer.welcome(reply)
        case Fetched():
            return sequencer.fetched(reply, _decoded(parts[1:], counters))
        case _:
            counters["refused"] += 1
            return []


def _decoded(parts: list[bytes], counters: Counter[str]) -> list[Frame]:
    """Return the frames in message parts, three each; those that are not frames are counted."""
    frames = []
    for at in range(0, len(parts), 3):
        try:
            frames.append(decode_frame(*parts[at : at + 3]))
        except (MalformedError, TypeError):
            counters["malformed"] += 1
    return frames


def _grouped(ready: list[Part]) -> list[list[Frame] | Break]:
    """Return runs of frames as lists, with the breaks between them; adjacent breaks of one kind as one."""
    groups: list[list[Frame] | Break] = []
    for part in ready:
        match part, groups[-1] if groups else None:
            case Frame(), list() as run:
                run.append(part)
            case Frame(), _:
                groups.append([part])
            case Break(log_id, first, count, why), Break(last_id, last_first, last_count, last_why) if (
                log_id,
                first,
                why,
            ) == (last_id, last_first + last_count, last_why):
                groups[-1] = Break(log_id, last_first, last_count + count, why)
            case Break(), _:
                groups.append(part)
    return groups
