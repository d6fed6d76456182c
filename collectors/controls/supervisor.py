"""The devices of the host as the event loop knows them: finds them, guards them, takes in what they say."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from collectors.controls import lease
from collectors.controls.control import Knob
from collectors.controls.device_thread import (
    Crashed,
    Do,
    Found,
    FoundKnob,
    Gone,
    Happened,
    Mail,
    News,
    ProcessesSeen,
    SeeProcesses,
    Stop,
    Watch,
)
from collectors.device import Bus, Description
from collectors.devices.read_only import ObservedDevice
from collectors.log.feed import Journal
from collectors.sampling import schedule
from zeus_stream.clock import boot_id, monotonic_ns
from zeus_stream.errors import DeviceError
from zeus_stream.protocol.commands import RenewLeases
from zeus_stream.protocol.notes import DeviceFound, DeviceGone, Refused
from zeus_stream.protocol.readings import Readings
from zeus_stream.settings import Settings

MAX_DEVICES = 256
MAX_ROWS = 10_000
"""Readings in one frame."""
LOOK_S = schedule.RETURN_NS / 1e9
LOOK_AGAIN_S = 60.0
"""Between two looks for devices once there are some: a GPU that was lost at the start, or is new."""
SEE_S = 2.0
"""Wait at most this long for a device to say who computes on it."""
SHUTDOWN_S = 5.0
JOIN_S = 2.0
_TURN_S = 0.002
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Guarding:
    """One knob of a device."""

    rules: lease.Rules
    state: lease.Guarded


@dataclass(slots=True)
class Guard:
    """One device."""

    watch: Watch
    description: Description
    knobs: dict[Knob, Guarding] = field(default_factory=dict)
    """Those that can be set."""
    there: bool = True
    pids: tuple[int, ...] | None = None
    pids_seen: anyio.Event = field(default_factory=anyio.Event)


class Guards:
    """All devices."""

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        records: Path,
        journal: Journal,
        incarnation: str,
        reply: Callable[[lease.Outcome], None],
        unguarded: Callable[[], str | None],
    ) -> None:
        """``reply`` is told the outcome of every command; ``unguarded`` says why none may change a device."""
        self._settings = settings
        self._bus = bus
        self._records = records
        self._journal = journal
        self._incarnation = incarnation
        self._reply = reply
        self._unguarded = unguarded
        self._boot_id = boot_id()
        self._mail = Mail()
        self._watches: dict[int, Watch] = {}
        """By the identity of the bus's device."""
        self._guards: dict[str, Guard] = {}
        self._stopping = False
        self.trouble: str | None = None
        """Why no device can be looked for."""

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The devices that were found, lost ones too."""
        return tuple(self._guards.values())

    @property
    def descriptions(self) -> tuple[Description, ...]:
        return tuple(guard.description for guard in self._guards.values())

    @property
    def looked(self) -> bool:
        """Every device that the bus named was found, or has said why not."""
        watches = self._watches.values()
        return bool(watches) and all(watch.gpu or watch.trouble for watch in watches)

    # ---- what the rest of the collector asks ---------------------------------------------------------

    def command(self, command: lease.Command, objection: str | None) -> None:
        """Take in a command; ``objection``: why its run may not command. The outcome comes by ``reply``."""
        now_ns = monotonic_ns()
        guard, knob = self._guards.get(command.gpu), lease.knob(command)
        if guard is not None and knob in guard.knobs:
            self._tell(guard, knob, lease.Asked(command, objection), now_ns)
            return
        why = "it is not there" if guard is None else "it has none that could be set"
        reason = f"{command.gpu}: could not change the {knob.value}: {why}. Measure only."
        outcome = Refused(now_ns, command.command, command.gpu, "device", reason)
        self._journal.say(outcome)
        self._reply(outcome)

    def renew(self, renewal: RenewLeases) -> None:
        for gpu in renewal.gpus:
            if (guard := self._guards.get(gpu)) is not None:
                self._tell_all(guard, renewal)

    def run_gone(self, run: str) -> None:
        """The run has no session on this host any more."""
        for guard in self._guards.values():
            self._tell_all(guard, lease.RunGone(run))

    async def pids(self, gpu: str) -> tuple[int, ...] | None:
        """Return who computes on a device now; None: that cannot be seen."""
        guard = self._guards[gpu]
        seen = guard.pids_seen
        guard.watch.do(SeeProcesses())
        with anyio.move_on_after(SEE_S):
            await seen.wait()
            return guard.pids
        return None

    def beat(self) -> None:
        """Log the readings that have come together, and let time pass for the leases."""
        rows: list[bytes] = []
        for watch in self._watches.values():
            rows += watch.take_rows(MAX_ROWS - len(rows))
            if dropped := watch.take_dropped():
                self._journal.lose("readings", dropped, "the collector's event loop did not keep up")
        if rows:
            # A device that was never found has a place, but no row refers to it.
            gpus = tuple(watch.gpu or "-" for watch in self._watches.values())
            self._journal.readings(Readings(gpus, b"".join(rows)), len(rows))
        now_ns = monotonic_ns()
        for guard in self._guards.values():
            for knob, guarding in guard.knobs.items():
                requested = guard.watch.requested_mw if knob is Knob.LIMIT else None
                if not guarding.state.unmoved(requested):
                    self._tell(guard, knob, lease.Beat(requested), now_ns)

    # ---- tasks -----------------------------------------------------------------------------------

    async def look(self) -> None:
        """Look for devices, and go on looking."""
        while True:
            try:
                devices = await run_sync(self._bus.discover)
                await anyio.lowlevel.checkpoint()  # told to stop meanwhile: no thread may start any more
            except DeviceError as wrong:
                if self.trouble != str(wrong):
                    _log.warning("%s", wrong)
                self.trouble = str(wrong)
            else:
                self.trouble = None
                for device in devices:
                    if id(device) not in self._watches and len(self._watches) < MAX_DEVICES:
                        watched = ObservedDevice(device) if self._settings.observe else device
                        watch = self._watches[id(device)] = Watch(
                            watched,
                            len(self._watches),
                            self._mail,
                            self._records,
                            poll_ns=round(self._settings.poll_ms * 1e6),
                            heartbeat_ns=self._settings.heartbeat_ms * 1_000_000,
                        )
                        watch.start()
            await anyio.sleep(LOOK_AGAIN_S if self._watches else LOOK_S)

    async def listen(self) -> None:
        """Take in what the devices' threads have to say."""
        while True:
            await self._mail.wait()
            self._take_in_all()

    async def stop(self) -> None:
        """Put back what was changed, and end the threads. The tasks have ended or do so now."""
        self._stopping = True
        for guard in self._guards.values():
            self._tell_all(guard, lease.Stopping())
        with anyio.move_on_after(SHUTDOWN_S):
            while any(self._unsettled()):
                self._take_in_all()
                self.beat()
                await anyio.sleep(_TURN_S)
        for watch in self._watches.values():
            watch.do(Stop())
        for watch in self._watches.values():
            if not await run_sync(watch.join, JOIN_S):
                _log.error("%s: a call to its driver does not return.", watch.gpu)
        self._take_in_all()
        self.beat()
        for gpu, knob, state in self._unsettled():
            _log.error(
                "%s: could not be restored to %s. Its record stays for the next start.",
                gpu,
                knob.says(state.limits.found),
            )
        self._mail.close()

    def _unsettled(self) -> Iterator[tuple[str, Knob, lease.Guarded]]:
        """Give GPU, knob and state where something of ours may be in force, or is under way."""
        for guard in self._guards.values():
            for knob, guarding in guard.knobs.items():
                if not guarding.state.at_rest:
                    yield guard.watch.gpu, knob, guarding.state

    # ---- what threads say -------------------------------------------------------------------------

    def _take_in_all(self) -> None:
        while (item := self._mail.take()) is not None:
            self._take_in(*item)

    def _take_in(self, watch: Watch, news: News) -> None:
        guard = self._guards.get(watch.gpu)
        match news:
            case Found():
                self._find(watch, news)
            case Gone(t_ns, reason):
                if guard is not None:
                    guard.there = False
                self._journal.say(DeviceGone(t_ns, watch.gpu, reason[:2000]))
            case Happened(t_ns, knob, event):
                if guard is not None:
                    self._tell(guard, knob, event, t_ns)
            case ProcessesSeen(pids):
                if guard is not None:
                    guard.pids = pids
                    guard.pids_seen.set()
                    guard.pids_seen = anyio.Event()
            case Crashed(error):
                if not self._stopping:
                    raise error
                _log.error("%s: its thread failed.", watch.gpu, exc_info=error)

    def _find(self, watch: Watch, found: Found) -> None:
        description = found.description
        guard = self._guards.get(watch.gpu)
        todo: list[tuple[Knob, tuple[lease.Instruction, ...]]] = []
        if guard is not None:
            guard.description, guard.there = description, True
            self._tell(guard, Knob.CLOCK, lease.Returned(), found.t_ns)
        else:
            guard = self._guards[watch.gpu] = Guard(watch, description)
            todo = [(knob.knob, self._begin(guard, knob, found.t_ns)) for knob in found.knobs]
        limit = guard.knobs.get(Knob.LIMIT)
        self._journal.say(
            DeviceFound(
                found.t_ns,
                description.gpu,
                description.index,
                description.name,
                description.driver,
                description.counts_energy,
                description.min_limit_mw,
                description.max_limit_mw,
                description.default_limit_mw,
                found.requested_mw if limit is None else limit.state.limits.found,
                description.mig,
                description.scope,
                description.tenants,
            )
        )
        for knob, instructions in todo:
            self._carry_out(guard, knob, instructions)

    # ---- leases ------------------------------------------------------------------------------------

    def _begin(self, guard: Guard, found: FoundKnob, now_ns: int) -> tuple[lease.Instruction, ...]:
        """Take a knob of a new device under guard; return what to do about a record found with it."""
        description, left = guard.description, found.left
        rules = lease.Rules(
            description.gpu,
            self._incarnation,
            description.min_limit_mw or 0,
            self._settings.observe,
            found.trouble,
            found.knob,
            description.clocks_mhz,
        )
        state, todo = lease.begin(
            rules,
            found.requested,
            None if left is None else left.limits,
            same_boot=left is not None and left.boot_id == self._boot_id,
            now_ns=now_ns,
            settled=None if left is None else left.settled,
        )
        guard.knobs[found.knob] = Guarding(rules, state)
        return todo

    def _tell_all(self, guard: Guard, event: lease.Event) -> None:
        """Tell something that concerns every knob of a device."""
        for knob in guard.knobs:
            self._tell(guard, knob, event, monotonic_ns())

    def _tell(self, guard: Guard, knob: Knob, event: lease.Event, now_ns: int) -> None:
        if (guarding := guard.knobs.get(knob)) is not None:
            beside = (other.state.lease for other in guard.knobs.values() if other is not guarding)
            trouble = guarding.rules.trouble or self._unguarded()
            rules = replace(guarding.rules, trouble=trouble, beside=next(beside, None))
            guarding.state, todo = lease.step(rules, guarding.state, event, now_ns)
            self._carry_out(guard, knob, todo)

    def _carry_out(self, guard: Guard, knob: Knob, todo: tuple[lease.Instruction, ...]) -> None:
        for instruction in todo:
            match instruction:
                case lease.Say(note):
                    self._journal.say(note)
                    if isinstance(note, lease.Outcome):
                        self._reply(note)
                case lease.Repeat(outcome):
                    self._reply(outcome)
                case _:
                    guard.watch.do(Do(knob, instruction))
