"""A collector that can be killed: real sessions, leases and log; threads and sockets are played."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from collectors.controls import lease, lease_messages
from collectors.controls.value_changes import change, put_back
from collectors.ingest.sessions import PublisherSession, from_json, receive
from collectors.log.sqlite import SqliteLog
from collectors.log.store import SessionMemory
from collectors.sampling import sampled_device
from tests.simulation.killable_trainer import Trainer
from tests.simulation.leased_control import LeasedControl
from tests.simulation.processes import MS, Process, Stream
from tests.simulation.simulated_site import READ_NS, collector_started
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
from zeus_stream.protocol.events import Ack, Batch
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import DeviceGone, Lost, Note, Notes, RunAdmitted, SessionEnded
from zeus_stream.protocol.readings import Readings

if TYPE_CHECKING:
    from tests.simulation.troubled_world import TroubledWorld


class FillingLog(SqliteLog):
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


class Collector(Process, LeasedControl):
    """Takes in events, reads the device, obeys commands; remembers nothing but its log and the record."""

    def __init__(self, world: "TroubledWorld", number: int) -> None:
        Process.__init__(self, world)
        self.world = world
        self.incarnation = f"incarnation-{number}"
        self.log = FillingLog(world.path, world.host.name, "boot")
        if self.log.started_over is not None:
            world.logs_lost += 1
        self._sessions = {memory.session: from_json(memory.about) for memory in self.log.sessions()}
        rules = lease.LeaseRules(
            gpu=world.name_of_gpu, incarnation=self.incarnation, least_mw=world.gpu.model.min_limit_mw
        )
        LeasedControl.__init__(self, rules, lease.ControlState(limits=lease_messages.Limits(0)))
        self._found = False
        self._notes: list[Note] = []
        self._lost = 0
        self._rows = bytearray()
        self.requested_mw: int | None = None
        """As last read, or set and read back."""
        self.connection = Stream(world, world.rng)
        """With the analyzer."""
        self.say(collector_started(world.now_ns, world.wall_ns(), self.incarnation))
        if self.log.started_over is not None:
            self.say(Lost(world.now_ns, "log", 1, f"started over: {self.log.started_over}"))
        for session in self._sessions.values():
            if not session.gone:
                self._see_out(session.session)
        # A process takes time to start: no two collectors read at one instant, not even as a host wakes.
        self.after(MS, self._open)
        self.after(20 * MS, self._beat)

    # what goes into the log

    def _append(self, topic: str, body: Body, session: PublisherSession | None = None) -> bool:
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

    def say(self, *notes: Note) -> None:
        self._notes += notes
        lost = [Lost(self.world.now_ns, "readings", self._lost, "no room")] if self._lost else []
        if (self._notes or lost) and self._append("notes/host", Notes((*lost, *self._notes))):
            self._notes.clear()
            self._lost = 0

    def _beat(self) -> None:
        if self._rows:
            rows, self._rows = bytes(self._rows), bytearray()
            if not self._append("readings/host", Readings(tuple(self.world.host.gpus), rows)):
                self._lost += len(rows) // 48
        self._tell(lease_messages.Beat(self.requested_mw))
        self.say()
        self.after(25 * MS, self._beat)

    def take_in(self, trainer: Trainer, stream: Stream, batch: Batch) -> None:
        if not self.alive:
            return
        known = self._sessions.get(batch.session)
        before = known or PublisherSession(session=batch.session, uid=0, pid=trainer.pid, boot_id="boot")
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
                self.say(
                    RunAdmitted(
                        t_ns=self.world.now_ns,
                        session=session.session,
                        run=session.run,
                        gpus=tuple(self.world.host.gpus),
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
        if any(trainer.alive and trainer.pid == session.pid for trainer in self.world.trainers):
            self.after(10 * MS, lambda: self._see_out(name))
            return
        self._sessions[name] = replace(session, over=True, gone=True)
        self.say(SessionEnded(self.world.now_ns, name, "its process has ended"))
        self._tell(lease_messages.RunGone(session.run))

    # the device

    def _open(self) -> None:
        world, gpu = self.world, self.world.gpu
        try:
            requested_mw = gpu.device.read_control("power_limit") or 0
            found = gpu.found(world.now_ns, requested_mw)
        except DeviceError:
            self.after(300 * MS, self._open)
            return
        if world.guarding:  # it holds the record's lock
            self.after(20 * MS, self._open)
            return
        gpu.state, self.requested_mw = sampled_device.DetectorState(), requested_mw
        todo: tuple[lease_messages.Instruction, ...] = ()
        if not self._found:
            left, settled = world.record, world.settled
            self.state, todo = lease.begin(
                self.rules, requested_mw, left, same_boot=True, now_ns=world.now_ns, settled=settled
            )
            self._found = True
        self.say(replace(found, found_limit_mw=self.state.limits.found))
        self.take(todo)
        self._poll()

    def _poll(self) -> None:
        world = self.world
        try:
            reading = world.gpu.sample(world.now_ns - READ_NS)
        except RetryError:
            self.after(100 * MS, self._poll)
            return
        except DeviceError as wrong:
            self.say(DeviceGone(world.now_ns, world.name_of_gpu, str(wrong)))
            self.after(300 * MS, self._open)
            return
        self.requested_mw = world.gpu.requested_mw
        if reading is not None:
            self._rows += sampled_device.pack(reading, 0)
        self.after(world.rng.uniform(10, 30) * MS, self._poll)

    def _tell(self, event: lease_messages.Event) -> None:
        if self._found:
            self.tell(event, self.world.now_ns)

    def take(self, todo: tuple[lease_messages.Instruction, ...]) -> None:
        waited = bool(self.jobs)
        super().take(todo)
        if self.jobs and not waited:
            self._go_on()

    def _go_on(self) -> None:
        self.after(self.world.rng.uniform(0.1, 5) * MS, self._work)

    def _work(self) -> None:
        event = self.work()
        if self.jobs:
            self._go_on()
        if event is not None:
            self.tell(event, self.world.now_ns)

    def write_record(self, limits: lease_messages.Limits) -> bool:
        world = self.world
        if self.log.full:
            return False
        world.report.found += world.record is None
        world.record, world.settled = limits, None
        return True

    def clear_record(self) -> None:
        self.world.record = self.world.settled = None

    def set(self, limits: lease_messages.Limits, /) -> lease_messages.Event:
        event = change(self.world.gpu.device, "power_limit", limits)
        if event.requested is not None:
            self.requested_mw = event.requested
        if isinstance(event, lease_messages.SetDone):
            self.world.report.sets += 1
            if not self.log.full:
                self.world.record = limits.read_back(event.requested)
        return event

    def restore(self, limits: lease_messages.Limits) -> lease_messages.Event:
        try:
            done = put_back(self.world.gpu.device, limits)
        except DeviceError as wrong:
            return lease_messages.RestoreFailed(str(wrong))
        self.requested_mw = done.requested
        return lease_messages.RestoreDone(done.requested, done.other_program)

    # the control socket

    def receive(self, message: Hello | Fetch | SetControl | ReleaseControl | RenewLeases) -> None:
        if not self.alive:
            return
        match message:
            case Hello():
                extent = self.log.extent
                self.reply(
                    Welcome(
                        host=self.world.host.name,
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
                self.reply((Fetched(extent.log_id, at, extent.first_offset, extent.next_offset), frames))
            case SetControl() | ReleaseControl():
                runs = {session.run for session in self._sessions.values() if not session.over}
                gone = isinstance(message, SetControl) and message.run not in runs
                self._tell(lease_messages.Asked(message, "its run is not here" if gone else None))
            case RenewLeases():
                self._tell(message)

    def reply(self, message: Any) -> None:
        self.connection.send(1, self.world.analyzer_receives, message)

    def kill(self) -> None:
        self.alive = False
        self.connection.open = False
        self.log.die()
        for stream in self.world.streams:
            stream.open = False
