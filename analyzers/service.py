"""The shell of the analyzer: waits, archives, and lets the pure modules decide.

    follower -> archive (frames) -> interpreter -> archive (rows) -> link (instructions)
                                        ^                              |
    query socket -> SQL threads         +---- questions of scripts ----+

What was received is archived before it is interpreted. After a start, the stream since the oldest open
run is interpreted again from the archive, so that the machines know where they stood; no host is
commanded until all is interpreted that its log held when the collector was last heard.

Any number of collectors is followed, one of each host. One task interprets them all, in the order in
which their frames come in.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from anyio.to_thread import run_sync

from analyzers.archive import query
from analyzers.archive.duckdb_file import Archive
from analyzers.batch_size import registry
from analyzers.batch_size.history import MAX_TRIES, Known
from analyzers.dispatch.collector_link import Link
from analyzers.interpreter import OWN, Interpreter
from analyzers.measurement.timeline import AGREES
from analyzers.power_budget.allocation import in_force
from analyzers.power_limit import profiles, selectors
from analyzers.power_limit.profiles import Memory
from analyzers.power_limit.run_settings import PLANNED, RunSettings
from analyzers.power_limit.selectors import Selector
from analyzers.results.rows import (
    ApplyClock,
    Command,
    GapRow,
    GiveAdvice,
    GiveAnswer,
    Instruction,
    RestoreClock,
    Row,
)
from analyzers.state_files import budgets, calibrations, forgotten_profiles
from zeus_stream.clock import anchor, monotonic_ns
from zeus_stream.errors import MalformedError, RefusedError, SettingsError, StorageError
from zeus_stream.paths import Places, claim, places, prepare
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import Ask, AskTry
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import (
    Applied,
    Budget,
    BudgetsSet,
    ClockApplied,
    ClockLeaseEnded,
    CollectorStarted,
    LeaseEnded,
    Notes,
    Refused,
)
from zeus_stream.protocol.queries import AskStatus, ForgetJob, Forgotten, No, Query, Reply, Status
from zeus_stream.protocol.readings import Readings
from zeus_stream.settings import Settings
from zeus_stream.transport import limits, sockets
from zeus_stream.transport.access import Gate
from zeus_stream.transport.endpoints import Distant, source
from zeus_stream.transport.follower import Break, follow

T = TypeVar("T")
_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between two looks at whether a collector lets us in."""
BACKLOG = 16
"""Batches between follower and archive; then the follower waits, and holes are fetched later."""
MAX_UNREAD_BYTES = 512 * 1024 * 1024
"""Answers on their way to who asked; one more is withheld."""
FORGOTTEN_SHOWN = 20
"""Jobs in the status whose profiles were forgotten last."""
MAX_QUERIES = 32
"""Queries under way or waiting; one more is refused."""


async def analyze(settings: Settings, *, environ: Mapping[str, str], started: Callable[[str], None]) -> None:
    """Run the analyzer until cancelled.

    Raises:
        SettingsError, StorageError, RefusedError: it cannot start; the sentence says what to do.
    """
    where = places(environ)
    selector = selectors.parse(settings.select)
    policy = settings.policy, registry.parse(settings.policy)
    prepare(where, settings.group)
    sources = {text: source(text, where.keys) for text in settings.follow} or {str(where.run): where}
    path = settings.archive or where.archive
    with claim(where.run / "analyzer.lock", "analyzer"):
        archive = Archive.open(path, settings)
        context = sockets.context()
        try:
            interpreter = Interpreter(
                RunSettings.of(settings, selector),
                remembered(archive),
                policy=policy,
                jobs=Known(*archive.known_jobs(MAX_TRIES)),
                began_under=_began_under(archive, settings, selector),
            )
            collectors = [
                Collector(context, name, where, archive, settings) for name, where in sources.items()
            ]
            analyzer = Analyzer(archive, path, settings, interpreter, collectors)
            channel = sockets.listen(context, where.query, group=settings.group)
            gate = Gate(context, settings.listen, where.keys, {"query": channel})
            files: dict[Path, Callable[[], None]] = {
                where.gains: lambda: interpreter.calibrate(calibrations.load(where.gains)),
                where.forgotten: lambda: interpreter.forget_profiles(
                    forgotten_profiles.load(where.forgotten)
                ),
            }
            changed = {file: _changed(file) for file in files}
            for take in files.values():
                take()
            started(f"archives into {path}, selects by {settings.select}, answers SQL at {where.query}")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gate.run)
                tasks.start_soon(limits.give_back)
                for file, take in files.items():
                    tasks.start_soon(watch, file, changed[file], take)
                tasks.start_soon(analyzer.follow, where.budgets)
                tasks.start_soon(analyzer.answer_queries, channel, gate)
        finally:
            archive.close()
            context.destroy(linger=0)


class Collector:
    """A collector that is followed and commanded."""

    def __init__(
        self,
        context: sockets.Context,
        name: str,
        source: Places | Distant,
        archive: Archive,
        settings: Settings,
    ) -> None:
        self.name = name
        """As the settings have it."""
        self.bound = source.ticket.host if isinstance(source, Distant) else None
        """The host it may speak for; None: any."""
        self.link = Link(context, source, archive.archive_id, settings.lease_ms, archive.starts, self.bound)
        self.counters: Counter[str] = Counter()
        self.follow = partial(follow, context, source, host=self.bound, counters=self.counters)


class Host:
    """What is known of one host's stream."""

    def __init__(self) -> None:
        self.collector: Collector | None = None
        """None: it is not followed (yet)."""
        self.last: Frame | None = None
        self.caught_up = False
        self.held: set[str] = set()
        """GPUs on which a limit of ours is in force."""
        self.locked: set[str] = set()
        """GPUs whose clock is locked by us."""
        self.deferred: dict[tuple[str, bool], Command] = {}
        """By GPU and whether it is about its clock, the last that was not carried out: the stream was old."""


class Analyzer:
    """What the tasks of one analyzer share. One task interprets; DuckDB works in threads."""

    def __init__(
        self,
        archive: Archive,
        path: Path,
        settings: Settings,
        interpreter: Interpreter,
        collectors: Sequence[Collector],
    ) -> None:
        self._archive = archive
        self._path = path
        self._settings = settings
        self._interpreter = interpreter
        self._collectors = collectors
        self._hosts: defaultdict[str, Host] = defaultdict(Host)
        self._queries = query.Queries(archive, settings)
        self._writer = anyio.CapacityLimiter(1)
        self._readers = anyio.CapacityLimiter(query.THREADS)
        self._under_way = 0
        self._interpreted: dict[str, int] = {}
        """By log, the offset after the last frame that was heard, until it is stored."""
        self._counters: Counter[str] = Counter()

    async def follow(self, budgets: Path) -> None:
        """Archive and interpret all collectors' streams, from where this archive ends; and our own words."""
        send, receive = anyio.create_memory_object_stream[list[Frame] | Break](BACKLOG)
        async with anyio.create_task_group() as tasks:
            for collector in self._collectors:
                tasks.start_soon(collector.link.run, self._ask)
                tasks.start_soon(self._complain, collector)
            for page in self._archive.to_replay():
                self._obey(page, await self._interpret(page, replaying=True))
            tasks.start_soon(self._digest, receive)
            tasks.start_soon(self._say_budgets, budgets, send)
            for collector in self._collectors:
                tasks.start_soon(self._follow, collector, send)

    async def _follow(self, collector: Collector, send: MemoryObjectSendStream[list[Frame] | Break]) -> None:
        name = await collector.link.host()
        host = self._hosts[name]
        if host.collector is not None:
            _log.warning(
                "%s: could not be followed: it speaks for %s, as %s does. Give one of them another name with"
                " --host, then start the analyzer again.",
                collector.name, name, host.collector.name,
            )  # fmt: skip
            return
        host.collector = collector
        collector.link.held, collector.link.locked = host.held, host.locked
        log_id, next_offset = self._archive.position(name)
        async for part in collector.follow(log_id, next_offset):
            await send.send(part)

    async def _say_budgets(self, path: Path, send: MemoryObjectSendStream[list[Frame] | Break]) -> None:
        """Have it heard which budgets hold, as the file and the time of day have it."""
        log_id, offset = self._archive.own_log()
        groups = dict(self._settings.budget_groups)
        known, listed = _changed(path), budgets.load(path, groups)
        said: tuple[Budget, ...] | None = None if offset else ()
        while True:
            if (now := _changed(path)) != known:
                known = now
                try:
                    listed = budgets.load(path, groups)
                except StorageError as wrong:
                    _log.warning("%s", wrong)
            if (holding := in_force(listed, anchor().wall_ns)) != said:
                said, t_ns = holding, monotonic_ns()
                body = codec.encode(Notes((BudgetsSet(t_ns, holding),)))
                await send.send([Frame(log_id, offset, OWN, t_ns, "budgets", body)])
                offset += 1
            await anyio.sleep(LOOK_S)

    async def _complain(self, collector: Collector) -> None:
        """Say why a collector does not let us in, each time it is for another reason."""
        told: str | None = None
        while True:
            await anyio.sleep(LOOK_S)
            if (trouble := collector.link.trouble) not in (None, told):
                _log.warning("%s", trouble)
            told = trouble

    async def _digest(self, parts: MemoryObjectReceiveStream[list[Frame] | Break]) -> None:
        async for part in parts:
            waiting = [part]
            while parts.statistics().current_buffer_used:
                waiting.append(parts.receive_nowait())
            # What came in during the last commits is stored in one: the busier, the larger.
            frames: list[Frame] = []
            for item in waiting:
                if isinstance(item, Break):
                    await self._take_in(frames)
                    await self._write(partial(self._archive.put_break, item))
                    frames = []
                else:
                    frames += item
            await self._take_in(frames)

    async def _take_in(self, received: Sequence[Frame]) -> None:
        if not received:
            return
        frames = [(frame, self._decoded(frame)) for frame in received]
        await self._write(partial(self._archive.put_frames, frames))
        understood = [(frame, body) for frame, body in frames if body is not None]
        self._obey(understood, await self._interpret(understood, replaying=False))

    def _decoded(self, frame: Frame) -> Body | None:
        try:
            return codec.decode(frame.body, Readings, Events, Notes)
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

    def _obey(self, frames: Sequence[tuple[Frame, Body]], instructions: Iterable[Instruction]) -> None:
        """Carry instructions out, or keep each GPU's last until its host's stream is no longer old."""
        for frame, body in frames:
            host = self._hosts[frame.host]
            host.last = frame
            if isinstance(body, Notes):
                _note_leases(host, body)
        for instruction in instructions:
            host = self._hosts[instruction.host]
            if not isinstance(instruction, GiveAnswer | GiveAdvice):
                clock = isinstance(instruction, ApplyClock | RestoreClock)
                host.deferred[instruction.gpu, clock] = instruction
            elif host.collector is not None:
                host.collector.link.carry_out(instruction)
        for host in self._hosts.values():
            if host.collector is None or host.last is None:
                continue
            link = host.collector.link
            if not host.caught_up:
                host.caught_up = link.behind(host.last) == 0
            if host.caught_up and link.connected:
                for deferred in host.deferred.values():
                    link.carry_out(deferred)
                host.deferred.clear()

    def _ask(self, host: str, question: Ask | AskTry) -> None:
        """Take a script's question; the answer goes out by itself, now or when it is known."""
        self._obey([], self._interpreter.ask(host, question))

    async def _write(self, job: Callable[[], T]) -> T:
        return await run_sync(job, limiter=self._writer)

    # ---- SQL and status ------------------------------------------------------------------------------

    async def answer_queries(self, channel: sockets.Channel, gate: Gate) -> None:
        """Answer the query socket until cancelled."""
        async with anyio.create_task_group() as tasks:
            try:
                while True:
                    for message in await channel.receive():
                        self._take(message, channel, gate, tasks)
            finally:
                self._queries.stop()

    def _take(
        self, message: sockets.Received, channel: sockets.Channel, gate: Gate, tasks: TaskGroup
    ) -> None:
        def reply(answer: Reply, *parts: bytes) -> None:
            if parts and channel.unread_bytes + sum(map(len, parts)) > MAX_UNREAD_BYTES:
                self._counters["answers withheld"] += 1
                answer, parts = _WITHHELD, ()
            if not (channel.send_counted if parts else channel.send)(
                message.sender, correlation, codec.encode(answer), *parts
            ):
                self._counters["replies to nobody"] += 1

        try:
            correlation, payload = message.parts
        except ValueError:
            self._counters["malformed requests"] += 1
            return
        try:
            request = codec.decode(payload, Query, AskStatus, ForgetJob)
        except MalformedError as wrong:
            self._counters["malformed requests"] += 1
            reply(_no(wrong))
            return
        match request:
            case AskStatus():
                reply(self._status(gate))
            case ForgetJob(job):
                objection = gate.objection(message, "command")
                if objection is not None:
                    reply(No(objection))
                else:
                    tasks.start_soon(self._forget, job, reply)
            case Query() if self._under_way >= MAX_QUERIES:
                reply(No(f"query: could not be answered: {MAX_QUERIES} are under way. Ask again later."))
            case Query():
                self._under_way += 1
                tasks.start_soon(self._query, request, reply)

    async def _forget(self, job: str, reply: Callable[..., None]) -> None:
        forgotten = self._interpreter.forget(job)
        if forgotten is None:
            why = f"job {job}: could not be forgotten: none of this name is known."
            reply(No(f"{why} Those that are: zeus-stream jobs."))
            return
        count, outputs = forgotten
        rows = [output for output in outputs if isinstance(output, Row)]
        await self._write(partial(self._archive.put_rows, rows, {}, replaying=False))
        self._obey([], [output for output in outputs if isinstance(output, Instruction)])
        reply(Forgotten(count))

    async def _query(self, asked: Query, reply: Callable[..., None]) -> None:
        try:
            done, parts = await run_sync(self._queries.answer, asked, limiter=self._readers)
        except RefusedError as wrong:
            reply(_no(wrong))
        except Exception as wrong:  # noqa: BLE001  (no text of a stranger ends the analyzer: said to both, counted)
            self._counters["queries failed"] += 1
            _log.warning("query: failed: %r", wrong)
            reply(_no(wrong))
        else:
            reply(done, *parts)
        finally:
            self._under_way -= 1

    def _status(self, gate: Gate) -> Status:
        rows = [
            ("analyzer", "archive", str(self._path)),
            ("analyzer", "selector", self._settings.select),
            ("analyzer", "policy", self._settings.policy),
            *(row for collector in self._collectors for row in self._collector_rows(collector)),
            *self._gpu_rows(),
            *self._forgotten_rows(),
            ("queries", "under way", str(self._under_way)),
            *(("counters", name, str(count)) for name, count in sorted(self._counters.items())),
            *gate.status(),
        ]
        return Status(tuple(rows))

    def _gpu_rows(self) -> list[tuple[str, str, str]]:
        rows = []
        for gpu, ratio in self._interpreter.cross_checks().items():
            says = "agrees" if AGREES[0] <= ratio <= AGREES[1] else "DOUBTFUL: its joules cannot be believed"
            rows.append((f"gpu {gpu}"[:2000], "counter over power", f"{ratio:.2f}, {says}"))
        for gpu, gain in self._interpreter.gains.items():
            rows.append((f"gpu {gpu}"[:2000], "calibration", f"{gain.words}, from {gain.source}"))
        return rows

    def _forgotten_rows(self) -> list[tuple[str, str, str]]:
        forgotten_wall_ns = self._interpreter.forgotten_wall_ns.items()
        return [
            (
                "profiles",
                "forgotten",
                f"{job}, up to {datetime.fromtimestamp(wall_ns // 10**9, UTC):%F %T} UTC",
            )
            for job, wall_ns in sorted(forgotten_wall_ns, key=lambda item: -item[1])[:FORGOTTEN_SHOWN]
        ]

    def _collector_rows(self, collector: Collector) -> list[tuple[str, str, str]]:
        section, link = f"collector {collector.name}"[:2000], collector.link
        rows = [
            (section, "connected", "yes" if link.connected else "no"),
            (section, "trouble", link.trouble or "none"),
        ]
        for name, host in self._hosts.items():
            if host.collector is collector and host.last is not None:
                behind = link.behind(host.last)
                rows += [
                    (section, "host", name),
                    (section, "last frame", f"{host.last.offset} of log {host.last.log_id}"),
                    (section, "behind", "not known" if behind is None else f"{behind} frames"),
                ]
        rows += [
            (section, "commands dropped", str(link.dropped)),
            (section, "messages not understood", str(link.malformed)),
            *((section, name, str(count)) for name, count in sorted(collector.counters.items())),
        ]
        return rows


async def watch(path: Path, known: int, take: Callable[[], None]) -> None:
    """Take what is in a file whenever it changes. ``known``: when the file changed that was taken."""
    while True:
        await anyio.sleep(LOOK_S)
        if (now := _changed(path)) == known:
            continue
        known = now
        try:
            take()
        except StorageError as wrong:
            _log.warning("%s", wrong)


def remembered(archive: Archive) -> Memory:
    """Return what an analyzer that starts has to know beyond what it interprets again."""
    return Memory(profiles.of_rows(archive.profiles()), archive.recalled(archive.heard_again()))


def _began_under(archive: Archive, settings: Settings, selector: Selector | None) -> dict[str, RunSettings]:
    """Return by session the plans of runs that have begun; say which open ones keep to other settings."""
    begun = archive.begun(archive.heard_again())
    try:
        then = archive.settings_then({each.start for each in begun})
        plans = {
            start: RunSettings.of(
                was, selector if was.select == settings.select else _selector(was.select), start
            )
            for start, was in then.items()
        }
    except SettingsError as wrong:  # another version's
        _log.warning("%s Runs that are open go on under the settings of now.", wrong)
        return {}
    for run, start in {each.run: each.start for each in begun if not each.over}.items():
        if start in then and (others := _others(then[start], settings)):
            _log.warning("run %s keeps to what it began with, %s. Others follow the settings.", run, others)
    return {each.session: plans[each.start] for each in begun if each.start in plans}


def _selector(text: str) -> Selector | None:
    """Return the selector of an earlier start; code that only the archive names is not run."""
    return selectors.unnamed(text) if selectors.is_foreign(text) else selectors.parse(text)


def _others(then: Settings, now: Settings) -> str:
    """Return the settings of a plan that are not as they were, in words."""
    names = [name for name in PLANNED if getattr(then, name) != getattr(now, name)]
    return ", ".join(f"{name} = {getattr(then, name)}" for name in names)


def _changed(path: Path) -> int:
    """Return when a file was last changed, 0 if it is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _note_leases(host: Host, body: Notes) -> None:
    for note in body.notes:
        match note:
            case Applied(_, command, gpu):
                host.held.add(gpu)
                _settled(host, command)
            case ClockApplied(_, command, gpu, clock_mhz):
                (host.locked.discard if clock_mhz is None else host.locked.add)(gpu)
                _settled(host, command)
            case Refused(_, command):
                _settled(host, command)
            case LeaseEnded(_, gpu):
                host.held.discard(gpu)
            case ClockLeaseEnded(_, gpu):
                host.locked.discard(gpu)
            case CollectorStarted(_, incarnation) if host.collector is not None:
                host.collector.link.heard_start(incarnation)
            case _:
                pass  # nothing about leases or commands


def _settled(host: Host, command: str) -> None:
    for knob, deferred in list(host.deferred.items()):
        if deferred.command == command:
            del host.deferred[knob]


_WITHHELD = No(
    f"query: could not be answered: answers that nobody reads take {MAX_UNREAD_BYTES >> 20} MiB already."
    " Read or end them, then ask again."
)


def _no(wrong: Exception) -> No:
    return No(str(wrong)[:2000])
