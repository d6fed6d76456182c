"""The whole pipeline in one thread under one seed, with everything that goes wrong.

    Trainer -- stream --> Collector (leases, log on disk) -- feed --> Analyzer (archive, interpreter)
    (outbox)  <- acks --     ^                            <-- control (fetch, commands, replies)
                             '- Device (arithmetic), restore record, Guard

What is pure is the real thing: outbox, sessions, leases, log, sequencer, interpreter, the GPU. What waits
(sockets, threads) is played here: a stream is ordered and is cut, the feed loses, repeats and delays. So is
DuckDB, unless it is asked for (``stored``), which takes ten times as long. Processes die between two of their
actions, disks fill, log tails are damaged, wall clocks jump, the host is suspended, somebody else sets
limits. The truth is known, and compared after every step.

    python -m tests.simulation.pipeline --seed 7 [--stored]
"""

import argparse
import heapq
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from analyzers import replay
from analyzers.archive import duckdb_file
from analyzers.earlier_runs import remembered
from analyzers.interpreter import Interpreter
from analyzers.power_limit import selectors
from analyzers.power_limit.profiles import Memory
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.instructions import ApplyControl, RestoreControl
from analyzers.results.rows import DecisionRow, GapRow, Row, WindowRow
from collectors.controls import lease, lease_messages, lease_state
from collectors.controls.restore_record import put_back
from collectors.devices.simulated import Schedule, SimulatedDevice
from collectors.devices.simulated_spec import parse
from collectors.ingest.sessions import Session, from_json, receive
from collectors.log.sqlite import Log
from collectors.log.store import SessionMemory
from collectors.sampling import change_detector
from tests.simulation.world import Output, outputs_of
from zeus_stream.errors import DeviceError, MalformedError, RetryError, StorageError
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import (
    Fetch,
    Fetched,
    Hello,
    ReleaseControl,
    RenewLeases,
    SetControl,
    Welcome,
)
from zeus_stream.protocol.events import Ack, Batch, Event, Metric, RunEnded, RunStarted, StepBoundary
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import (
    ClockAnchored,
    CollectorStarted,
    ControlApplied,
    ControlLeaseEnded,
    ControlRefused,
    DeviceFound,
    DeviceGone,
    Lost,
    Note,
    Notes,
    RunAdmitted,
    SessionEnded,
)
from zeus_stream.protocol.readings import Readings
from zeus_stream.settings import Settings
from zeus_stream.simulated_gpu.shared_memory import LimitChange, Load
from zeus_stream.training.outbox import Outbox
from zeus_stream.transport.follower import Break, Part, Sequencer

MS = 1_000_000
S = 1_000_000_000
START_NS = 1_000 * S
TROUBLE_NS = 8 * S
"""Things go wrong for so long; then all heals, and what should be there must be."""
HEAL_NS = 9 * S
HOST = "host"
BOOT = "boot"
FOUND_MW = 220_000
RESTORED_NS = 2 * S
_DECISION = ", ".join(column.name for column in fields(DecisionRow))
PLAN = RunSettings(
    selector=selectors.parse("energy"),
    stride_mw=60_000,
    warmup_steps=1,
    profile_steps=4,
    settle_ns=0,
    refreshes=2,
    exhaustive=True,
)


@dataclass
class Report:
    """What a simulation counted."""

    kills: Counter[str] = field(default_factory=Counter)
    emitted: int = 0
    archived: int = 0
    twice: int = 0
    """Under two sessions: their log was damaged between writing and acknowledging."""
    lost: int = 0
    """Acknowledged, not archived: their log was damaged, as a row in gaps says."""
    gaps: int = 0
    found: int = 0
    """Times a limit found was written down, before it was changed."""
    sets: int = 0
    """Of a limit, below the one found."""
    restored: int = 0
    """Times the limit was back at the one found."""
    slowest_restore_s: float = 0.0
    """Back at the one found, after a kill."""
    windows: int = 0
    suspends: int = 0
    wall_steps: int = 0


class Process:
    """Something that can be killed: what it had planned does not happen then."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.alive = True

    def after(self, wait_ns: float, action: Callable[[], None]) -> None:
        self.world.at(self.world.now_ns + round(wait_ns), lambda: action() if self.alive else None)


class Stream:
    """A connection: ordered, with delays. Once cut, what was under way is lost, either way."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.open = True
        self._arrives_ns = [0, 0]

    def send(self, way: int, deliver: Callable[[Any], None], message: Any) -> None:
        """``way`` is 0 or 1: there or back."""
        delay_ns = self._world.rng.expovariate(1 / (2 * MS))
        at_ns = max(self._arrives_ns[way] + 1, self._world.now_ns + round(delay_ns))
        self._arrives_ns[way] = at_ns
        self._world.at(at_ns, lambda: deliver(message) if self.open else None)


# ---- the training ---------------------------------------------------------------------------------------


class Trainer(Process):
    """Steps that feel the power limit, and an outbox whose courier is played here."""

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world)
        self.pid = number
        self.run = f"run-{number}"
        wall_ns = world.wall_ns()
        self.started = RunStarted(
            t_ns=world.now_ns,
            job="job",
            run=self.run,
            rank=0,
            world_size=1,
            gpus=(world.gpu,),
            pid=number,
            boot_id=BOOT,
            wall_ns=wall_ns,
            wall_error_ns=1,
        )
        self.emitted: list[Event] = [self.started]
        self.sessions: list[str] = []
        self.outbox = Outbox(self.started, self._new_session)
        self._stream: Stream | None = None
        self._sent: tuple[str, int] | None = None
        self._received_ns = world.now_ns
        self._step = 0
        self._over = False
        self.after(0, self._tick)
        self.after(1, lambda: self._begin_step(None))

    def _new_session(self) -> str:
        self.sessions.append(f"{self.run}-{len(self.sessions)}")
        return self.sessions[-1]

    def _put(self, kind: Callable[..., Event], *values: Any) -> None:
        self.emitted.append(kind(*values))
        self.outbox.put((kind, *values))

    def _begin_step(self, ended_ns: int | None) -> None:
        if self._over:
            return
        world, now_ns = self.world, self.world.now_ns
        self._put(StepBoundary, self._step, ended_ns, now_ns)
        self._put(Metric, now_ns, "step", float(self._step))
        self._step += 1
        slowdown = world.model.workloads["imagenet"].slowdown(world.requested_mw())
        work_ns = round(50 * MS * slowdown)
        world.loads.pending.append(Load(now_ns, now_ns + work_ns, "imagenet"))
        self.after(work_ns, lambda: self._begin_step(world.now_ns))

    def _tick(self) -> None:
        world = self.world
        if self._stream is None or not self._stream.open:
            self._stream, self._sent = Stream(world), None
            world.streams.append(self._stream)
        batch = self.outbox.batch(world.now_ns)
        if batch is None:
            self._received_ns = world.now_ns
        elif self._sent != (batch.session, batch.sequence) and world.collector.alive:
            self._sent = batch.session, batch.sequence
            stream = self._stream
            stream.send(0, lambda message: world.collector.take_in(self, stream, message), batch)
        if world.now_ns - self._received_ns > S:
            self._stream.open = False  # nothing was acknowledged for so long
            self._received_ns = world.now_ns
        self.after(20 * MS, self._tick)

    def acknowledge(self, ack: Ack) -> None:
        if self.alive and self.outbox.acknowledge(ack):
            self._received_ns = self.world.now_ns

    def kill(self) -> None:
        self.alive = False
        if self._stream is not None:
            self._stream.open = False
        # What it had declared as work ends with it.
        self.world.loads.pending.append(Load(self.world.now_ns, self.world.now_ns + 1, "imagenet"))

    def finish(self) -> None:
        """End in order; the courier goes on until it is killed."""
        self._put(RunEnded, self.world.now_ns)
        self._over = True


# ---- the collector --------------------------------------------------------------------------------------


class FillingLog(Log):
    """The real log, on a disk that fills up."""

    full = False

    def append(
        self,
        entries: Sequence[tuple[str, bytes]],
        t_ns: int,
        session: SessionMemory | None = None,
        *,
        written_by: int | None = None,
    ) -> list[Frame]:
        if self.full:
            raise StorageError("log: could not be written: no room. Make room.")
        return super().append(entries, t_ns, session, written_by=written_by)

    def die(self) -> None:
        """Be files whose process was killed: closing would tidy them up."""
        files = [self._path.with_name(f"{self._path.name}{suffix}") for suffix in ("", "-wal")]
        left = {file: file.read_bytes() for file in files if file.exists()}
        self._db.close()
        os.close(self._mark)
        for file, content in left.items():
            file.write_bytes(content)


class Collector(Process):
    """Takes in events, reads the device, obeys commands; remembers nothing but its log and the record."""

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world)
        self.incarnation = f"incarnation-{number}"
        self.log = FillingLog(world.path, HOST, BOOT)
        if self.log.started_over is not None:
            world.logs_lost += 1
        self._sessions = {memory.session: from_json(memory.about) for memory in self.log.sessions()}
        self._rules = lease_state.Rules(
            gpu=world.gpu, incarnation=self.incarnation, least_mw=world.model.min_limit_mw
        )
        self.guarded: lease_state.Guarded | None = None
        self._notes: list[Note] = []
        self._lost = 0
        self._rows = bytearray()
        self._seen = change_detector.State()
        self._requested_mw: int | None = None
        """As last read, or set and read back."""
        self._jobs: list[lease_messages.Instruction] = []
        self.control = Stream(world)
        self._say(
            CollectorStarted(
                t_ns=world.now_ns,
                incarnation=self.incarnation,
                version="0",
                boot_id=BOOT,
                wall_ns=world.wall_ns(),
                wall_error_ns=1,
                observe=False,
            )
        )
        if self.log.started_over is not None:
            self._say(Lost(world.now_ns, "log", 1, f"started over: {self.log.started_over}"))
        for session in self._sessions.values():
            if not session.gone:
                self._see_out(session.session)
        # A process takes time to start: no two collectors read at one instant, not even as a host wakes.
        self.after(MS, self._open)
        self.after(20 * MS, self._beat)

    # what goes into the log

    def _append(self, topic: str, body: Body, session: Session | None = None) -> bool:
        memory = None
        if session is not None:
            memory = SessionMemory(session.session, session.next_sequence, session.to_json())
        try:
            frames = self.log.append([(topic, codec.encode(body))], self.world.now_ns, memory)
        except StorageError:
            return False
        for frame in frames:
            self.world.feed(frame)
        return True

    def _say(self, *notes: Note) -> None:
        self._notes += notes
        lost = [Lost(self.world.now_ns, "readings", self._lost, "no room")] if self._lost else []
        if (self._notes or lost) and self._append("notes/host", Notes((*lost, *self._notes))):
            self._notes.clear()
            self._lost = 0

    def _beat(self) -> None:
        if self._rows:
            rows, self._rows = bytes(self._rows), bytearray()
            if not self._append("readings/host", Readings((self.world.gpu,), rows)):
                self._lost += len(rows) // 48
        if self.guarded is not None:
            self._tell(lease_messages.Beat(self._requested_mw))
        self._say()
        self.after(25 * MS, self._beat)

    def take_in(self, trainer: Trainer, stream: Stream, batch: Batch) -> None:
        if not self.alive:
            return
        known = self._sessions.get(batch.session)
        before = known or Session(session=batch.session, uid=0, pid=trainer.pid, boot_id=BOOT)
        try:
            session, new = receive(before, batch)
        except MalformedError as wrong:
            raise AssertionError("a publisher broke the protocol") from wrong
        if new:
            events = Events(batch.session, before.next_sequence, 0, trainer.pid, new)
            if not self._append("events/host/job", events, session):
                return
            self._sessions[session.session] = session
            if known is None:
                self._say(
                    RunAdmitted(
                        t_ns=self.world.now_ns,
                        session=session.session,
                        run=session.run,
                        gpus=(self.world.gpu,),
                        may_command=True,
                        reason="trusted",
                    )
                )
                self._see_out(session.session)
            if session.over and not before.over:
                self._tell(lease_messages.RunGone(session.run))
        stream.send(1, trainer.acknowledge, Ack(session.session, session.next_sequence))

    def _see_out(self, name: str) -> None:
        """Notice the end of the session's process, as a pidfd does."""
        session = self._sessions[name]
        if session.pid in self.world.living:
            self.after(10 * MS, lambda: self._see_out(name))
            return
        self._sessions[name] = replace(session, over=True, gone=True)
        self._say(SessionEnded(self.world.now_ns, name, "its process has ended"))
        self._tell(lease_messages.RunGone(session.run))

    # the device

    def _open(self) -> None:
        world = self.world
        try:
            told, requested_mw = world.device.describe(), world.device.read_control("power_limit") or 0
        except DeviceError:
            self.after(300 * MS, self._open)
            return
        if world.guarding:  # it holds the record's lock
            self.after(20 * MS, self._open)
            return
        self._seen, self._requested_mw = change_detector.State(), requested_mw
        todo: tuple[lease_messages.Instruction, ...] = ()
        if self.guarded is None:
            left, settled = world.record, world.settled
            self.guarded, todo = lease.begin(
                self._rules, requested_mw, left, same_boot=True, now_ns=world.now_ns, settled=settled
            )
        self._say(
            DeviceFound(
                t_ns=world.now_ns,
                gpu=told.gpu,
                index=0,
                name=told.name,
                driver=told.driver,
                counts_energy=told.counts_energy,
                min_limit_mw=told.min_limit_mw,
                max_limit_mw=told.max_limit_mw,
                default_limit_mw=told.default_limit_mw,
                found_limit_mw=self.guarded.limits.found,
                mig=False,
            )
        )
        self._carry_out(todo)
        self._poll()

    def _poll(self) -> None:
        world = self.world
        try:
            sample = world.device.sample()
        except RetryError:
            self.after(100 * MS, self._poll)
            return
        except DeviceError as wrong:
            self._say(DeviceGone(world.now_ns, world.gpu, str(wrong)))
            self.after(300 * MS, self._open)
            return
        now_ns, self._requested_mw = world.now_ns, sample.requested_mw
        self._seen, reading = change_detector.observe(self._seen, sample, now_ns - 50_000, now_ns, 500 * MS)
        if reading is not None:
            self._rows += change_detector.pack(reading, 0)
        self.after(world.rng.uniform(10, 30) * MS, self._poll)

    def _tell(self, event: lease_messages.Event) -> None:
        if self.guarded is not None:
            self.guarded, todo = lease.step(self._rules, self.guarded, event, self.world.now_ns)
            self._carry_out(todo)

    def _carry_out(self, todo: tuple[lease_messages.Instruction, ...]) -> None:
        for instruction in todo:
            match instruction:
                case lease_messages.Say(note):
                    self._say(note)
                    if isinstance(note, ControlApplied | ControlRefused):
                        self._reply(note)
                case lease_messages.Repeat(outcome):
                    self._reply(outcome)
                case _:
                    self._jobs.append(instruction)
                    if len(self._jobs) == 1:
                        self.after(self.world.rng.uniform(0.1, 5) * MS, self._work)

    def _work(self) -> None:
        """Be the device's thread: do the oldest job."""
        world, job = self.world, self._jobs[0]
        event: lease_messages.Event | None = None
        match job:
            case lease_messages.WriteRecord(limits) if self.log.full:
                event = lease_messages.RecordFailed(limits, "no room")
            case lease_messages.WriteRecord(limits):
                world.report.found += world.record is None
                world.record, world.settled = limits, None
                event = lease_messages.RecordWritten(limits)
            case lease_messages.CallSet(limit_mw, expected_mw):
                event = self._set(limit_mw, expected_mw)
            case lease_messages.CallRestore(limits):
                try:
                    done = put_back(world.device, limits)
                    self._requested_mw = done.requested
                    event = lease_messages.RestoreDone(done.requested, done.stranger)
                except DeviceError as wrong:
                    event = lease_messages.RestoreFailed(str(wrong))
            case lease_messages.ClearRecord():
                world.record = world.settled = None
            case _:
                pass
        del self._jobs[0]
        if self._jobs:
            self.after(self.world.rng.uniform(0.1, 5) * MS, self._work)
        if event is not None:
            self._tell(event)

    def _set(self, limit_mw: int, expected_mw: int) -> lease_messages.Event:
        device = self.world.device
        try:
            requested_mw = device.read_control("power_limit") or 0
            if not lease_messages.close(requested_mw, expected_mw):
                return lease_messages.SetFoundOther(requested_mw)
            device.set_control("power_limit", limit_mw)
            self.world.report.sets += 1
            done_mw = self._requested_mw = device.read_control("power_limit") or 0
            return lease_messages.SetDone(done_mw)
        except DeviceError as wrong:
            return lease_messages.SetFailed("device", str(wrong), None)

    # the control socket

    def hear(self, message: Hello | Fetch | SetControl | ReleaseControl | RenewLeases) -> None:
        if not self.alive:
            return
        match message:
            case Hello():
                extent = self.log.extent
                self._reply(
                    Welcome(
                        host=HOST,
                        incarnation=self.incarnation,
                        log_id=extent.log_id,
                        first_offset=extent.first_offset,
                        next_offset=extent.next_offset,
                        observe=False,
                    )
                )
            case Fetch(log_id, first, wanted):
                extent = self.log.extent
                frames = self.log.fetch(first, wanted, 100_000) if log_id == extent.log_id else []
                at = frames[0].offset if frames else first
                self._reply((Fetched(extent.log_id, at, extent.first_offset, extent.next_offset), frames))
            case SetControl() | ReleaseControl():
                runs = {session.run for session in self._sessions.values() if not session.over}
                gone = isinstance(message, SetControl) and message.run not in runs
                self._tell(lease_messages.Asked(message, "its run is not here" if gone else None))
            case RenewLeases():
                self._tell(message)

    def _reply(self, message: Any) -> None:
        self.control.send(1, self.world.analyzer_hears, message)

    def kill(self) -> None:
        self.alive = False
        self.control.open = False
        self.log.die()
        for stream in self.world.streams:
            stream.open = False


# ---- the analyzer ---------------------------------------------------------------------------------------


class Archive:
    """Keeps what the analyzer archives: frames in order, exactly once. Outlives the analyzer."""

    def __init__(self) -> None:
        self.logs: dict[str, int] = {}
        self.frames: list[tuple[Frame, Body]] = []
        self.breaks: list[Break] = []

    def put(self, parts: list[Part]) -> list[tuple[Frame, Body]]:
        """Keep what comes next, and return the frames with their bodies."""
        frames: list[tuple[Frame, Body]] = []
        for part in parts:
            if isinstance(part, Break):
                self.breaks.append(part)
                self.logs[part.log_id] = max(self.logs.get(part.log_id, 0), part.first_offset + part.count)
                continue
            assert part.offset == self.logs.get(part.log_id, 0), "a frame is archived out of turn"
            self.logs[part.log_id] = part.offset + 1
            frames.append((part, codec.decode(part.body, Readings, Events, Notes)))
        self.frames += frames
        return frames

    def put_rows(self, rows: list[Row], interpreted: dict[str, int], *, replaying: bool) -> None:
        """Keep what was derived, and how far each log is interpreted."""

    def position(self) -> tuple[str | None, int | None]:
        return next(reversed(self.logs.items()), (None, None))

    def to_replay(self) -> Iterator[list[tuple[Frame, Body]]]:
        """Yield what an analyzer that starts has to hear again."""
        yield list(self.frames)

    def memory(self) -> Memory:
        """Return what an analyzer that starts has to know beyond what it hears again."""
        return Memory()

    def die(self) -> None:
        """Be a file whose process was killed."""

    def compare(self, windows: dict[tuple[object, ...], WindowRow]) -> None:
        """Compare what the archive would answer with what came to pass."""


class Stored(Archive):
    """The real one, in a DuckDB file: what is asked of it is asked of the file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = duckdb_file.Archive.open(path, Settings())

    def put(self, parts: list[Part]) -> list[tuple[Frame, Body]]:
        frames = super().put(parts)
        decoded = iter(frames)
        waiting: list[tuple[Frame, Body]] = []
        for part in parts:
            if isinstance(part, Break):
                self._file.put_frames(waiting)
                self._file.put([part])
                waiting = []
            else:
                waiting.append(next(decoded))
        self._file.put_frames(waiting)
        return frames

    def put_rows(self, rows: list[Row], interpreted: dict[str, int], *, replaying: bool) -> None:
        self._file.put_rows(rows, interpreted, replaying=replaying)

    def position(self) -> tuple[str | None, int | None]:
        return self._file.position(HOST)

    def to_replay(self) -> Iterator[list[tuple[Frame, Body]]]:
        return self._file.to_replay()

    def memory(self) -> Memory:
        return remembered(self._file)

    def die(self) -> None:
        files = [self._path, self._path.with_name(f"{self._path.name}.wal")]
        left = {file: file.read_bytes() for file in files if file.exists()}
        self._file.close()
        for file, content in left.items():
            file.write_bytes(content)
        self._file = duckdb_file.Archive.open(self._path, Settings())

    def compare(self, windows: dict[tuple[object, ...], WindowRow]) -> None:
        with self._file.reading() as reader:

            def rows(sql: str) -> list[tuple[Any, ...]]:
                _, batches = reader.batches(sql, 10_000)
                return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

            again = rows(
                """
                SELECT (SELECT count(*) - count(DISTINCT (log_id, "offset")) FROM frames)
                    + (SELECT count(*) - count(DISTINCT (gpu, t_hi_ns)) FROM readings)
                    + (SELECT count(*) - count(DISTINCT (session, sequence)) FROM events)
                    + (SELECT count(*) - count(DISTINCT (session, kind, index, gpu)) FROM windows)
                """
            )
            assert again == [(0,)], "something is stored twice"
            offsets = rows(
                """SELECT log_id, "offset" FROM frames UNION SELECT log_id, "offset" FROM readings"""
            )
            assert set(offsets) == {(frame.log_id, frame.offset) for frame, _ in self.frames}, (
                "other frames are stored than were handed over"
            )
            stored = rows("SELECT session, kind, index, gpu, energy_j, quality FROM windows")
            decisions = [
                DecisionRow(**dict(zip(_DECISION.split(", "), row, strict=True)))
                for row in rows(f"SELECT {_DECISION} FROM decisions")  # noqa: S608  (our own names)
            ]
        replayed = replay.interpret(self._file.stored_frames(), PLAN, {}, self._file.recalled())
        self._file.close()
        derived = {(*key, row.energy_j, row.quality) for key, row in windows.items()}
        assert set(stored) == derived, "other windows are stored than were derived"
        assert replay.differences(decisions, replayed.decisions.values()) == (), "it decides otherwise again"


class Analyzer(Process):
    """Follows, archives, interprets, commands; after a kill it hears its archive again."""

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world)
        self._fence = number << 32
        self._sequencer = Sequencer(*world.archive.position())
        self._interpreter = Interpreter(PLAN, world.archive.memory())
        self._waiting: list[Frame] = []
        self._asked: Hello | Fetch | None = None
        self._asked_ns = self._received_ns = 0
        self._welcome: Welcome | None = None
        self._held: set[str] = set()
        self._unanswered: dict[str, SetControl | ReleaseControl] = {}
        self._to_interpret: list[tuple[Frame, Body]] = []
        for page in world.archive.to_replay():
            self._interpret(page, replaying=True)
        self._tick()
        self.after(0, self._renew)

    def _tick(self) -> None:
        now_ns = self.world.now_ns
        if self._asked is not None and now_ns - self._asked_ns > S:
            self._asked = None
        if self._asked is None and (self._welcome is None or now_ns - self._received_ns > S):
            self._ask(Hello("analyzer", "analyzer"))
        self.after(100 * MS, self._tick)

    def _ask(self, request: Hello | Fetch) -> None:
        self._asked, self._asked_ns = request, self.world.now_ns
        self._send(request)

    def _send(self, message: Any) -> None:
        collector = self.world.collector
        if collector.alive:
            collector.control.send(0, collector.hear, message)

    def feed(self, frame: Frame) -> None:
        self._waiting.append(frame)
        if self._asked is None and self._welcome is not None:
            self._take_in(self._sequencer.frames(self._waiting))
            self._waiting.clear()

    def hear(self, message: Any) -> None:
        match message:
            case Welcome():
                self._welcome = message
                if isinstance(self._asked, Hello):
                    self._asked = None
                    self._take_in(self._sequencer.welcome(message))
            case (Fetched() as fetched, list(frames)):
                if isinstance(self._asked, Fetch):
                    self._asked = None
                    self._take_in(self._sequencer.fetched(fetched, frames))
            case ControlApplied(command=command) | ControlRefused(command=command):
                self._unanswered.pop(command, None)
            case _:
                raise AssertionError(message)

    def _take_in(self, ready: list[Part]) -> None:
        """Archive what is in order, interpret it a little later, and fetch what is missing."""
        if ready:
            self._received_ns = self.world.now_ns
        self._to_interpret += self.world.archive.put(ready)
        if ready:
            self.after(self.world.rng.uniform(0, 20) * MS, self._interpret_all)
        if self._asked is None and (wanted := self._sequencer.wanted()) is not None:
            self._ask(wanted)

    def _interpret_all(self) -> None:
        frames, self._to_interpret = self._to_interpret, []
        self._interpret(frames, replaying=False)

    def _interpret(self, frames: list[tuple[Frame, Body]], *, replaying: bool) -> None:
        rows: list[Row] = []
        for frame, body in frames:
            obey = not replaying and self.world.now_ns - frame.t_ns < S
            rows += self._hear(frame, body, obey=obey)
        if rows:
            interpreted = {frame.log_id: frame.offset + 1 for frame, _ in frames}
            self.world.archive.put_rows(rows, interpreted, replaying=replaying)

    def _hear(self, frame: Frame, body: Body, *, obey: bool) -> list[Row]:
        for note in body.notes if isinstance(body, Notes) else ():
            match note:
                case ControlApplied(gpu=gpu):
                    self._held.add(gpu)
                case ControlLeaseEnded(gpu=gpu):
                    self._held.discard(gpu)
                case _:
                    pass
        outputs = outputs_of(self._interpreter, frame, body)
        for output in outputs:
            self.world.derived(output)
            if obey and isinstance(output, ApplyControl | RestoreControl):
                self._command(output)
        return [output for output in outputs if isinstance(output, Row)]

    def _command(self, wanted: ApplyControl | RestoreControl) -> None:
        if self._welcome is None:
            return
        self._fence += 1
        request: SetControl | ReleaseControl
        if isinstance(wanted, ApplyControl):
            request = SetControl(
                command=wanted.command,
                owner="analyzer",
                incarnation=self._welcome.incarnation,
                fence=self._fence,
                run=wanted.run,
                gpu=wanted.gpu,
                control=wanted.control,
                value=wanted.value,
                lease_ms=1500,
            )
        else:
            self._held.discard(wanted.gpu)
            request = ReleaseControl(
                command=wanted.command,
                owner="analyzer",
                incarnation=self._welcome.incarnation,
                fence=self._fence,
                gpu=wanted.gpu,
                control=wanted.control,
            )
        self._unanswered[wanted.command] = request
        self._send(request)

    def _renew(self) -> None:
        self._send(Hello("analyzer", "analyzer"))
        if self._welcome is not None and self._held:
            self._send(RenewLeases("analyzer", self._welcome.incarnation, tuple(self._held), 1500))
        for request in self._unanswered.values():
            self._send(request)
        self.after(300 * MS, self._renew)

    def kill(self) -> None:
        self.alive = False


# ---- the world ------------------------------------------------------------------------------------------


class World:
    """One host, its GPU and its three processes; ``seed`` decides what goes wrong, and when."""

    def __init__(
        self, seed: int, path: Path, *, wall_steps: bool = True, archive: Archive | None = None
    ) -> None:
        """``path``: of the log. Without ``wall_steps`` the wall clock goes on where it would have jumped."""
        self.rng = Random(seed)
        self.path = path
        self.now_ns = START_NS
        self.report = Report()
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._numbers = count(1)
        self._wall_step_ns = 0
        self._wall_steps = wall_steps
        self._healed = False
        self._lowered = False
        self._bereft_ns: int | None = None
        """Since when the limit in force should return."""
        faults = self.rng.choice(["", "", ",fault=reset@3", ",fault=lost@2-3.5", ",fault=timeout@4-5"])
        self._reset_ns = START_NS + 4 * S if "reset" in faults else 0
        """The counter has started over by then, and somebody has seen it."""
        [spec] = parse(f"simulated:v100,seed={seed},noise=0.05,period_ms=100{faults}")
        self.model = spec.model
        self.loads = Schedule(first=LimitChange(self.now_ns - S, FOUND_MW))
        self.device = SimulatedDevice(spec, 0, self.loads, lambda: self.now_ns, lambda _: None)
        self.gpu = self.device.gpu
        self.ceiling_mw = FOUND_MW
        """What an administrator has set last; nobody may go above it."""
        self._faulty = "lost" in faults or "timeout" in faults
        """The device cannot be restored at times."""
        self.record: lease_messages.Limits | None = None
        self.settled: str | None = None
        self.guarding = False
        self.logs_lost = 0
        self.living: set[int] = set()
        self.streams: list[Stream] = []
        self.archive = archive or Archive()
        self.windows: dict[tuple[object, ...], WindowRow] = {}
        self.trainers: list[Trainer] = []
        self.collector = Collector(self, next(self._numbers))
        self.analyzer = Analyzer(self, next(self._numbers))
        self._train()

    def at(self, t_ns: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (t_ns, next(self._order), action))

    def wall_ns(self) -> int:
        return 1_700_000_000 * S + self.now_ns + self._wall_step_ns

    def run(self) -> Report:
        """Let things go wrong, let them heal, and compare. Raises AssertionError."""
        self._plan_trouble()
        self.at(START_NS + TROUBLE_NS, self._heal)
        while not self._healed:
            self._step()
        self._until(self.now_ns + HEAL_NS // 2)
        for trainer in self.trainers:
            if trainer.alive:
                trainer.finish()
        self._until(self.now_ns + HEAL_NS // 2)
        logged = self.collector.log.extent
        self._until(self.now_ns + 2 * S)
        assert self.archive.logs.get(logged.log_id, 0) >= logged.next_offset, "the archive is behind"
        self._compare()
        self.collector.log.die()
        return self.report

    def _until(self, end_ns: int) -> None:
        while self._due[0][0] <= end_ns:
            self._step()
        self.now_ns = end_ns

    def _step(self) -> None:
        self.now_ns, _, action = heapq.heappop(self._due)
        action()
        self._look_at_limit()

    def _look_at_limit(self) -> None:
        requested_mw = self.requested_mw()
        lowered, self._lowered = self._lowered, requested_mw != self.ceiling_mw
        self.report.restored += lowered and not self._lowered
        assert requested_mw <= self.ceiling_mw, "the limit is above what was found"
        assert self.record is not None or not self._lowered, "a limit is in force without a restore record"
        if self._bereft_ns is not None:
            waited_ns = self.now_ns - self._bereft_ns
            assert waited_ns <= RESTORED_NS or self._faulty, "a limit is in force that nobody wants"
            if requested_mw == self.ceiling_mw:
                self._bereft_ns = None
                self.report.slowest_restore_s = max(self.report.slowest_restore_s, waited_ns / S)

    def _bereave(self) -> None:
        """Somebody died without whom no limit of ours may stay."""
        if self._bereft_ns is None and self.requested_mw() != self.ceiling_mw:
            self._bereft_ns = self.now_ns

    def requested_mw(self) -> int:
        """What the driver would say, also while the GPU is lost."""
        self.device._learn()
        return self.device._draw.limit_mw

    # what goes wrong

    def _plan_trouble(self) -> None:
        troubles = (
            (4, self._kill_collector),
            (4, self._kill_analyzer),
            (2, self._kill_trainer),
            (3, self._cut),
            (1, self._fill_disk),
            (1, self._step_wall_clock),
            (1, self._suspend),
            (0.5, self._set_by_stranger),
        )
        actions, weights = [action for _, action in troubles], [weight for weight, _ in troubles]
        for _ in range(self.rng.randrange(3, 12)):
            at_ns = START_NS + round(self.rng.uniform(0.2, TROUBLE_NS / S - 1) * S)
            [action] = self.rng.choices(actions, weights)
            self.at(at_ns, action)

    def _kill_collector(self) -> None:
        if not self.collector.alive:
            return
        self.report.kills["collector"] += 1
        self.collector.kill()
        damaged = self.rng.random() < 0.15
        if damaged:
            self._damage_log()
        if self.rng.random() < 0.8:  # else the guard died as well
            self.guarding = True
            self._bereave()
            self.at(self.now_ns + round(self.rng.uniform(50, 800) * MS), self._guard)
        self.at(self.now_ns + round(self.rng.uniform(1, 2_000) * MS), self._start_collector)

    def _start_collector(self) -> None:
        if not self.collector.alive:
            self.collector = Collector(self, next(self._numbers))

    def _guard(self) -> None:
        """Do what the guard process does at the death of its collector."""
        if self.record is not None and self.settled is None:
            try:
                done = put_back(self.device, self.record)
            except DeviceError:
                self.at(self.now_ns + 100 * MS, self._guard)
                return
            self.settled = f"restored to {done.requested} mW by the guard"
        self.guarding = False

    def _damage_log(self) -> None:
        wal = self.path.with_name(self.path.name + "-wal")
        if wal.exists() and (content := bytearray(wal.read_bytes())):
            content[-self.rng.randrange(1, min(len(content), 5_000) + 1)] ^= 1 << self.rng.randrange(8)
            wal.write_bytes(content)

    def _kill_analyzer(self) -> None:
        if self.analyzer.alive:
            self.report.kills["analyzer"] += 1
            self.analyzer.kill()
            self.archive.die()
            self.at(self.now_ns + round(self.rng.uniform(1, 2_500) * MS), self._start_analyzer)

    def _start_analyzer(self) -> None:
        if not self.analyzer.alive:
            self.analyzer = Analyzer(self, next(self._numbers))

    def _kill_trainer(self) -> None:
        trainer = self.trainers[-1]
        if trainer.alive:
            self.report.kills["publisher"] += 1
            trainer.kill()
            self.living.discard(trainer.pid)
            if self.collector.alive:
                self._bereave()
            self.at(self.now_ns + round(self.rng.uniform(1, 500) * MS), self._train)

    def _train(self) -> None:
        if not self.trainers or not self.trainers[-1].alive:
            number = next(self._numbers)
            self.living.add(number)
            self.trainers.append(Trainer(self, number))

    def _cut(self) -> None:
        """Cut every connection; new ones are made when somebody notices."""
        for stream in self.streams:
            stream.open = False
        self.streams.clear()
        if self.collector.alive:
            self.collector.control.open = False
            self.collector.control = Stream(self)

    def _fill_disk(self) -> None:
        self.collector.log.full = True

        def empty() -> None:
            self.collector.log.full = False

        self.at(self.now_ns + round(self.rng.uniform(100, 1_500) * MS), empty)

    def _suspend(self) -> None:
        """All clocks jump; what was due meanwhile is done late, in the order in which it was due."""
        if self.now_ns < self._reset_ns:
            return  # nobody can tell a counter that began anew unseen, and has passed its old value, from one
            # that went on: it is no promise of ours
        self.report.suspends += 1
        slept_ns = round(self.rng.uniform(0.5, 20) * S)
        awake_ns = self.now_ns + slept_ns
        self._due = [(max(at_ns, awake_ns), next(self._order), do) for at_ns, _, do in sorted(self._due)]
        if self._bereft_ns is not None:
            self._bereft_ns += slept_ns

    def _step_wall_clock(self) -> None:
        self.report.wall_steps += 1
        step_ns = self.rng.choice([-1, 1]) * self.rng.randrange(3600 * S, 24 * 3600 * S)
        self._wall_step_ns += step_ns if self._wall_steps else 0
        if self.collector.alive:
            self.collector._say(ClockAnchored(self.now_ns, self.wall_ns(), 1))

    def _set_by_stranger(self) -> None:
        self._bereft_ns = None
        self.ceiling_mw = self.rng.choice([140_000, 180_000, 240_000])
        self.loads.set_limit(self.ceiling_mw, self.now_ns)

    def _heal(self) -> None:
        self._healed = True
        self.collector.log.full = False
        self._start_collector()
        self._start_analyzer()
        self._train()

    # what is under way

    def feed(self, frame: Frame) -> None:
        """Carry a frame to the analyzer: perhaps late, perhaps twice, perhaps never."""
        copies = 1 if self._healed else self.rng.choices([0, 1, 2], [0.1, 0.85, 0.05])[0]
        for _ in range(copies):
            self.at(self.now_ns + round(self.rng.expovariate(1 / (3 * MS))), lambda: self._arrive(frame))

    def _arrive(self, frame: Frame) -> None:
        if self.analyzer.alive:
            self.analyzer.feed(frame)

    def analyzer_hears(self, message: Any) -> None:
        if self.analyzer.alive:
            self.analyzer.hear(message)

    def derived(self, output: Output) -> None:
        """Look at what the interpreter makes of it."""
        if isinstance(output, GapRow):
            self.report.gaps += 1
        if not isinstance(output, WindowRow):
            return
        self.windows[output.session, output.kind, output.index, output.gpu] = output
        if output.energy_j is None:
            assert output.quality != "ok", "energy is missing without a reason"
            return
        assert output.energy_low_j is not None
        assert output.energy_high_j is not None
        assert 0 <= output.energy_low_j <= output.energy_j <= output.energy_high_j, "impossible energy"
        truth_j = self.device.energy_mj(output.begin_ns, output.end_ns) / 1000
        slack_j = 0.01 + 0.001 * truth_j
        within = output.energy_low_j - slack_j <= truth_j <= output.energy_high_j + slack_j
        assert within, f"{truth_j} J is not within {output.energy_low_j} to {output.energy_high_j}: {output}"

    # what must be there in the end

    def _compare(self) -> None:
        report = self.report
        archived: Counter[Event | Unknown] = Counter()
        for _, body in self.archive.frames:
            if isinstance(body, Events):
                archived.update(event for event in body.events if not isinstance(event, RunStarted))
        for trainer in self.trainers:
            acknowledged = trainer.outbox.acknowledged - (len(trainer.sessions) - 1)
            emitted = [event for event in trainer.emitted if not isinstance(event, RunStarted)]
            report.emitted += len(emitted)
            times = [archived[event] for event in emitted]
            report.twice += sum(number - 1 for number in times if number)
            report.lost += times[: max(0, acknowledged - 1)].count(0)
            assert self.logs_lost or times == sorted(times, reverse=True), "a hole among the events of a run"
            if trainer.alive:
                assert trainer.outbox.waiting == 0, "events are not delivered though all is well"
        assert self.logs_lost or report.twice == 0, "an event is archived twice"
        assert self.logs_lost or report.lost == 0, "an acknowledged event is not archived"
        everything = {event for trainer in self.trainers for event in trainer.emitted}
        assert set(archived) <= everything, "an event is archived that nobody emitted"
        report.archived = archived.total()
        log = self.collector.log
        stored = {frame.offset: frame for frame, _ in self.archive.frames if frame.log_id == log.log_id}
        for offset in range(0, self.archive.logs[log.log_id], 1000):
            for frame in log.fetch(offset, 1000, 10**9):
                assert stored.get(frame.offset, frame) == frame, "the archive has another frame than the log"
        lost_logs = {gap.log_id for gap in self.archive.breaks}
        assert len(self.archive.logs) - 1 <= len(lost_logs), "a log was left without a gap"
        assert self.requested_mw() == self.ceiling_mw, "the limit found has not returned"
        assert self.record is None, "a restore record is left"
        report.windows = len(self.windows)
        again = Interpreter(PLAN)
        once: dict[tuple[object, ...], WindowRow] = {
            (row.session, row.kind, row.index, row.gpu): row
            for frame, body in self.archive.frames
            for row in outputs_of(again, frame, body)
            if isinstance(row, WindowRow)
        }
        assert once.keys() == self.windows.keys(), "restarts of the analyzer have lost or invented windows"
        for key, row in self.windows.items():
            assert _alike(row, once[key]), "restarts of the analyzer have changed what is derived"
        self.archive.compare(self.windows)


def _alike(row: WindowRow, other: WindowRow) -> bool:
    """Whether two rows say the same. What was learned by then may shape an energy, within its bounds."""
    if row.energy_j is None or row.energy_low_j is None or row.energy_high_j is None:
        return row == other
    learned = replace(
        other,
        energy_j=row.energy_j,
        energy_p2_5_j=row.energy_p2_5_j,
        energy_p97_5_j=row.energy_p97_5_j,
        phase_coverage=row.phase_coverage,
        estimator=row.estimator,
        quality=row.quality,
    )
    bounded = other.energy_j is not None and row.energy_low_j <= other.energy_j <= row.energy_high_j
    return learned == row and bounded


def run(seed: int, *, stored: bool = False) -> Report:
    """Run the world of one seed; ``stored``: with DuckDB. Raises AssertionError, which says how to repeat."""
    with tempfile.TemporaryDirectory() as made:
        try:
            archive = Stored(Path(made) / "energy.duckdb") if stored else Archive()
            return World(seed, Path(made) / "log.sqlite", archive=archive).run()
        except AssertionError as wrong:
            again = f"--seed {seed}{' --stored' if stored else ''}"
            wrong.add_note(f"Repeat it with: python -m tests.simulation.pipeline {again}")
            raise


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run one simulated world, and print what it counted.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--stored", action="store_true", help="archive into DuckDB")
    options = parser.parse_args()
    print(run(options.seed, stored=options.stored))
