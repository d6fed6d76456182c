"""The shell of the analyzer: a tree of tasks that wait. The pure modules decide.

    followers -> decode -> interpret, in a thread of its own -> pending -> links
                    |          | rows
                    +-> commits: a transaction every few seconds, or when a query waits for it
    query socket -> SQL, status                    questions of scripts -> interpret

A command leaves when its row is stored. After a start, the machines go on from the last checkpoint, and
what came since is interpreted again. No host is commanded until all is interpreted that its log held at
the collector's last report.

Leases, status and queries are served by the event loop, which waits for neither interpretation nor commits.
Any number of collectors is followed, one of each host; their frames are interpreted as they come in.
"""

import logging
import sys
from collections import Counter, defaultdict, deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from anyio.to_thread import run_sync

from analyzers.archive.process.child_process import ChildProcess
from analyzers.archive.process.store_client import StoreClient
from analyzers.archive.sandbox.bounded_queries import Queries
from analyzers.archive.store import Store
from analyzers.batch_size import registry
from analyzers.checkpoints.checkpoint_taker import complete, load_key
from analyzers.checkpoints.restart import Restart, restart
from analyzers.dispatch.collector_link import Link
from analyzers.dispatch.own_log import OwnLog, OwnUseLog
from analyzers.interpreter.interpreter import ProgressAsked
from analyzers.live.live_site import LiveSite, site_head
from analyzers.power_limit import selectors
from analyzers.results.result import OWN, Result
from analyzers.results.rows import GapRow
from analyzers.results.signal_rows import SignalRow
from analyzers.service import watched_files
from analyzers.service.collectors import Collector, Host, complain, links_seen
from analyzers.service.commits import COMMIT_BYTES, Commits, prune, size_of
from analyzers.service.interpretation import Interpretation
from analyzers.service.query_server import AnalyzerAnswers, QueryServer, ResultsServer
from zeus_stream import own_cost
from zeus_stream.clock import anchor, monotonic_ns
from zeus_stream.live.answer import LiveAnswers
from zeus_stream.paths import Places, claim, places, prepare
from zeus_stream.protocol.events import Ask, AskTry
from zeus_stream.protocol.frames import Body, Break, Frame, body_of
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.queries import Status, StatusRows
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets
from zeus_stream.transport.access import AccessGate
from zeus_stream.transport.endpoints import source
from zeus_stream.transport.listening.listener import Listener

_log = logging.getLogger(__name__)

SWITCH_S = 0.001
"""For so long the thread that interprets keeps the interpreter lock of Python to itself."""
BACKLOG = 16
"""Batches between follower and archive; then the follower waits, and holes are fetched later."""
STORED_AHEAD = 8
"""Batches that are stored and not interpreted; then storing waits."""
GIVEN_AHEAD = 64
"""Results of slices of the stream that wait for a commit; then interpretation waits."""
MAX_QUESTIONS = 1_000
"""Questions of scripts that wait for the interpreter; one more is dropped, and the script asks again."""
SMALL_BYTES = 20_000
"""Frames that are decoded at once: a thread takes longer to begin."""

Decoded = Sequence[tuple[Frame, Body]]

Roster = Callable[["Analyzer"], Coroutine[Any, Any, None]]
"""A task that lets collectors join an analyzer and leave it. It runs until it is cancelled."""


@contextmanager
def only_analyzer(settings: Settings, environ: Mapping[str, str]) -> Iterator[Places]:
    """Make this process the analyzer of its directories. Raises SettingsError, RefusedError."""
    sys.setswitchinterval(SWITCH_S)
    own_cost.share_one_heap()
    where = places(environ)
    check(settings)
    prepare(where, settings.group)
    with claim(where.run / "analyzer.lock", "analyzer"):
        yield where


def check(settings: Settings) -> None:
    """Raise SettingsError unless selector and policy can be had."""
    selectors.parse(settings.select)
    registry.maker_of(settings.policy)


async def analyze(
    settings: Settings,
    *,
    environ: Mapping[str, str],
    started: Callable[[str], None],
    roster: Roster | None = None,
    store: ChildProcess | None = None,
) -> None:
    """Run the analyzer until cancelled.

    ``started``: called once, with a sentence for people. ``roster``: finds the collectors; None: the settings
    do. ``store``: its process, if it is started. Raises SettingsError, StorageError, RefusedError.
    """
    with only_analyzer(settings, environ) as where:
        named = {} if roster else {text: source(text, where.keys) for text in settings.follow}
        sources = named or ({} if roster else {str(where.run): where})
        path = settings.archive or where.archive
        archive = StoreClient.open(path, settings, store)
        context, opened = sockets.context(), ExitStack()
        try:
            begin = restart(archive, settings, load_key(where.state))
            collectors = [
                Collector(context, name, where, archive, settings) for name, where in sources.items()
            ]
            analyzer = Analyzer(archive, path, settings, begin, collectors)
            channel = Listener(where.query, group=settings.group)
            opened.callback(channel.close)
            gate = AccessGate(settings.listen, where.keys, {"query": channel})
            watched = watched_files.take_all(where, begin.interpreter)
            started(f"archives into {path}, selects by {settings.select}, answers SQL at {where.query}")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gate.run)
                tasks.start_soon(own_cost.return_free_memory)
                tasks.start_soon(watched_files.watch_all, watched, analyzer.interpretation.run)
                groups = dict(settings.budget_groups)
                tasks.start_soon(
                    analyzer.follow, partial(watched_files.publish_budgets, where.budgets, groups)
                )
                if roster is not None:
                    tasks.start_soon(roster, analyzer)
                tasks.start_soon(watched_files.follow_signals, where.signals, analyzer.store_signals)
                tasks.start_soon(prune, archive, settings)
                tasks.start_soon(analyzer.queries.run, channel, gate)
        finally:
            archive.close()
            opened.close()
            context.destroy(linger=0)


class Given(NamedTuple):
    """The results of a slice of the stream."""

    result: Result
    interpreted: Mapping[str, int]
    """By log, the next offset to be interpreted."""
    stored: anyio.Event | None = None
    """Set once it is stored, if somebody waits for that."""


class Analyzer:
    """The state that the tasks of one analyzer share."""

    def __init__(
        self,
        archive: Store,
        path: Path,
        settings: Settings,
        begin: Restart,
        collectors: Iterable[Collector],
    ) -> None:
        self.archive, self._path, self._settings = archive, path, settings
        self.interpretation = Interpretation(begin.interpreter, begin.taker)
        self._taker = begin.taker
        self._next: dict[str, int] | None = None
        """By log, the offset to be received next. None: a shard's may come again, and are wanted."""
        self._collectors: list[Collector] = []
        self._first = tuple(collectors)
        self._replayed = anyio.Event()
        self._hosts: defaultdict[str, Host] = defaultdict(Host)
        self._writer = anyio.CapacityLimiter(1)
        results = ResultsServer(f"{archive.archive_id}/{archive.starts}")
        self._commits = Commits(archive, results.publish, lambda: results.readers > 0)
        self._received_ns: deque[int] = deque()
        """When the batches came in (CLOCK_MONOTONIC) that are not interpreted to their end."""
        self._counters: Counter[str] = Counter()
        self._questions: MemoryObjectSendStream[tuple[str, Ask | AskTry]]
        self._given: MemoryObjectSendStream[Given]
        self._own_use, self._since, self._live = OwnUseLog(settings), begin.since, begin.live
        self._key = begin.key
        answers = AnalyzerAnswers(self.forget, LiveAnswers(self._now).answer, self._commits.commit, results)
        self.queries = QueryServer(Queries(archive, settings), self.status, answers, self._counters)

    async def store_signals(self, rows: Sequence[SignalRow]) -> None:
        await self._commits.add_derived(rows, {}, ())
        await self._commits.commit()

    async def follow(
        self, state_budgets: Callable[[OwnLog], Coroutine[None, None, None]], *, alone: bool = True
    ) -> None:
        """Archive and interpret all streams, and our own words.

        Args:
            state_budgets: states power budgets in our own log.
            alone: in this process. If not, hosts are followed only after budgets were stated.
        """
        send, receive = anyio.create_memory_object_stream[list[Frame] | Break](BACKLOG)
        stored, decoded = anyio.create_memory_object_stream[Decoded](STORED_AHEAD)
        self._questions, questions = anyio.create_memory_object_stream[tuple[str, Ask | AskTry]](
            MAX_QUESTIONS
        )
        self._given, results = anyio.create_memory_object_stream[Given](GIVEN_AHEAD)
        with send, receive, stored, decoded, self._questions, questions, self._given, results:
            async with anyio.create_task_group() as tasks:
                self._tasks, self._send = tasks, send
                for collector in self._first:
                    self.join(collector)
                tasks.start_soon(self._commits.run)
                await self._replay(tasks)
                self._next = dict(self._taker.next) if alone else None
                tasks.start_soon(self._store, receive, stored)
                tasks.start_soon(self._digest, decoded)
                tasks.start_soon(self._deliver_all, results)
                tasks.start_soon(self._answer, questions)
                log_id, first = self.archive.position(OWN)
                log = OwnLog(log_id or f"own-{self.archive.archive_id}", first or 0, send)
                if alone:
                    tasks.start_soon(state_budgets, log)
                    tasks.start_soon(self._own_use.publish, log)
                else:
                    await state_budgets(log)
                self._replayed.set()

    async def _replay(self, tasks: TaskGroup) -> None:
        """Interpret again what came since the checkpoint; the next page is read in the meantime."""
        send, pages = anyio.create_memory_object_stream[Decoded](1)
        stored = iter(self.archive.replay(self._since))

        async def read() -> None:
            with send:
                while (page := await run_sync(next, stored, None)) is not None:
                    await send.send(page)

        tasks.start_soon(read)
        with pages:
            async for page in pages:
                self._counters["frames replayed at the start"] += len(page)
                async for given in self._interpret(page):
                    await self._deliver(given)
                    await self._commits.make_room()
        await self._deliver(Given(await self.interpretation.end_replay(), {}))
        await self._commits.end_replay()

    def join(self, collector: Collector) -> anyio.CancelScope:
        """Follow and command a collector until the scope is cancelled. `follow` has to run."""
        scope = anyio.CancelScope()
        self._tasks.start_soon(self._attend, collector, scope)
        return scope

    async def _attend(self, collector: Collector, scope: anyio.CancelScope) -> None:
        self._collectors.append(collector)
        with scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(collector.link.run, self._ask)
                tasks.start_soon(complain, collector.link)
                await self._replayed.wait()
                await self._follow(collector, self._send)
        self._collectors.remove(collector)
        for host in self._hosts.values():
            host.collector = None if host.collector is collector else host.collector

    async def _follow(self, collector: Collector, send: MemoryObjectSendStream[list[Frame] | Break]) -> None:
        name = await collector.link.host()
        if (host := self._hosts[name]).collector is not None:
            _log.warning(
                "%s: could not be followed: it speaks for %s, as %s does. Give one of them another name with"
                " --host, then start the analyzer again.",
                collector.name, name, host.collector.name,
            )  # fmt: skip
            return
        host.collector = collector
        collector.link.leases = lambda: self.interpretation.leases.get(name, frozenset())
        position, pause_s = self.archive.position(name), partial(self.interpretation.pause_s, name)
        async for part in collector.follow(*position, pause_s=pause_s):
            collector.link.saw_frames(used=name in self.interpretation.used)
            await send.send(part)

    # ---- frames

    async def _store(
        self,
        parts: MemoryObjectReceiveStream[list[Frame] | Break],
        stored: MemoryObjectSendStream[Decoded],
    ) -> None:
        """Archive what comes in, in one commit what came in during the last: the busier, the larger."""
        async for part in parts:
            waiting, size = [part], size_of(part)
            while parts.statistics().current_buffer_used and size < COMMIT_BYTES:
                waiting.append(parts.receive_nowait())
                size += size_of(waiting[-1])
            frames: list[Frame] = []
            for item in waiting:
                if isinstance(item, Break):
                    await self._put_frames(frames, stored)
                    self._commits.add_received(item)
                    frames = []
                else:
                    frames += item
            await self._put_frames(frames, stored)

    async def _put_frames(self, received: Sequence[Frame], stored: MemoryObjectSendStream[Decoded]) -> None:
        received = self._fresh(received)
        if not received:
            return
        self._received_ns.append(monotonic_ns())
        pairs = ((frame, body_of(frame)) for frame in received)
        few = size_of(received) <= SMALL_BYTES
        frames = list(pairs) if few else await run_sync(tuple, pairs, limiter=self._writer)
        self._commits.add_received(frames)
        known = [(frame, body) for frame, body in frames if body is not None]
        if malformed := len(frames) - len(known):
            self._counters["malformed frames"] += malformed
        await stored.send(known)
        await self._commits.make_room()

    def _fresh(self, received: Sequence[Frame]) -> Sequence[Frame]:
        """Return the frames that did not come before: of a host with a new name, all of its log do."""
        if self._next is None:
            return received
        fresh = []
        for frame in received:
            if frame.offset >= self._next.get(frame.log_id, 0):
                self._next[frame.log_id] = frame.offset + 1
                fresh.append(frame)
        if again := len(received) - len(fresh):
            self._counters["frames that came again"] += again
        return fresh

    async def _digest(self, batches: MemoryObjectReceiveStream[Decoded]) -> None:
        async for frames in batches:
            async for given in self._interpret(frames):
                await self._given.send(given)
            self._received_ns.popleft()

    async def _interpret(self, frames: Decoded) -> AsyncIterator[Given]:
        """Interpret frames. Yield what they give, a slice at a time: nothing waits for what is slow."""
        at = 0
        for frame, body in frames:
            if isinstance(body, Notes) and (collector := self._hosts[frame.host].collector) is not None:
                collector.link.take_notes(body.notes)
        while at < len(frames):
            count, result = await self.interpretation.interpret(
                frames[at:], self.behind_ns(), partial(links_seen, self._hosts)
            )
            part, at = frames[at : at + count], at + count
            result |= self._live.follow(part, result.rows, monotonic_ns(), live=not self._commits.replaying)
            result = complete(result, self._live, self._key)
            for frame, _ in part:
                self._hosts[frame.host].last = frame
            yield Given(result, {frame.log_id: frame.offset + 1 for frame, _ in part})

    def last_frame(self, host: str) -> Frame | None:
        return self._hosts[host].last if host in self._hosts else None

    def behind_ns(self) -> int:
        return monotonic_ns() - self._received_ns[0] if self._received_ns else 0

    async def _deliver_all(self, results: MemoryObjectReceiveStream[Given]) -> None:
        async for given in results:
            await self._deliver(given)

    async def _deliver(self, given: Given) -> None:
        """Have rows stored; hand instructions to the links as soon as they may leave."""
        rows, instructions = given.result
        self._own_use.take(rows)
        self._counters["gaps"] += sum(type(row) is GapRow for row in rows)
        await self._commits.add_derived(rows, given.interpreted, instructions)
        for instruction in instructions:
            if (collector := self._hosts[instruction.host].collector) is not None:
                collector.link.carry_out(instruction)
        if given.stored is not None:
            await self._commits.commit()
            given.stored.set()

    def _ask(self, host: str, question: Ask | AskTry) -> None:
        """Take a script's question; the answer goes out by itself, now or when it is known."""
        try:
            self._questions.send_nowait((host, question))
        except anyio.WouldBlock:
            self._counters["questions dropped"] += 1

    async def _answer(self, questions: MemoryObjectReceiveStream[tuple[str, Ask | AskTry]]) -> None:
        async for host, question in questions:
            result = await self.interpretation.handle(ProgressAsked(host, question), host)
            await self._given.send(Given(result, {}))

    async def forget(self, job: str) -> int | None:
        """Let a job begin again. Return the number of tries that count no more; None: it is not known."""
        count = await self.interpretation.run(lambda interpreter: interpreter.site.jobs.known.tries(job))
        if count is None:
            return None
        stored = anyio.Event()
        result = await self.interpretation.forget(job)
        await self._given.send(Given(result, {}, stored))
        await stored.wait()
        return count

    # ---- status

    def status(self, gate: AccessGate) -> Status:
        """Return the status. It waits for nothing: of GPUs it shows what was known a short time ago."""
        rows = [
            ("analyzer", "archive", str(self._path)),
            ("analyzer", "selector", self._settings.select),
            ("analyzer", "policy", self._settings.policy),
            ("analyzer", "own processor time", own_cost.words()),
            ("analyzer", "own energy", self._own_use.energy),
            ("analyzer", "behind by", f"{self.behind_ns() / 1e9:.1f} s"),
            *(row for collector in self._collectors for row in self._collector_rows(collector)),
            *self.interpretation.insight.status_rows,
            *self.queries.status_rows(),
            *(("counters", name, str(count)) for name, count in sorted(self._counters.items())),
            *gate.status(),
        ]
        return Status(tuple(rows))

    def _collector_rows(self, collector: Collector) -> StatusRows:
        hosts = {
            name: (host.last, self.interpretation.waiting.get(name, 0))
            for name, host in self._hosts.items()
            if host.collector is collector and host.last is not None
        }
        return collector.status_rows(hosts)

    @property
    def live(self) -> LiveSite:
        """The state of GPUs and runs."""
        return self._live

    def links(self) -> dict[str, Link]:
        """Return the links to the hosts that are followed."""
        return {name: known.collector.link for name, known in self._hosts.items() if known.collector}

    def _now(self, host: str | None) -> Snapshot:
        now_ns, behind_ns = anchor().wall_ns, self.behind_ns()
        head = site_head(self.links(), self.archive.archive_id, now_ns, behind_ns, self._counters)
        return self._live.snapshot(head, self.interpretation.searches, monotonic_ns(), host)
