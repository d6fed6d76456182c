"""The logs under test, and the ways to read one from an offset on."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

import anyio
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from collectors.log.sqlite import SqliteLog
from collectors.log.store import Extent, LogStore, SessionMemory
from tests.empty_archive import archive_at
from tests.messages import WELCOME
from zeus_stream.paths import Places
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import Fetch, Fetched, Hello, Welcome
from zeus_stream.protocol.frames import Break, Frame, Part, decode_frame, encode_frame
from zeus_stream.protocol.notes import Notes
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets
from zeus_stream.transport.follower import FollowerSequence, follow
from zeus_stream.transport.listening.listener import Listener

HOST = "host"
FETCH_BYTES = 1_000


class MemoryLog:
    """A log in memory: the simulated one."""

    def __init__(self) -> None:
        self.log_id = str(uuid4())
        self._first = 0
        self._frames: list[Frame] = []
        self._sessions: dict[str, SessionMemory] = {}

    @property
    def extent(self) -> Extent:
        return Extent(self.log_id, self._first, self._first + len(self._frames))

    @property
    def size_bytes(self) -> int:
        return sum(len(frame.body) + len(frame.topic) for frame in self._frames)

    def append(
        self,
        entries: Sequence[tuple[str, bytes]],
        t_ns: int,
        session: SessionMemory | None = None,
        *,
        written_by: int | None = None,  # noqa: ARG002  (it has room for all)
    ) -> list[Frame]:
        begin = self.extent.next_offset
        added = [
            Frame(log_id=self.log_id, offset=begin + n, host=HOST, t_ns=t_ns, topic=topic, body=body)
            for n, (topic, body) in enumerate(entries)
        ]
        self._frames += added
        if session is not None:
            self._sessions.pop(session.session, None)
            self._sessions[session.session] = session
        return added

    def fetch(self, first_offset: int, count: int, max_bytes: int) -> list[Frame]:
        found: list[Frame] = []
        for frame in self._frames[max(0, first_offset - self._first) :][:count]:
            max_bytes -= len(frame.body) + len(frame.topic)
            if found and max_bytes < 0:
                break
            found.append(frame)
        return found

    def sessions(self) -> list[SessionMemory]:
        return list(self._sessions.values())

    def prune(self, now_ns: int, max_bytes: int, max_age_ns: int) -> int:
        gone = 0
        while len(self._frames) > 1 and (
            self.size_bytes > max_bytes or now_ns - self._frames[0].t_ns > max_age_ns
        ):
            del self._frames[0]
            gone += 1
        self._first += gone
        return gone

    def close(self) -> None:
        pass


LOGS: dict[str, Callable[[Path], LogStore]] = {
    "in memory": lambda _: MemoryLog(),
    "SQLite": lambda directory: SqliteLog(directory / "log.sqlite", HOST, "boot"),
}

Read = Callable[[int | None], list[Part]]
"""Returns all that a log has from an offset on; None: from its oldest frame on."""


def _welcome(extent: Extent) -> Welcome:
    first, end = extent.first_offset, extent.next_offset
    return replace(WELCOME, host=HOST, log_id=extent.log_id, first_offset=first, next_offset=end)


def _answer(log: LogStore, request: Hello | Fetch) -> list[bytes]:
    """Return the reply of a collector."""
    extent = log.extent
    if isinstance(request, Hello):
        return [codec.encode(_welcome(extent))]
    frames = log.fetch(request.first_offset, request.count, FETCH_BYTES)
    first = frames[0].offset if frames else request.first_offset
    fetched = Fetched(extent.log_id, first, extent.first_offset, extent.next_offset)
    return [codec.encode(fetched), *(part for frame in frames for part in encode_frame(frame))]


@contextmanager
def fetched(log: LogStore, _directory: Path) -> Iterator[Read]:
    """Read a log by the rules of a follower, without sockets: the simulated source."""

    def read(next_offset: int | None) -> list[Part]:
        sequencer = FollowerSequence(
            None if next_offset is None else log.log_id, next_offset, Counter(), None
        )
        parts = sequencer.welcome(_welcome(log.extent))
        while (wanted := sequencer.wanted()) is not None:
            head, *rest = _answer(log, wanted)
            frames = [decode_frame(*rest[n : n + 3]) for n in range(0, len(rest), 3)]
            parts += sequencer.fetched(codec.decode(head, Fetched), frames)
        return parts

    yield read


@contextmanager
def followed(log: LogStore, directory: Path) -> Iterator[Read]:
    """Read a log over the sockets of a collector."""
    where = Places(directory, directory)

    @asynccontextmanager
    async def serve() -> AsyncIterator[None]:
        context = sockets.context()
        try:
            feed = Listener(where.feed, feed=True)
            control = Listener(where.control)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(answer, control)
                tasks.start_soon(feed.serve)
                yield
                tasks.cancel_scope.cancel()
            feed.close()
            control.close()
        finally:
            context.destroy(linger=0)

    async def answer(control: Listener) -> None:
        while True:
            for message in await control.receive():
                correlation, payload = message.parts
                request = codec.decode(payload, Hello, Fetch)
                control.send(message.sender, correlation, *_answer(log, request))

    async def read(next_offset: int | None) -> list[Part]:
        end, parts = log.extent.next_offset, list[Part]()
        context = sockets.context()
        begin = (None, None) if next_offset is None else (log.log_id, next_offset)
        try:
            with anyio.fail_after(60):
                async with serve(), aclosing(follow(context, where, *begin)) as stream:  # type: ignore[type-var]
                    async for group in stream:
                        parts += [group] if isinstance(group, Break) else group
                        if isinstance(parts[-1], Frame) and parts[-1].offset == end - 1:
                            break
        finally:
            context.destroy(linger=0)
        return parts

    yield lambda next_offset: anyio.run(read, next_offset)


@contextmanager
def replayed(log: LogStore, directory: Path) -> Iterator[Read]:
    """Read a log from the archive of an analyzer that followed it."""
    archive = DuckdbFile.open(archive_at(directory / "energy.duckdb"), Settings(memory_mb=128))

    def read(next_offset: int | None) -> list[Part]:
        _, stored = archive.position(HOST)
        with fetched(log, directory) as follow_on:
            for part in follow_on(next_offset if stored is None else stored):
                if isinstance(part, Break):
                    archive.put([part])
                else:
                    archive.put([[(part, codec.decode(part.body, Notes))]])
        begin = next_offset or 0
        parts: list[Part] = [frame for frame, _ in archive.reader.frames_since(log.log_id, begin)]
        with archive.file.cursor() as cursor:
            gaps = cursor.execute(
                "SELECT log_id, first_offset, count, reason FROM gaps WHERE first_offset >= ?", [begin]
            ).fetchall()
        parts += [Break(*gap) for gap in gaps]
        return sorted(parts, key=lambda part: part.first_offset if isinstance(part, Break) else part.offset)

    try:
        yield read
    finally:
        archive.close()


SOURCES: dict[str, Callable[[LogStore, Path], AbstractContextManager[Read]]] = {
    "by its rules": fetched,
    "over sockets": followed,
    "from an archive": replayed,
}
