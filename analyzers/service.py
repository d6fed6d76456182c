"""The shell of the analyzer: waits, archives, and lets the pure modules decide.

    follower -> archive (frames) -> interpreter -> archive (rows) -> link (instructions)
                                        ^                              |
    query socket -> SQL threads         +---- questions of scripts ----+

What was received is archived before it is interpreted. After a start, the stream since the oldest open
run is interpreted again from the archive, so that the machines know where they stood; nothing is
commanded until the last frame is under CAUGHT_UP_NS old.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream
from anyio.to_thread import run_sync

from analyzers import query, selectors
from analyzers.archive import Archive
from analyzers.interpreter import Interpreter, Plan
from analyzers.link import Link
from analyzers.rows import ApplyLimit, GapRow, GiveAnswer, Instruction, RestoreLimit, Row
from zeus_stream import sockets, wire
from zeus_stream.clock import monotonic_ns
from zeus_stream.config import Settings
from zeus_stream.errors import MalformedError, RefusedError
from zeus_stream.follower import Break, follow
from zeus_stream.messages import (
    Applied,
    Ask,
    AskStatus,
    Body,
    Events,
    Frame,
    LeaseEnded,
    No,
    Notes,
    Query,
    Readings,
    Refused,
    Reply,
    Status,
)
from zeus_stream.places import Places, claim, places, prepare

T = TypeVar("T")

CAUGHT_UP_NS = 1_000_000_000
BACKLOG = 64
"""Batches between follower and archive; then the follower waits, and holes are fetched later."""
MAX_QUERIES = 32
"""Queries under way or waiting; one more is refused."""


async def analyze(settings: Settings, *, environ: Mapping[str, str], started: Callable[[str], None]) -> None:
    """Run the analyzer until cancelled.

    Raises:
        SettingsError, StorageError, RefusedError: it cannot start; the sentence says what to do.
    """
    where = places(environ)
    selector = selectors.parse(settings.select)
    prepare(where, settings.group)
    path = settings.archive or where.archive
    with claim(where.run / "analyzer.lock", "analyzer"):
        archive = Archive.open(path, settings)
        context = sockets.context()
        try:
            interpreter = Interpreter(Plan.of(settings, selector), archive.known_trials())
            analyzer = Analyzer(archive, path, settings, interpreter)
            link = Link(context, where, archive.archive_id, settings.lease_ms, archive.starts)
            mode = 0o660 if settings.group else 0o600
            channel = sockets.listen(context, where.query, mode=mode)
            started(f"archives into {path}, selects by {settings.select}, answers SQL at {where.query}")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(analyzer.follow, context, where, link)
                tasks.start_soon(link.run, analyzer.ask(link))
                tasks.start_soon(analyzer.answer_queries, channel, link)
        finally:
            archive.close()
            context.destroy(linger=0)


class Analyzer:
    """What the tasks of one analyzer share. One task interprets; DuckDB works in threads."""

    def __init__(self, archive: Archive, path: Path, settings: Settings, interpreter: Interpreter) -> None:
        self._archive = archive
        self._path = path
        self._settings = settings
        self._interpreter = interpreter
        self._queries = query.Queries(archive, settings)
        self._writer = anyio.CapacityLimiter(1)
        self._readers = anyio.CapacityLimiter(query.THREADS)
        self._under_way = 0
        self._caught_up = False
        self._deferred: dict[str, ApplyLimit | RestoreLimit] = {}
        """By GPU, the last instruction that was not carried out because the stream was old."""
        self._interpreted: dict[str, int] = {}
        """By log, the offset after the last frame that was heard, until it is stored."""
        self._counters: Counter[str] = Counter()
        self._last: Frame | None = None

    async def follow(self, context: sockets.Context, where: Places, link: Link) -> None:
        """Archive and interpret one collector's stream, from where this archive ends."""
        for page in self._archive.to_replay():
            self._obey(link, page, await self._interpret(page, replaying=True))
        send, receive = anyio.create_memory_object_stream[list[Frame] | Break](BACKLOG)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._digest, receive, link)
            log_id, next_offset = self._archive.position()
            async for part in follow(context, where, log_id, next_offset, counters=self._counters):
                await send.send(part)

    async def _digest(self, parts: MemoryObjectReceiveStream[list[Frame] | Break], link: Link) -> None:
        async for part in parts:
            waiting = [part]
            while parts.statistics().current_buffer_used:
                waiting.append(parts.receive_nowait())
            # What came in during the last commits is stored in one: the busier, the larger.
            frames: list[Frame] = []
            for item in waiting:
                if isinstance(item, Break):
                    await self._take_in(frames, link)
                    await self._write(partial(self._archive.put_break, item))
                    frames = []
                else:
                    frames += item
            await self._take_in(frames, link)

    async def _take_in(self, received: Sequence[Frame], link: Link) -> None:
        if not received:
            return
        frames = [(frame, self._decoded(frame)) for frame in received]
        await self._write(partial(self._archive.put_frames, frames))
        understood = [(frame, body) for frame, body in frames if body is not None]
        self._obey(link, understood, await self._interpret(understood, replaying=False))
        self._last = received[-1]

    def _decoded(self, frame: Frame) -> Body | None:
        try:
            return wire.decode(frame.body, Readings, Events, Notes)
        except MalformedError:
            self._counters["malformed frames"] += 1
            return None

    async def _interpret(self, frames: Sequence[tuple[Frame, Body]], *, replaying: bool) -> list[Instruction]:
        """Let the interpreter hear frames, store what it derives, and return what it wants done."""
        outputs = [output for frame, body in frames for output in self._interpreter.hear(frame, body)]
        rows = [output for output in outputs if isinstance(output, Row)]
        self._counters["gaps"] += sum(isinstance(row, GapRow) for row in rows)
        self._interpreted |= {frame.log_id: frame.offset + 1 for frame, _ in frames}
        if rows:  # what gave no rows may be interpreted again: that saves half of the commits
            await self._write(partial(self._archive.put_rows, rows, self._interpreted, replaying=replaying))
            self._interpreted = {}
        return [output for output in outputs if isinstance(output, Instruction)]

    def _obey(
        self, link: Link, frames: Sequence[tuple[Frame, Body]], instructions: Iterable[Instruction]
    ) -> None:
        """Carry instructions out, or keep each GPU's last until the stream is no longer old."""
        for _, body in frames:
            if isinstance(body, Notes):
                self._note_leases(link, body)
        if not self._caught_up and frames:
            self._caught_up = monotonic_ns() - frames[-1][0].t_ns < CAUGHT_UP_NS and link.connected
        for instruction in instructions:
            if isinstance(instruction, GiveAnswer):
                link.carry_out(instruction)
            else:
                self._deferred[instruction.gpu] = instruction
        if self._caught_up:
            for instruction in self._deferred.values():
                link.carry_out(instruction)
            self._deferred.clear()

    def _note_leases(self, link: Link, body: Notes) -> None:
        for note in body.notes:
            match note:
                case Applied(_, command, gpu):
                    link.hold(gpu)
                    self._settled(gpu, command)
                case Refused(_, command, gpu):
                    self._settled(gpu, command)
                case LeaseEnded(_, gpu):
                    link.let_go(gpu)
                case _:
                    pass  # nothing about leases

    def _settled(self, gpu: str, command: str) -> None:
        deferred = self._deferred.get(gpu)
        if deferred is not None and deferred.command == command:
            del self._deferred[gpu]

    def ask(self, link: Link) -> Callable[[Ask], None]:
        """Return what takes a script's question; the answer goes out by itself, now or when it is known."""

        def asked(question: Ask) -> None:
            for instruction in self._interpreter.ask(link.host, question):
                link.carry_out(instruction)

        return asked

    async def _write(self, job: Callable[[], T]) -> T:
        return await run_sync(job, limiter=self._writer)

    # ---- SQL and status ------------------------------------------------------------------------------

    async def answer_queries(self, channel: sockets.Channel, link: Link) -> None:
        """Answer the query socket until cancelled."""
        async with anyio.create_task_group() as tasks:
            try:
                while True:
                    for message in await channel.receive():
                        self._take(message, channel, link, tasks)
            finally:
                self._queries.stop()

    def _take(
        self, message: sockets.Received, channel: sockets.Channel, link: Link, tasks: TaskGroup
    ) -> None:
        def reply(answer: Reply, *parts: bytes) -> None:
            if not channel.send(message.sender, message.parts[0], wire.encode(answer), *parts):
                self._counters["replies to nobody"] += 1

        try:
            request = wire.decode(message.parts[-1], Query, AskStatus)
        except MalformedError as wrong:
            self._counters["malformed requests"] += 1
            reply(No(str(wrong)))
            return
        match request:
            case AskStatus():
                reply(self._status(link))
            case Query() if self._under_way >= MAX_QUERIES:
                reply(No(f"query: could not be answered: {MAX_QUERIES} are under way. Ask again later."))
            case Query():
                self._under_way += 1
                tasks.start_soon(self._query, request, reply)

    async def _query(self, asked: Query, reply: Callable[..., None]) -> None:
        try:
            done, parts = await run_sync(self._queries.answer, asked, limiter=self._readers)
        except RefusedError as wrong:
            reply(No(str(wrong)))
        else:
            reply(done, *parts)
        finally:
            self._under_way -= 1

    def _status(self, link: Link) -> Status:
        last = self._last
        lag = "nothing received yet" if last is None else f"{(monotonic_ns() - last.t_ns) / 1e9:.2f} s"
        rows = [
            ("analyzer", "archive", str(self._path)),
            ("analyzer", "selector", self._settings.select),
            ("collector", "connected", "yes" if link.connected else "no"),
            ("collector", "last frame", "none" if last is None else f"{last.offset} of log {last.log_id}"),
            ("collector", "lag", lag),
            ("commands", "dropped", str(link.dropped)),
            ("commands", "not understood", str(link.malformed)),
            ("queries", "under way", str(self._under_way)),
            *(("counters", name, str(count)) for name, count in sorted(self._counters.items())),
        ]
        return Status(tuple(rows))
