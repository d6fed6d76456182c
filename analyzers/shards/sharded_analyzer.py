"""An analyzer that shares the jobs of a site with others: it holds shards, and takes over those of another.

    a thread renews what is held -> take what is free, up to a fair share -> decide on it
    a lease that could not be renewed in time, by this process's own clock -> its shard ends here

An analyzer that was stopped and goes on finds its leases over before it does anything else for them: each
message to a collector asks its lease first. An analyzer that is stopped leaves at once, and gives each shard
up as soon as its rows are stored: the others need not wait until leases end.
"""

import logging
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync
from msgspec.structs import replace

from analyzers.archive.process.child_process import ChildProcess
from analyzers.archive.process.store_client import StoreClient
from analyzers.leases.renewal import DECIDING, Renewal, valid_until_ns
from analyzers.leases.site_leases import SiteLeases, SiteShards
from analyzers.live.live_site import LiveSite, site_head
from analyzers.service.analyzer import only_analyzer
from analyzers.shards.roll_call import RollCall
from analyzers.shards.shard import SharedSite, decide, places_of
from analyzers.shards.site_budgets import DecidedShard, SiteBudgets
from analyzers.state_files.budgets import says
from zeus_stream import own_cost
from zeus_stream.broker.exchange import Exchange
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.clock import anchor, monotonic_ns
from zeus_stream.errors import MalformedError, RefusedError, StorageError, leaves
from zeus_stream.live.answer import LiveAnswers
from zeus_stream.paths import Places
from zeus_stream.protocol import codec
from zeus_stream.protocol.fields import shard_of
from zeus_stream.protocol.queries import (
    AskResults,
    AskStatus,
    ForgetJob,
    No,
    Query,
    Status,
    StatusRows,
)
from zeus_stream.protocol.snapshots import AskNow, HostNow, Snapshot
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets
from zeus_stream.transport.listening.listener import Listener

MOVE_NS = 60_000_000_000
"""Between two shards with open runs that are left to an analyzer which has fewer."""
LOOK_S = 0.1
"""Between two looks at whether leases hold."""
SPARES = 2
"""Files that are open for take-overs: a process takes a second to start, and many on a busy host."""
SPARE_S = 2.0
"""A spare file is opened so long after the one before: a take-over needs the processor first."""
RETRY_S = 1.0
"""From the failure of a shard to the next try to take one."""
LEASE_MS = 30_000
"""Least length of the leases of limits. A limit outlasts a take-over; and if nobody takes a shard over, the
others make room under a power budget before its limits return (`budget_grants.ABANDONED_S`)."""

_log = logging.getLogger(__name__)


async def analyze_shards(
    settings: Settings,
    site: SiteSettings,
    *,
    environ: Mapping[str, str],
    started: Callable[[str], None],
    store: ChildProcess | None = None,
) -> None:
    """Run an analyzer of some shards until cancelled. Raises StorageError, RefusedError.

    ``store``: the process of its first file, if it is started.
    """
    dsn = site.dsn("analyze")
    exchange = Exchange(site, "analyze")
    settings = replace(settings, lease_ms=max(settings.lease_ms, LEASE_MS))
    with only_analyzer(settings, environ) as where:
        context = sockets.context()
        roll = RollCall(exchange, site.site)
        holder = f"{socket.gethostname()}/{os.getpid()}"
        groups = dict(settings.budget_groups)
        shared = SharedSite(
            settings=settings,
            options=site,
            where=where,
            exchange=exchange,
            roll=roll,
            context=context,
            dsn=dsn,
            holder=holder,
            budgets=SiteBudgets(SiteLeases(dsn, site.site, holder), roll, where.budgets, groups),
            analyzers={},
            started=anchor().wall_ns,
        )
        try:
            await ShardedAnalyzer(shared, store).run(started)
        finally:
            context.destroy(linger=0)


class ShardedAnalyzer:
    """The shards that one process holds."""

    def __init__(self, site: SharedSite, store: ChildProcess | None) -> None:
        """For `analyze_shards`."""
        self._site, self._store = site, store
        self._shards = site.options.shards
        self._leases = SiteLeases(site.dsn, site.options.site, site.holder)
        self._renewal = Renewal(SiteLeases(site.dsn, site.options.site, site.holder), DECIDING, self._extend)
        self._site_now = SiteShards(frozenset(), (), 1)
        """At the last renewal."""
        self._behind_ms: dict[str, int] = {}
        self._held: dict[int, DecidedShard] = {}
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._resting: dict[int, int] = {}
        """Until when (CLOCK_MONOTONIC) a shard that failed here is left to others."""
        self._spare, self._spares = anyio.create_memory_object_stream[tuple[StoreClient, Path]](0)
        self._ready = anyio.Event()
        """A spare file is open."""
        self._one_at_a_time = anyio.CapacityLimiter(1)
        """For the database: it has one connection."""
        self._files = 0
        self._given_up_ns = monotonic_ns()
        self._answers = LiveAnswers(self._now)
        self._hosts: set[str] = set()
        """That were at the broker since this process started."""

    async def run(self, started: Callable[[str], None]) -> None:
        site = self._site
        try:
            await run_sync(self._leases.open_shards, self._shards)
            started(
                f"shares {self._shards} shards of {site.options.site}, reaches hosts at"
                f" {site.exchange.servers}"
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(site.exchange.run)
                tasks.start_soon(site.roll.run)
                tasks.start_soon(site.budgets.run)
                tasks.start_soon(self._serve_status)
                tasks.start_soon(own_cost.return_free_memory)
                tasks.start_soon(self._watch)
                tasks.start_soon(self._keep_spare)
                try:
                    await self._ready.wait()
                    for _ in range(1, SPARES):
                        tasks.start_soon(self._keep_spare, SPARE_S)
                    await self._keep_share(tasks)
                finally:
                    with anyio.CancelScope(shield=True):
                        await run_sync(self._leave, limiter=self._one_at_a_time)
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(self._renewal.end)
            self._leases.close()
            self._spare.close()
            self._spares.close()

    # ---- leases

    def _extend(self, leases: SiteLeases, held: Mapping[str, int], ttl_s: float) -> frozenset[str]:
        """Renew what is held, and see how the site stands. In the thread of the renewal."""
        ready = self._ready.is_set()
        self._site_now = leases.renew_shards(held, self._behind_ms, self._shards, ttl_s, ready=ready)
        return self._site_now.kept

    def _hold(self, until_ns: int = 0) -> None:
        """Have all renewed that is held now."""
        self._renewal.hold({lease.name: lease.epoch for lease in self._held.values()}, until_ns)

    async def _keep_share(self, tasks: TaskGroup) -> None:
        """Take or give up what a fair share asks for, after each renewal, until cancelled."""
        seen, trouble = self._renewal.times, None
        while True:
            await anyio.sleep(LOOK_S)
            try:
                if self._renewal.times > seen:
                    seen = self._renewal.times
                    await self._share(self._site_now, tasks)
                wrong = self._renewal.trouble
            except StorageError as failed:
                wrong = str(failed)
            if wrong not in (None, trouble):
                _log.warning("%s", wrong)
            trouble = wrong

    async def _share(self, site: SiteShards, tasks: TaskGroup) -> None:
        fair = -(-self._shards // max(site.analyzers, 1))
        now_ns = monotonic_ns()
        if len(self._held) > fair:
            self._give_up_one(now_ns)
        for shard in site.free:
            if len(self._held) >= fair:
                return
            if shard in self._held or self._resting.get(shard, 0) > now_ns:
                continue
            ttl_s = self._renewal.ttl_s
            until_ns = valid_until_ns(ttl_s)
            epoch = await run_sync(self._leases.take_shard, shard, ttl_s, limiter=self._one_at_a_time)
            if epoch is not None:
                lease = DecidedShard(shard, epoch, self._renewal)
                self._held[shard], self._scopes[shard] = lease, anyio.CancelScope()
                self._hold(until_ns)
                tasks.start_soon(self._decide, lease, self._scopes[shard])

    def _give_up_one(self, now_ns: int) -> None:
        """Leave a shard to another analyzer: one without runs at once, one with runs seldom."""
        busy = [
            {shard_of(run.job, self._shards) for run in announced.runs}
            for announced in self._site.roll.hosts.values()
        ]
        hosts = {shard: sum(shard in shards for shards in busy) for shard in self._held}
        shard = min(hosts, key=lambda each: hosts[each])
        if not hosts[shard] or now_ns - self._given_up_ns > MOVE_NS:
            self._given_up_ns = now_ns
            _log.info("shard %d: is left to another analyzer.", shard)
            self._scopes[shard].cancel()

    async def _watch(self) -> None:
        """End each shard that another analyzer has, or whose lease is over by this process's own clock."""
        while True:
            await anyio.sleep(LOOK_S)
            self._renewal.step()
            self._behind_ms = {lease.name: lease.behind_ns() // 1_000_000 for lease in self._held.values()}
            for shard, lease in self._held.items():
                if not lease.valid and not self._scopes[shard].cancel_called:
                    lost = (lease.name, lease.epoch) in self._renewal.lost
                    why = (
                        "another analyzer has taken it over" if lost else "its lease was not renewed in time"
                    )
                    _log.warning("shard %d: %s; it ends here.", shard, why)
                    self._scopes[shard].cancel()

    async def _decide(self, lease: DecidedShard, scope: anyio.CancelScope) -> None:
        """Decide on a shard until it ends here, then give it up. Its file is closed after that."""
        shard, file = lease.shard, None
        try:
            with scope:
                file, path = await self._spares.receive()
                name_file(places_of(self._site.where, shard), path)
                await decide(self._site, lease, file, path)
        except* (RefusedError, StorageError) as group:
            for wrong in leaves(group):
                _log.warning("shard %d: %s", shard, wrong)
        finally:
            with anyio.CancelScope(shield=True):
                self._resting[shard] = monotonic_ns() + round(RETRY_S * 1e9)
                try:
                    await run_sync(self._leases.release, lease.name, lease.epoch, limiter=self._one_at_a_time)
                except StorageError as wrong:
                    _log.warning("shard %d: %s", shard, wrong)
                if file is not None:
                    await run_sync(file.close)
                del self._held[shard], self._scopes[shard]
                self._hold()

    def _leave(self) -> None:
        try:
            self._leases.leave()
        except StorageError as wrong:
            _log.warning("%s", wrong)

    # ---- files

    async def _keep_spare(self, later_s: float = 0.0) -> None:
        """Have a file open for the next take-over, until cancelled. It is handed over to one shard."""
        await anyio.sleep(later_s)
        while True:
            spare = await run_sync(self._open)
            self._ready.set()
            try:
                await self._spare.send(spare)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await run_sync(self._discard, *spare)
                raise
            if not self._spare.statistics().tasks_waiting_receive:
                await anyio.sleep(SPARE_S)

    @staticmethod
    def _discard(file: StoreClient, path: Path) -> None:
        file.close()
        path.unlink(missing_ok=True)

    def _open(self) -> tuple[StoreClient, Path]:
        self._files += 1
        path = self._site.where.state / "take-overs" / f"{self._site.started}-{self._files}.duckdb"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        store, self._store = self._store, None
        return StoreClient.open(path, self._site.settings, store), path

    # ---- status

    async def _serve_status(self) -> None:
        """Answer the query socket until cancelled: with the state. Each shard answers SQL at its own."""
        site = self._site
        channel = Listener(site.where.query, group=site.settings.group)
        try:
            while True:
                for message in await channel.receive():
                    if len(message.parts) == 2:
                        correlation, payload = message.parts
                        channel.send(message.sender, correlation, self._reply(payload))
        finally:
            channel.close()

    def _reply(self, payload: bytes) -> bytes:
        try:
            request = codec.decode(payload, AskStatus, AskNow, AskResults, Query, ForgetJob)
        except MalformedError as wrong:
            return codec.encode(No(str(wrong)[:2000]))
        if isinstance(request, AskNow):
            return self._answers.answer(request, monotonic_ns())
        if isinstance(request, AskStatus):
            return codec.encode(Status(tuple(self.status())))
        return codec.encode(
            No(
                "analyze: could not answer: this analyzer has an archive for each shard. Ask one with --dir"
                f" {self._site.where.run}/shard-NUMBER, or all with `zeus-stream lake sql`."
            )
        )

    def _now(self, host: str | None) -> Snapshot:
        """Return the live state of the shards that are held, with all hosts of the site."""
        analyzers = self._site.analyzers.values()
        links = {name: link for each in analyzers for name, link in each.links().items()}
        behind_ns = max((each.behind_ns() for each in analyzers), default=0)
        head = site_head(links, None, anchor().wall_ns, behind_ns, {})
        self._hosts |= self._site.roll.hosts.keys()
        head = replace(head, hosts=with_others(head.hosts, self._hosts, self._site.roll.hosts.keys()))
        searches = {run: now for each in analyzers for run, now in each.interpretation.searches.items()}
        return LiveSite.joined(head, [each.live for each in analyzers], searches, monotonic_ns(), host)

    def status(self) -> StatusRows:
        """Return rows of the status."""
        site = self._site
        return [
            ("analyzer", "site", site.options.site),
            ("analyzer", "own processor time", own_cost.words()),
            ("analyzer", "hosts at the broker", str(len(site.roll.hosts))),
            ("analyzer", "broker", site.exchange.trouble or "connected"),
            ("analyzer", "power budgets", site.budgets.trouble or "kept by grants"),
            ("analyzer", "database", self._renewal.trouble or "answers"),
            *(
                ("shards", f"shard {shard}", f"is decided here under epoch {lease.epoch}")
                for shard, lease in sorted(self._held.items())
            ),
            *(("budgets", each.group, says(each, anchor().wall_ns)) for each in site.budgets.known),
        ]


def with_others(
    followed: Sequence[HostNow], known: Iterable[str], announced: Collection[str]
) -> tuple[HostNow, ...]:
    """Return the hosts of a site: those followed, then all others that are, or were, at the broker."""
    others = sorted(set(known) - {each.host for each in followed})
    return (
        *followed,
        *(
            HostNow(host=host, state="connected" if host in announced else "silent", trouble="")
            for host in others
        ),
    )


def name_file(where: Places, path: Path) -> None:
    """Let the archive of a shard be the file of this take-over."""
    where.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    link = where.archive.with_suffix(".new")
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    link.replace(where.archive)
