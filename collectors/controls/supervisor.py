"""The devices of the host as the event loop knows them: finds them, guards them, takes in what they say.

`Supervisor` has the devices; `Beats` logs their readings, and lets time pass for their leases.
"""

import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from dataclasses import dataclass, field

import anyio
from anyio.to_thread import run_sync
from msgspec.structs import replace

from collectors.control import spell, words
from collectors.controls import lease, lease_messages
from collectors.controls.device_messages import (
    ChangeFailed,
    Crashed,
    DeviceAnswers,
    Do,
    FoundControl,
    Gone,
    Happened,
    Mail,
    News,
    RecordsRead,
    SeeProcesses,
    Stop,
)
from collectors.controls.device_thread import DeviceThread
from collectors.controls.frequency_plan import ChangeClock
from collectors.device import Bus, Description, ProcessesSeen, ReadOnlyDevice
from collectors.log.feed import LogFeed
from collectors.sampling import schedule
from collectors.sampling.poller import Poller
from zeus_stream.clock import boot_id, monotonic_ns, to_next_ns
from zeus_stream.errors import DeviceError
from zeus_stream.paths import Places
from zeus_stream.protocol.commands import ReleaseControl, RenewLeases
from zeus_stream.protocol.fields import Control, of_host
from zeus_stream.protocol.notes import ControlRefused, DeviceFound, DeviceGone, PowerProfiles
from zeus_stream.protocol.pipelines import SetPlan
from zeus_stream.protocol.readings import Readings
from zeus_stream.settings import Settings

MAX_DEVICES = 256
MAX_ROWS = 10_000
"""Readings in one frame."""
LOOK_S = schedule.RETURN_NS / 1e9
LOOK_AGAIN_S = 60.0
"""Between two looks for devices once there are some: a GPU that was lost at the start, or is new."""
UNUSED_NS = 30_000_000_000
"""A device that no session has used for so long is read seldom."""
SEE_S = 2.0
"""Wait at most this long for a device to say who computes on it."""
SHUTDOWN_S = 5.0
JOIN_S = 2.0
_TURN_S = 0.002
BEAT_NS = 50_000_000
REST_NS = 250_000_000
AFTER_READING_NS = 20_000_000
"""From the instant at which the unused devices are read to when the readings of all are logged."""
KEEP_NS = 2_000_000_000
"""Between two looks at what the log may forget while it grows fast."""
KEEP_AT_REST_NS = 20_000_000_000
RELAX_NS = 1_000_000_000
"""Between two looks at which devices sessions use."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SupervisedControl:
    """One control of a device."""

    rules: lease.LeaseRules
    state: lease.ControlState


@dataclass(slots=True, kw_only=True)
class SupervisedDevice:
    """One device."""

    watch: DeviceThread
    description: Description
    controls: dict[Control, SupervisedControl] = field(default_factory=dict)
    """Those that can be set."""
    there: bool = True
    used_ns: int = field(default_factory=monotonic_ns)
    """When a session used it last, or it was found."""
    profiles: tuple[int, int | None] | None = None
    """Its power profiles, as logged last."""
    processes: ProcessesSeen = ProcessesSeen()
    processes_seen: anyio.Event = field(default_factory=anyio.Event)


class Supervisor:
    """All devices."""

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        where: Places,
        journal: LogFeed,
        incarnation: str,
        reply: Callable[[lease_messages.Outcome | lease_messages.Repeat], None],
        unguarded: Callable[[], str | None],
    ) -> None:
        """``reply`` gets the outcome of every command; ``unguarded`` says why none may change a device."""
        self._settings = settings
        self._bus = bus
        self._where = where
        self._journal = journal
        self._incarnation = incarnation
        self._reply = reply
        self._unguarded = unguarded
        self._boot_id = boot_id()
        self._mail, self._poller = Mail(), Poller()
        self._watches: dict[int, DeviceThread] = {}
        """By the identity of the bus's device."""
        self._guards: dict[str, SupervisedDevice] = {}
        self._stopping = False
        self.trouble: str | None = None
        """Why no device can be looked for."""

    @property
    def guards(self) -> tuple[SupervisedDevice, ...]:
        """The devices that were found, lost ones too."""
        return tuple(self._guards.values())

    @property
    def descriptions(self) -> tuple[Description, ...]:
        return tuple(guard.description for guard in self._guards.values())

    @property
    def leases(self) -> int:
        """Return the number of controls that are held under a lease."""
        return sum(c.state.lease is not None for g in self._guards.values() for c in g.controls.values())

    @property
    def leased_mw(self) -> dict[str, int]:
        """Return the power limits that leases hold, by GPU."""
        limits = ((gpu, guard.controls.get("power_limit")) for gpu, guard in self._guards.items())
        return {gpu: each.state.limits.last for gpu, each in limits if each and each.state.lease is not None}

    @property
    def looked(self) -> bool:
        """Every device that the bus named has its description here, or has given its reason."""
        watches = self._watches.values()
        return bool(watches) and all(each.gpu in self._guards or each.trouble for each in watches)

    # ---- what the rest of the collector asks ---------------------------------------------------------

    def command(self, command: lease_messages.Command, objection: str | None) -> None:
        """Take in a command; ``objection``: why its run may not command. The outcome comes by ``reply``."""
        now_ns, guard, control = monotonic_ns(), self._guards.get(command.gpu), command.control
        if guard is not None and control in guard.controls:
            self._tell(guard, control, lease_messages.Asked(command, objection), now_ns)
            return
        why = "it is not there" if guard is None else "it has none that could be set"
        reason = f"{command.gpu}: could not change the {words(control)}: {why}. Measure only."
        outcome = ControlRefused(now_ns, command.command, command.gpu, "device", reason)
        self._journal.say(outcome)
        self._reply(outcome)

    def decided_elsewhere(self, command: lease_messages.Command | SetPlan) -> str | None:
        """Return why a command is not for its analyzer to give: another one decides on the same run.

        Both give their commands the same names: an outcome in the log would be that of the other's command.
        """
        guard = self._guards.get(command.gpu)
        control = "graphics_clock" if isinstance(command, SetPlan) else command.control
        guarding = None if guard is None else guard.controls.get(control)
        held = None if guarding is None else guarding.state.lease
        if held is None or held.owner == command.owner or held.over(monotonic_ns()):
            return None
        if not isinstance(command, ReleaseControl) and command.run != held.run:
            return None
        return (
            f"{command.gpu}: could not be commanded: run {held.run} of {held.owner} holds it, an analyzer"
            " that decides on the same run. Stop one of the two, or start one with --select none."
        )

    def renew(self, renewal: RenewLeases) -> None:
        for gpu in renewal.gpus:
            if (guard := self._guards.get(gpu)) is not None:
                for control, guarding in guard.controls.items():
                    if guarding.state.lease is not None:  # else there is nothing to renew
                        self._tell(guard, control, renewal, monotonic_ns())

    def owner_disconnected(self, owner: str, until_ns: int) -> None:
        """Let the leases of an owner last no longer than this, unless it renews them."""
        for guard in self._guards.values():
            for control, guarding in guard.controls.items():
                lease_now = guarding.state.lease
                if lease_now is not None and lease_now.owner == owner and until_ns < lease_now.deadline_ns:
                    event = lease_messages.OwnerDisconnected(owner, until_ns)
                    self._tell(guard, control, event, monotonic_ns())

    def guard(self, gpu: str) -> SupervisedDevice | None:
        """Return a device that was found."""
        return self._guards.get(gpu)

    def change_clock(self, gpu: str, change: ChangeClock) -> None:
        """Lock the graphics clock of a device under its lease."""
        self._guards[gpu].watch.do(change)

    def end_plan(self, gpu: str, reason: str) -> None:
        """End the lease under which clocks of a device follow a plan: its clock is unlocked."""
        self._tell(self._guards[gpu], "graphics_clock", lease_messages.PlanEnded(reason), monotonic_ns())

    def run_gone(self, run: str, gpus: Collection[str]) -> None:
        """Let go of what a run has set on its GPUs: it has no session on this host any more."""
        for gpu, guard in self._guards.items():
            if gpu in gpus:
                self._tell_all(guard, lease_messages.RunGone(run))

    def use(self, gpus: Iterable[str], closely: Container[str] | None = None) -> None:
        """Read these devices, and the parts of the host. ``closely``: those with short windows; None: all."""
        now_ns, wanted = monotonic_ns(), set(gpus)
        for guard in self._guards.values():
            if guard.watch.gpu in wanted or of_host(guard.watch.gpu):
                guard.used_ns = now_ns
                guard.watch.relax(relaxed=False)
                guard.watch.sampled.closely = closely is None or guard.watch.gpu in closely

    def relax(self) -> None:
        """Read the devices that no session has used for UNUSED_NS, and that nothing is set of, seldom."""
        now_ns = monotonic_ns()
        for guard in self._guards.values():
            held = any(guarding.state.lease is not None for guarding in guard.controls.values())
            guard.watch.relax(relaxed=not held and now_ns - guard.used_ns >= UNUSED_NS)

    async def processes(self, gpu: str) -> ProcessesSeen:
        """Return who computes on a device now, and how full its memory is."""
        guard = self._guards[gpu]
        seen = guard.processes_seen
        guard.watch.do(SeeProcesses())
        with anyio.move_on_after(SEE_S) as waited:
            await seen.wait()
        return ProcessesSeen() if waited.cancelled_caught else guard.processes

    def log_readings(self) -> bool:
        """Log the readings that have come together. Return whether there were any."""
        rows: list[bytes] = []
        for watch in (watches := self._watches.values()):
            rows += watch.take_rows(MAX_ROWS - len(rows))
        if dropped := sum(watch.sampled.take_dropped() for watch in watches):
            self._journal.lose("readings", dropped, "the collector's event loop did not keep up")
        if rows:  # a device that was never found has a place, but no row refers to it
            gpus = tuple(watch.gpu or "-" for watch in watches)
            self._journal.readings(Readings(gpus, b"".join(rows)), len(rows))
        return bool(rows)

    def say_alive(self) -> None:
        """Log which devices are at rest, in place of their readings."""
        now_ns = monotonic_ns()
        gpus = tuple(watch.gpu for watch in self._watches.values() if watch.rests(now_ns))
        if gpus:
            self._journal.readings(Readings(gpus, b""), 0)

    def beat(self) -> int | None:
        """Let time pass for leases and reads; return when to look whether a read hangs, if there is one."""
        now_ns = monotonic_ns()
        for guard in self._guards.values():
            if (profiles := guard.watch.profiles) is not None and profiles != guard.profiles:
                guard.profiles = profiles
                self._journal.say(PowerProfiles(now_ns, guard.watch.gpu, *profiles))
            for control, guarding in guard.controls.items():
                requested = guard.watch.requested(control)
                if not guarding.state.unmoved(requested, now_ns, control):
                    self._tell(guard, control, lease_messages.Beat(requested), now_ns)
        return self._poller.check(now_ns)

    # ---- tasks -----------------------------------------------------------------------------------

    async def look(self) -> None:
        """Look for devices, and go on looking."""
        while True:
            try:
                devices = await run_sync(self._bus.discover)
                await anyio.lowlevel.checkpoint()  # stopped in the meantime: no thread may start any more
            except DeviceError as wrong:
                if self.trouble != str(wrong):
                    _log.warning("%s", wrong)
                self.trouble = str(wrong)
            else:
                self.trouble = None
                for device in devices:
                    if id(device) not in self._watches and len(self._watches) < MAX_DEVICES:
                        watch = self._watches[id(device)] = DeviceThread(
                            ReadOnlyDevice(device) if self._settings.observe else device,
                            len(self._watches),
                            self._mail,
                            self._poller,
                            self._where.records,
                            cards=self._where.cards,
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
            self._tell_all(guard, lease_messages.Stopping())
        with anyio.move_on_after(SHUTDOWN_S):
            while any(self._unsettled()):
                self._take_in_all()
                self.beat()
                await anyio.sleep(_TURN_S)
        ended = await run_sync(self._poller.stop, JOIN_S)
        for watch in self._watches.values():
            watch.do(Stop())
        for watch in self._watches.values():
            if not await run_sync(watch.join, JOIN_S):
                ended = False
                _log.error("%s: a call to its driver does not return.", watch.gpu)
        self._take_in_all()
        self.log_readings()
        for gpu, control, state in self._unsettled():
            _log.error(
                "%s: could not be restored to %s. Its record stays for the next start.",
                gpu,
                spell(control, state.limits.found),
            )
        if ended:  # else a call that returns later is still reported, to nobody
            self._mail.close()

    def _unsettled(self) -> Iterator[tuple[str, Control, lease.ControlState]]:
        """Give GPU, control and state where something of ours may be in force, or is under way."""
        for guard in self._guards.values():
            for control, guarding in guard.controls.items():
                if not guarding.state.at_rest:
                    yield guard.watch.gpu, control, guarding.state

    # ---- what threads say -------------------------------------------------------------------------

    def _take_in_all(self) -> None:
        while (item := self._mail.take()) is not None:
            self._take_in(*item)

    def _take_in(self, watch: DeviceThread, news: News) -> None:
        guard = self._guards.get(watch.gpu)
        match news:
            case DeviceAnswers():
                self._find(watch, news)
            case RecordsRead():
                if guard is not None:
                    self._take_up(guard, news.controls, news.t_ns, news.requested_mw)
            case Gone(t_ns, reason):
                if guard is not None:
                    guard.there = False
                self.log_readings()  # what was read before comes first
                self._journal.say(DeviceGone(t_ns, watch.gpu, reason[:2000]))
            case Happened(t_ns, control, event):
                if guard is not None:
                    self._tell(guard, control, event, t_ns)
            case ChangeFailed(reason):
                self.end_plan(watch.gpu, reason)
            case ProcessesSeen():
                if guard is not None:
                    guard.processes = news
                    guard.processes_seen.set()
                    guard.processes_seen = anyio.Event()
            case Crashed(error):
                if not self._stopping:
                    raise error
                _log.error("%s: its thread failed.", watch.gpu, exc_info=error)

    def _find(self, watch: DeviceThread, found: DeviceAnswers) -> None:
        guard = self._guards.get(watch.gpu)
        if guard is not None:
            guard.description, guard.there = found.description, True
            for control in guard.controls:
                if control != "power_limit":
                    self._tell(guard, control, lease_messages.Returned(), found.t_ns)
        else:
            guard = self._guards[watch.gpu] = SupervisedDevice(watch=watch, description=found.description)
        self._take_up(guard, found.controls, found.t_ns, found.requested_mw)

    def _take_up(
        self,
        guard: SupervisedDevice,
        controls: Iterable[FoundControl],
        t_ns: int,
        requested_mw: int | None,
    ) -> None:
        """Log what a device is, and take those of its controls under guard that are not yet."""
        todo: list[tuple[Control, tuple[lease_messages.Instruction, ...]]] = []
        for each in controls:
            known = guard.controls.get(each.control)
            if known is None or (known.rules.trouble is not None and each.trouble is None):
                todo.append((each.control, self._begin(guard, each, t_ns)))
        limit, description = guard.controls.get("power_limit"), guard.description
        self._journal.say(
            DeviceFound(
                t_ns=t_ns,
                gpu=description.gpu,
                index=description.index,
                name=description.name,
                driver=description.driver,
                counts_energy=description.counts_energy,
                min_limit_mw=description.min_limit_mw,
                max_limit_mw=description.max_limit_mw,
                default_limit_mw=description.default_limit_mw,
                found_limit_mw=requested_mw if limit is None else limit.state.limits.found,
                mig=description.mig,
                scope=description.scope,
                tenants=description.tenants,
                graphics_clocks_mhz=description.graphics_clocks_mhz,
                error_ppm=description.error_ppm,
            )
        )
        for control, instructions in todo:
            self._carry_out(guard, control, instructions)

    # ---- leases ------------------------------------------------------------------------------------

    def _begin(
        self, guard: SupervisedDevice, found: FoundControl, now_ns: int
    ) -> tuple[lease_messages.Instruction, ...]:
        """Take a control under guard; return what to do about a record found with it."""
        description, left = guard.description, found.left
        rules = lease.LeaseRules(
            gpu=description.gpu,
            incarnation=self._incarnation,
            least_mw=description.min_limit_mw or 0,
            observe=self._settings.observe,
            trouble=found.trouble,
            control=found.control,
            clocks_mhz=description.clocks_mhz(found.control),
            profiles=description.power_profiles,
        )
        state, todo = lease.begin(
            rules,
            found.requested,
            None if left is None else left.limits,
            same_boot=left is not None and left.boot_id == self._boot_id,
            now_ns=now_ns,
            settled=None if left is None else left.settled,
        )
        if (known := guard.controls.get(found.control)) is not None:
            state = replace(state, outcomes=known.state.outcomes, fences=known.state.fences)
        guard.controls[found.control] = SupervisedControl(rules, state)
        return todo

    def _tell_all(self, guard: SupervisedDevice, event: lease_messages.Event) -> None:
        """Tell something that concerns every control of a device."""
        for control in guard.controls:
            self._tell(guard, control, event, monotonic_ns())

    def _tell(
        self, guard: SupervisedDevice, control: Control, event: lease_messages.Event, now_ns: int
    ) -> None:
        if (guarding := guard.controls.get(control)) is not None:
            beside = tuple(
                other.state.lease
                for other in guard.controls.values()
                if other is not guarding and other.state.lease is not None
            )
            trouble = guarding.rules.trouble or self._unguarded()
            rules = replace(guarding.rules, trouble=trouble, beside=beside)
            guarding.state, todo = lease.step(rules, guarding.state, event, now_ns)
            self._carry_out(guard, control, todo)

    def _carry_out(
        self, guard: SupervisedDevice, control: Control, todo: tuple[lease_messages.Instruction, ...]
    ) -> None:
        for instruction in todo:
            match instruction:
                case lease_messages.Say(note):
                    self._journal.say(note)
                    if isinstance(note, lease_messages.Outcome):
                        self._reply(note)
                case lease_messages.Repeat():
                    self._reply(instruction)
                case _:
                    guard.watch.do(Do(control, instruction))


class Beats:
    """The collector's clock: what only time brings is done here, and nothing wakes before it is due.

    while somebody waits (a command, a question, a young run)     every BEAT_NS: readings are logged at once
    while a lease is held, or a device is read closely            every REST_NS, and at the end of a lease
    at rest: no lease, and every device is read seldom            after each reading of the devices; between
                                                                  them a frame without readings, each ALIVE_NS
    """

    def __init__(
        self,
        guards: Supervisor,
        journal: LogFeed,
        gather_ns: Callable[[int], int],
        each_second: Callable[[], None],
        log_bytes: int,
        log_ns: int,
    ) -> None:
        """Begin with readings that were never logged.

        Args:
            guards: the devices.
            journal: gets their readings.
            gather_ns: returns how long readings may come together at an instant, ns (CLOCK_MONOTONIC).
            each_second: logs the clocks, and tells the guards which devices are used.
            log_bytes: limit of the log.
            log_ns: limit of the log's age.
        """
        self._guards, self._journal, self._gather_ns, self._each_second = (
            guards,
            journal,
            gather_ns,
            each_second,
        )
        self._log_bytes, self._log_ns = log_bytes, log_ns
        self._bell = anyio.Event()
        self._logged_ns = self._kept_ns = self._relaxed_ns = 0
        self._forgets = False
        """The log had something to forget, so it may have more."""

    def hurry(self) -> None:
        """Let the next beat be due."""
        self._bell.set()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self._bell = anyio.Event()
            pause_s = self._beat()
            with anyio.move_on_after(pause_s):
                await self._bell.wait()

    def _beat(self) -> float:
        """Do what is due, and return how long nothing will be, s."""
        now_ns = monotonic_ns()
        gather_ns = self._gather_ns(now_ns)
        resting = self._resting()
        if resting or now_ns - self._logged_ns >= gather_ns:
            if not self._guards.log_readings() and resting:
                self._guards.say_alive()
            self._logged_ns = now_ns
        check_ns = self._guards.beat()
        self._journal.flush()
        if now_ns - self._relaxed_ns >= RELAX_NS:
            self._relaxed_ns = now_ns
            self._each_second()
            self._guards.relax()
        if self._forgets or now_ns - self._kept_ns >= (KEEP_AT_REST_NS if resting else KEEP_NS):
            self._kept_ns = now_ns
            self._forgets = bool(self._journal.prune(self._log_bytes, self._log_ns))
        pause_ns = self._pause_ns(now_ns, hurried=not gather_ns or self._forgets, resting=resting)
        return (pause_ns if check_ns is None else min(pause_ns, max(check_ns - now_ns, 0))) / 1e9

    def _pause_ns(self, now_ns: int, *, hurried: bool, resting: bool) -> int:
        if hurried:
            return to_next_ns(now_ns, BEAT_NS)
        if resting and self._journal.trouble is None:
            return to_next_ns(now_ns - AFTER_READING_NS, schedule.ALIVE_NS)
        rest_ns = to_next_ns(now_ns, REST_NS)
        return min((rest_ns, *(max(due_ns - now_ns, 0) for due_ns in self._due_ns(now_ns))))

    def _resting(self) -> bool:
        """Tell whether no control is changed, or about to be, and no device is read closely."""
        return all(
            guard.watch.at_rest and all(each.state.at_rest for each in guard.controls.values())
            for guard in self._guards.guards
        )

    def _due_ns(self, now_ns: int) -> Iterator[int]:
        """Yield when leases end, and when failed restores are tried again."""
        for guard in self._guards.guards:
            for each in guard.controls.values():
                if each.state.lease is not None and not each.state.lease.over(now_ns):
                    yield each.state.lease.deadline_ns
                elif each.state.limits.changed and each.state.retry_ns > now_ns:
                    yield each.state.retry_ns
