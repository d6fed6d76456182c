"""The task tree of the collector: opens everything, runs one task a source, and closes everything.

    poller, devices -- rows, news -> guards --+                    +-- feed
          ^                            |      +--> journal (log) --+
          +------ instructions --------+      |
    publish socket -- events --> publish_server+
    control socket -- commands --> control_server --> guards

One task a source, all in one thread. Calls to devices and writes of restore records block: devices are read
in the poller's thread (`sampling`), and changed in threads of their own (`controls`).
"""

import ctypes
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from os import geteuid
from secrets import token_hex
from typing import Protocol

import anyio
from msgspec import Struct

from collectors.control_server import ControlServer, Door, SocketDoor, Way
from collectors.controls.lease_messages import Outcome, Repeat
from collectors.controls.supervisor import Beats, Supervisor
from collectors.controls.watchdog_process import WatchdogProcess
from collectors.device import Bus
from collectors.devices.rapl import RaplBus
from collectors.ingest import kubelet
from collectors.ingest.analyzers_known import AnalyzersKnown
from collectors.ingest.pace import COMMAND_NS, GatherPace
from collectors.ingest.sessions import PublisherSession
from collectors.ingest.user_budget import UserBudgets
from collectors.live_host import host_snapshot
from collectors.log.boot_mark import BootMark
from collectors.log.feed import LogFeed
from collectors.log.sqlite import SqliteLog
from collectors.log.standing import Standing
from collectors.own_use import CollectorUse
from collectors.position_server import PositionServer
from collectors.publish_server import PublishServer, UserLimits
from collectors.status import Row, device_rows
from zeus_stream import own_cost
from zeus_stream.clock import anchor, boot_id, monotonic_ns
from zeus_stream.live.answer import LiveAnswers
from zeus_stream.package_version import VERSION
from zeus_stream.paths import Places, claim, places, prepare
from zeus_stream.protocol.notes import ClockAnchored, CollectorStarted, Lost
from zeus_stream.protocol.snapshots import SESSIONS_BEGUN, Snapshot
from zeus_stream.settings import Settings
from zeus_stream.transport.access import AccessGate
from zeus_stream.transport.listening.connection_limits import ConnectionLimits, process_limits
from zeus_stream.transport.listening.listener import Listener

SWITCH_S = 0.001
PR_SET_TIMERSLACK = 29
ANCHOR_NS = 60_000_000_000
"""Between two readings of both clocks that are logged, at most."""
PUBLISH_QUEUE = 32
"""Messages queued per publisher: any user may send here."""


async def collect(
    settings: Settings,
    bus: Bus,
    *,
    environ: Mapping[str, str],
    started: Callable[[str], None],
    at_site: "AtSite | None" = None,
) -> None:
    """Run the collector until cancelled; on the way out everything is put back.

    ``environ`` names the directories. ``started`` gets a sentence for people once every socket is open.
    Raises SettingsError, StorageError or RefusedError: it cannot start.
    """
    _wake_in_time()
    where = places(environ)
    prepare(where, settings.group)
    host = host_name(settings)
    with (
        closing(bus),
        claim(where.run / "collector.lock", "collector"),
        closing(SqliteLog(where.log, host, boot_id(), BootMark(where.log))) as log,
        closing(_open(where, settings)) as doors,
    ):
        await CollectorService(settings, bus, where, log, doors, host, at_site).run(started)


def _wake_in_time() -> None:
    """Wake threads on time: Linux gathers wake-ups within 50 us, Python threads wait 5 ms for another."""
    sys.setswitchinterval(SWITCH_S)
    ctypes.CDLL(None).prctl(
        PR_SET_TIMERSLACK, ctypes.c_ulong(1)
    )  # threads inherit it; if refused, all stays as it is


def host_name(settings: Settings) -> str:
    """Return the name under which this host appears in the log."""
    return (settings.host or socket.gethostname())[:100]


class Doors(Struct, frozen=True):
    """The sockets that others come to."""

    publish: Listener
    control: Listener
    feed: Listener
    gate: AccessGate
    """Control and feed, for other hosts."""
    limits: ConnectionLimits

    @property
    def listeners(self) -> tuple[Listener, ...]:
        return self.publish, self.control, self.feed

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()


def _open(where: Places, settings: Settings) -> Doors:
    shares = process_limits()
    with ExitStack() as opened:
        listen = partial(Listener, group=settings.group, limits=shares)
        control = opened.enter_context(closing(listen(where.control)))
        feed = opened.enter_context(closing(listen(where.feed, feed=True)))
        publish = opened.enter_context(
            closing(listen(where.publish, mode=0o666, group=None, queue=PUBLISH_QUEUE))
        )
        gate = AccessGate(settings.listen, where.keys, {"control": control, "feed": feed})
        opened.pop_all()
        return Doors(publish, control, feed, gate, shares)


class SitePart(Protocol):
    """The part of a collector that hands its log to a site, and takes requests from there."""

    @property
    def doors(self) -> Sequence[Door]:
        """The ways by which requests come in."""

    async def run(
        self, incarnation: str, standing: Standing, sessions: Callable[[], Sequence[PublisherSession]]
    ) -> None:
        """Relay, announce and take in requests until cancelled."""

    def status(self) -> list[Row]:
        """Return what the status shows of it."""


AtSite = Callable[[SqliteLog, str], SitePart]
"""Makes that part of a log and the host's name. Raises SettingsError."""


class CollectorService:
    """One collector, from its start to its end."""

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        where: Places,
        log: SqliteLog,
        doors: Doors,
        host: str,
        at_site: AtSite | None,
    ) -> None:
        self._settings = settings
        self._where = where
        self._store = log
        self._doors = doors
        self._host = host
        self._incarnation = token_hex(8)
        self._journal = LogFeed(log, doors.feed, host)
        self._at_site = None if at_site is None else at_site(log, host)
        self._server = ControlServer(
            [SocketDoor(doors.control, doors.gate), *(self._at_site.doors if self._at_site else ())],
            AnalyzersKnown[Way](where.epochs),
            log,
            host,
            self._incarnation,
            self._status,
            LiveAnswers(self._now).answer,
            observe=settings.observe,
        )
        watchdog = WatchdogProcess(settings.device, where, settings.set_command)
        self._watchdog = None if settings.observe else watchdog
        self._pace = GatherPace(lambda: self._beats.hurry())  # noqa: PLW0108  (made below)
        self._use_times = own_cost.RecordTimes()
        self._guards = Supervisor(
            settings,
            bus,
            where,
            self._journal,
            self._incarnation,
            self._reply,
            lambda: None if self._watchdog is None else self._watchdog.trouble,
        )
        trusted = frozenset({0, geteuid(), *settings.trust_uid})
        users = UserLimits(trusted, UserBudgets(settings.log_mb * 1_000_000))
        self._publish = PublishServer(
            doors.publish, self._journal, self._guards, users, self._server.pass_on, self._pace
        )
        self._publish.run_ended = self._use_times.run_ended
        self._publish.kubelet = settings.kubelet or (kubelet.SOCKET if kubelet.SOCKET.exists() else None)
        kept = settings.log_mb * 1_000_000, round(settings.log_hours * 3.6e12)
        self._beats = Beats(self._guards, self._journal, self._pace.gather_ns, self._each_second, *kept)
        placed = where.position, doors.limits
        self._positions = PositionServer(*placed, self._guards, lambda: self._publish.sessions)
        self._own_use = CollectorUse(host, None if settings.cpu == "off" else RaplBus(host))
        self._anchor = anchor()
        """The clocks as logged last."""

    async def run(self, started: Callable[[str], None]) -> None:
        """Work until cancelled, then put everything back."""
        memories = self._store.sessions()
        self._say_hello()
        async with anyio.create_task_group() as tasks:
            try:
                if self._watchdog is not None:
                    await self._watchdog.start()
                    tasks.start_soon(self._watchdog.keep)
                tasks.start_soon(self._guards.listen)
                tasks.start_soon(self._guards.look)
                tasks.start_soon(self._publish.serve, memories)
                tasks.start_soon(self._server.serve, self._guards, self._publish, self._positions)
                tasks.start_soon(self._positions.serve)
                tasks.start_soon(self._doors.gate.run)
                tasks.start_soon(self._doors.feed.serve)
                tasks.start_soon(own_cost.return_free_memory)
                tasks.start_soon(self._beats.run)
                tasks.start_soon(self._tell_own_use)
                if self._at_site is not None:
                    tasks.start_soon(
                        self._at_site.run,
                        self._incarnation,
                        self._journal.standing,
                        lambda: (*self._publish.earlier, *self._publish.sessions),
                    )
                started(f"samples {self._settings.device}, takes in events at {self._where.publish}")
                await anyio.sleep_forever()
            finally:
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._guards.stop()
                    if self._watchdog is not None:
                        await self._watchdog.close()
                self._journal.flush()

    def _reply(self, outcome: Outcome | Repeat) -> None:
        if isinstance(outcome, Repeat):  # what followed from it was done
            self._server.reply(outcome.outcome)
            return
        self._pace.hurry(monotonic_ns() + COMMAND_NS)
        self._positions.settle(outcome)
        self._server.reply(outcome)

    def _say_hello(self) -> None:
        now = self._anchor = anchor()
        self._journal.say(
            CollectorStarted(
                t_ns=now.monotonic_ns,
                incarnation=self._incarnation,
                version=VERSION,
                boot_id=boot_id(),
                wall_ns=now.wall_ns,
                wall_error_ns=now.error_ns,
                observe=self._settings.observe,
            )
        )
        if self._store.started_over is not None:
            self._journal.say(Lost(now.monotonic_ns, "log", 1, f"started over: {self._store.started_over}"))

    # ---- what only time brings -------------------------------------------------------------------------

    def _each_second(self) -> None:
        """Log the clocks, have the devices read closely that sessions use, and end leases without owner."""
        if self._anchor.is_outdated(now := anchor(), ANCHOR_NS):
            self._anchor = now
            self._journal.say(ClockAnchored(now.monotonic_ns, now.wall_ns, now.error_ns))
        self._server.end_longer_leases()
        if self._positions.plans:
            self._pace.hurry(monotonic_ns() + COMMAND_NS)
        if any(not session.over for session in self._publish.sessions):
            closely = self._publish.gpus_of_short_windows(monotonic_ns())
            self._guards.use(self._publish.gpus_in_use(), closely)

    async def _tell_own_use(self) -> None:
        """Publish the collector's own use once a minute, and when a run ends."""
        while True:
            await self._use_times.next()
            self._journal.say(self._own_use.record())
            await anyio.sleep(own_cost.PAUSE_S)

    def _now(self, host: str | None) -> Snapshot:
        """Return the live state of this host, as seen by the collector."""
        return host_snapshot(
            self._journal.latest,
            self._publish.sessions,
            self._host,
            monotonic_ns(),
            version=VERSION,
            wall_ns=anchor().wall_ns,
            trouble=self._journal.trouble or self._guards.trouble or "",
            counters=[
                ("leases", self._guards.leases),
                ("failed writes of the log", self._journal.failures),
                ("messages refused", self._publish.senders.wrong_messages),
                (SESSIONS_BEGUN, self._publish.begun),
            ],
            leased_mw=self._guards.leased_mw,
            host=host,
        )

    # ---- status ----------------------------------------------------------------------------------------

    def _status(self) -> list[Row]:
        watchdog = "none is needed"
        if self._watchdog is not None:
            watchdog = self._watchdog.trouble or f"process {self._watchdog.pid}"
        extent = self._store.extent
        frames = extent.next_offset - extent.first_offset
        sessions = self._publish.sessions
        rows = [
            ("collector", "host", self._host),
            ("collector", "directory", str(self._where.run)),
            ("collector", "observes only", "yes" if self._settings.observe else "no"),
            ("collector", "watchdog", watchdog),
            ("collector", "analyzer", "connected" if self._server.connected else "none"),
            ("collector", "own processor time", own_cost.words()),
            ("collector", "own energy", self._own_use.energy),
            ("log", "id", extent.log_id),
            ("log", "frames", f"{frames}, from {extent.first_offset} to {extent.next_offset}"),
            ("log", "size", f"{self._store.size_bytes / 1e6:.1f} of {self._settings.log_mb} MB"),
            ("log", "trouble", self._journal.trouble or "none"),
            ("log", "failed writes", str(self._journal.failures)),
            ("log", "readings and notes dropped", str(self._journal.dropped)),
            ("publish", "sessions", f"{sum(not s.over for s in sessions)} of {len(sessions)} open"),
            ("publish", "messages refused", str(self._publish.senders.wrong_messages)),
            ("control", "messages refused", str(self._server.malformed)),
            ("control", "messages of analyzers that were replaced", str(self._server.stale)),
            ("positions", "plans followed", str(len(self._positions.plans))),
            ("positions", "messages that fit no plan", str(self._positions.dropped)),
            (
                "sockets",
                "connections",
                f"{len(self._doors.limits)}, at most {self._doors.limits.most}",
            ),
            ("sockets", "connections refused or closed for others", str(self._doors.limits.refused)),
            (
                "sockets",
                "connections that broke the protocol",
                str(sum(x.malformed for x in self._doors.listeners)),
            ),
        ]
        if self._at_site is not None:
            rows += self._at_site.status()
        rows += [
            ("publish", f"refused of process {pid} of user {uid}", str(count))
            for (uid, pid), count in list(self._publish.senders.wrongs().items())[:100]
        ]
        rows += [
            ("runs", session.run, f"{session.job} on {', '.join(session.gpus) or 'no GPU'}"[:2000])
            for session in sessions
            if not session.over
        ]
        rows += [("publish", *row) for row in self._publish.budgets.status(monotonic_ns())]
        rows += self._doors.gate.status()
        if self._guards.trouble is not None:
            rows.append(("devices", "none", self._guards.trouble))
        for guard in self._guards.guards:
            rows += device_rows(guard)
        return rows
