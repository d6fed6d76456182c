"""The shell of the collector: opens everything, answers the control socket, and closes everything.

    device threads -- rows, news --> guards --+                    +-- feed
          ^                            |      +--> journal (log) --+
          +------ instructions --------+      |
    publish socket -- events --> intake ------+
    control socket -- commands --> service --> guards

One task a source, all in one thread. Calls to devices and writes of restore records block: they are made
in the devices' own threads (`sampling`).
"""

import ctypes
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from os import geteuid
from secrets import token_hex
from typing import TypeAlias, cast, get_args

import anyio

from collectors.control import spell, words
from collectors.controls.device_thread import Watch
from collectors.controls.lease import Outcome
from collectors.controls.supervisor import Guard, Guarding, Guards
from collectors.controls.watchdog_process import Warden
from collectors.device import Bus, watts
from collectors.log.feed import Journal
from collectors.log.sqlite import Log
from collectors.publish_server import Intake
from zeus_stream.clock import anchor, boot_id, monotonic_ns, to_next_s
from zeus_stream.errors import MalformedError, StorageError
from zeus_stream.paths import Places, claim, places, prepare
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
from zeus_stream.protocol.events import Advice, Answer, Ask, AskTry
from zeus_stream.protocol.fields import Control
from zeus_stream.protocol.notes import ClockAnchored, CollectorStarted, Lost
from zeus_stream.protocol.queries import AskStatus, No, Reply, Status
from zeus_stream.settings import Settings
from zeus_stream.transport import limits, sockets
from zeus_stream.transport.access import Gate
from zeus_stream.transport.keys import Role

SWITCH_S = 0.0001
PR_SET_TIMERSLACK = 29
BEAT_S = 0.05
KEEP_S = 2.0
"""Between two looks at what the log may forget."""
RELAX_S = 1.0
"""Between two looks at which devices sessions use."""
ANCHOR_S = 60.0
FETCH_BYTES = 1_000_000
"""Frames in one reply to a fetch, about."""
PUBLISH_QUEUE = 32
"""Messages queued per publisher: strangers too may send here."""
MAX_COMMANDS = 1_000
"""Commands whose sender is remembered; the oldest is forgotten."""
Asked: TypeAlias = Hello | Fetch | SetControl | ReleaseControl | RenewLeases | AskStatus | Answer | Advice
Row: TypeAlias = tuple[str, str, str]


async def collect(
    settings: Settings, bus: Bus, *, environ: Mapping[str, str], started: Callable[[str], None]
) -> None:
    """Run the collector until cancelled; on the way out everything is put back.

    Args:
        started: called once, with a sentence for people, when every socket is open.

    Raises:
        SettingsError, StorageError, RefusedError: it cannot start; the sentence says what to do.
    """
    _wake_in_time()
    where = places(environ)
    prepare(where, settings.group)
    host = host_name(settings)
    with (
        closing(bus),
        claim(where.run / "collector.lock", "collector"),
        closing(Log(where.log, host, boot_id())) as log,
    ):
        context = sockets.context()
        try:
            doors = _open(context, where, settings)
            await Collector(settings, bus, where, log, doors, host).run(started)
        finally:
            context.destroy(linger=0)


def _wake_in_time() -> None:
    """Have threads run when they are due: looks at a counter that come late place its change badly.

    By default Linux gathers wake-ups within 50 us, and a Python thread waits 5 ms for another to give way.
    """
    sys.setswitchinterval(SWITCH_S)
    ctypes.CDLL(None).prctl(
        PR_SET_TIMERSLACK, ctypes.c_ulong(1)
    )  # threads inherit it; if refused, all stays as it is


def host_name(settings: Settings) -> str:
    """Return the name under which this host appears in the log."""
    return (settings.host or socket.gethostname())[:100]


@dataclass(frozen=True, slots=True)
class Doors:
    """The sockets that others come to."""

    publish: sockets.Channel
    control: sockets.Channel
    feed: sockets.Channel
    gate: Gate
    """Control and feed, for other hosts."""


def _open(context: sockets.Context, where: Places, settings: Settings) -> Doors:
    control = sockets.listen(context, where.control, group=settings.group)
    feed = sockets.listen(context, where.feed, feed=True, group=settings.group)
    return Doors(
        sockets.listen(context, where.publish, mode=0o666, queue=PUBLISH_QUEUE),
        control,
        feed,
        Gate(context, settings.listen, where.keys, {"control": control, "feed": feed}),
    )


class Collector:
    """One collector, from its start to its end."""

    def __init__(
        self, settings: Settings, bus: Bus, where: Places, log: Log, doors: Doors, host: str
    ) -> None:
        self._settings = settings
        self._where = where
        self._store = log
        self._control = doors.control
        self._gate = doors.gate
        self._channels = doors.publish, doors.control, doors.feed
        self._host = host
        self._incarnation = token_hex(8)
        self._journal = Journal(log, doors.feed, host)
        self._warden = None if settings.observe else Warden(settings.device, where)
        self._guards = Guards(
            settings,
            bus,
            where.records,
            self._journal,
            self._incarnation,
            self._reply_outcome,
            lambda: None if self._warden is None else self._warden.trouble,
        )
        trusted = frozenset({0, geteuid(), *settings.trust_uid})
        self._intake = Intake(doors.publish, self._journal, self._guards, trusted, self._pass_on)
        self._analyzer: bytes | None = None
        self._commands: dict[str, tuple[bytes, bytes]] = {}
        """Sender and correlation of each command that has no outcome yet."""
        self._malformed = 0
        self._cuts = 0

    async def run(self, started: Callable[[str], None]) -> None:
        """Work until cancelled, then put everything back."""
        memories = self._store.sessions()
        self._say_hello()
        async with anyio.create_task_group() as tasks:
            try:
                if self._warden is not None:
                    await self._warden.start()
                    tasks.start_soon(self._warden.keep)
                tasks.start_soon(self._guards.listen)
                tasks.start_soon(self._guards.look)
                tasks.start_soon(self._intake.serve, memories)
                tasks.start_soon(self._serve_control)
                tasks.start_soon(self._gate.run)
                tasks.start_soon(limits.keep, self._channels, self._say_cut)
                tasks.start_soon(limits.give_back)
                tasks.start_soon(self._beat)
                tasks.start_soon(self._keep)
                tasks.start_soon(self._relax)
                tasks.start_soon(self._tell_time)
                started(f"samples {self._settings.device}, takes in events at {self._where.publish}")
                await anyio.sleep_forever()
            finally:
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._guards.stop()
                    if self._warden is not None:
                        await self._warden.close()
                self._journal.flush()

    def _say_hello(self) -> None:
        now = anchor()
        self._journal.say(
            CollectorStarted(
                now.monotonic_ns,
                self._incarnation,
                _version(),
                boot_id(),
                now.wall_ns,
                now.error_ns,
                self._settings.observe,
            )
        )
        if self._store.begun_anew is not None:
            self._journal.say(Lost(now.monotonic_ns, "log", 1, f"begun anew: {self._store.begun_anew}"))

    def _say_cut(self, reason: str) -> None:
        self._cuts += 1
        self._journal.say(Lost(monotonic_ns(), "connections", 1, reason))

    # ---- what only time brings -------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            self._guards.beat()
            self._journal.flush()
            await anyio.sleep(to_next_s(BEAT_S))

    async def _keep(self) -> None:
        """Let the log forget what is too old or too much."""
        most_bytes = self._settings.log_mb * 1_000_000
        most_ns = round(self._settings.log_hours * 3.6e12)
        while True:
            if not self._journal.prune(most_bytes, most_ns):
                await anyio.sleep(KEEP_S)
            await anyio.lowlevel.checkpoint()

    async def _relax(self) -> None:
        """Read closely what sessions use, and the rest seldom."""
        while True:
            if any(not session.over for session in self._intake.sessions):
                self._guards.use(self._intake.gpus_in_use())
            self._guards.relax()
            await anyio.sleep(RELAX_S)

    async def _tell_time(self) -> None:
        while True:
            await anyio.sleep(ANCHOR_S)
            now = anchor()
            self._journal.say(ClockAnchored(now.monotonic_ns, now.wall_ns, now.error_ns))

    # ---- control ---------------------------------------------------------------------------------------

    async def _serve_control(self) -> None:
        while True:
            for message in await self._control.receive():
                self._receive(message)

    def _receive(self, message: sockets.Received) -> None:
        try:
            correlation, payload = message.parts
        except ValueError:
            self._malformed += 1
            return
        try:
            request = cast("Asked", codec.decode(payload, *get_args(Asked)))
        except MalformedError as wrong:
            self._malformed += 1
            self._control.send(message.sender, correlation, codec.encode(No(str(wrong)[:2000])))
            return
        if (objection := self._gate.objection(message, _role(request))) is not None:
            self._control.send(message.sender, correlation, codec.encode(No(objection)))
            return
        match request:
            case SetControl() | ReleaseControl():
                self._expect(request.command, message.sender, correlation)
                objection = (
                    self._intake.objection(request.run, request.gpu)
                    if isinstance(request, SetControl)
                    else None
                )
                self._guards.command(request, objection)
            case RenewLeases():
                self._guards.renew(request)
            case Answer() | Advice():
                self._intake.answer(request)
            case Hello() | Fetch() | AskStatus():
                parts = self._answer(request, message.sender)
                self._control.send(message.sender, correlation, *parts)

    def _answer(self, request: Hello | Fetch | AskStatus, sender: bytes) -> list[bytes]:
        match request:
            case Hello(role):
                if role == "analyzer":
                    self._analyzer = sender
                extent = self._store.extent
                welcome: Reply = Welcome(
                    self._host,
                    self._incarnation,
                    extent.log_id,
                    extent.first_offset,
                    extent.next_offset,
                    self._settings.observe,
                )
                return [codec.encode(welcome)]
            case Fetch():
                return self._fetch(request)
            case AskStatus():
                return [codec.encode(Status(tuple(self._status())))]

    def _guard(self) -> str:
        if self._warden is None:
            return "none is needed"
        return self._warden.trouble or f"process {self._warden.pid}"

    def _fetch(self, request: Fetch) -> list[bytes]:
        extent = self._store.extent
        frames = []
        if request.log_id == extent.log_id:
            try:
                frames = self._store.fetch(request.first_offset, request.count, FETCH_BYTES)
            except StorageError as wrong:
                return [codec.encode(No(str(wrong)[:2000]))]
        first = frames[0].offset if frames else request.first_offset
        fetched = Fetched(extent.log_id, first, extent.first_offset, extent.next_offset)
        return [codec.encode(fetched), *(part for frame in frames for part in codec.encode_frame(frame))]

    def _expect(self, command: str, sender: bytes, correlation: bytes) -> None:
        if command not in self._commands and len(self._commands) >= MAX_COMMANDS:
            del self._commands[next(iter(self._commands))]
        self._commands[command] = sender, correlation

    def _reply_outcome(self, outcome: Outcome) -> None:
        if (asked := self._commands.pop(outcome.command, None)) is not None:
            sender, correlation = asked
            self._control.send(sender, correlation, codec.encode(outcome))

    def _pass_on(self, ask: Ask | AskTry) -> bool:
        return self._analyzer is not None and self._control.send(self._analyzer, bytes(8), codec.encode(ask))

    # ---- status ----------------------------------------------------------------------------------------

    def _status(self) -> list[Row]:
        extent = self._store.extent
        frames = extent.next_offset - extent.first_offset
        sessions = self._intake.sessions
        rows = [
            ("collector", "host", self._host),
            ("collector", "directory", str(self._where.run)),
            ("collector", "observes only", "yes" if self._settings.observe else "no"),
            ("collector", "guard", self._guard()),
            ("collector", "analyzer", "none" if self._analyzer is None else "connected"),
            ("log", "id", extent.log_id),
            ("log", "frames", f"{frames}, from {extent.first_offset} to {extent.next_offset}"),
            ("log", "size", f"{self._store.size_bytes / 1e6:.1f} of {self._settings.log_mb} MB"),
            ("log", "trouble", self._journal.trouble or "none"),
            ("log", "failed writes", str(self._journal.failures)),
            ("log", "readings and notes dropped", str(self._journal.dropped)),
            ("publish", "sessions", f"{sum(not s.over for s in sessions)} of {len(sessions)} open"),
            ("publish", "messages refused", str(self._intake.senders.wrong_messages)),
            ("control", "messages refused", str(self._malformed)),
            ("sockets", "times all connections were cut", str(self._cuts)),
        ]
        rows += [
            ("publish", f"refused of process {pid} of user {uid}", str(count))
            for (uid, pid), count in list(self._intake.senders.wrongs().items())[:100]
        ]
        rows += [
            ("runs", session.run, f"{session.job} on {', '.join(session.gpus) or 'no GPU'}"[:2000])
            for session in sessions
            if not session.over
        ]
        rows += self._gate.status()
        if self._guards.trouble is not None:
            rows.append(("devices", "none", self._guards.trouble))
        for guard in self._guards.guards:
            rows += _device_rows(guard)
        return rows


def _role(request: Asked) -> Role:
    """Return what somebody on another host needs, to ask this."""
    match request:
        case Hello("watcher") | Fetch() | AskStatus():
            return "follow"
        case _:
            return "command"


def _device_rows(guard: Guard) -> list[Row]:
    watch = guard.watch
    section = f"{guard.description.name} {watch.gpu}"
    period = "not known yet" if watch.period_ns is None else f"{watch.period_ns / 1e6:.1f} ms"
    rows = [
        (section, "state", watch.trouble or ("there" if guard.there else "lost")),
        (section, "refreshes every", period),
        (section, "reads", f"{watch.reads}, {watch.retries} failed and tried again"),
    ]
    if "power_limit" not in guard.controls:
        rows.append((section, "power limit", "cannot be set"))
    for control, guarding in guard.controls.items():
        rows += [(section, *row) for row in _control_rows(watch, control, guarding)]
    return rows


def _control_rows(watch: Watch, control: Control, guarding: Guarding) -> list[tuple[str, str]]:
    state = guarding.state
    name = words(control)
    which = "" if control == "power_limit" else f"{name}: "
    if control == "power_limit":
        rows = [(name, f"{_watts(watch.requested_mw)}, found {spell(control, state.limits.found)}")]
    else:
        rows = [
            (
                name,
                f"locked at {spell(control, state.limits.last)}"
                if state.limits.changed
                else "not locked by us",
            )
        ]
    if guarding.rules.trouble is not None:
        rows.append((f"{which}restore record", guarding.rules.trouble))
    if state.lease is not None:
        left_s = (state.lease.deadline_ns - monotonic_ns()) / 1e9
        lease = f"run {state.lease.run} of {state.lease.owner}, {max(left_s, 0):.1f} s left"
        rows.append((f"{which}lease", lease))
    if state.failures:
        rows.append((f"{which}failed restores", str(state.failures)))
    return rows


def _watts(limit_mw: int | None) -> str:
    return "not known" if limit_mw is None else watts(limit_mw)


def _version() -> str:
    try:
        return version("zeus-stream")
    except PackageNotFoundError:
        return "not installed"
