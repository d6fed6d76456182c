"""One shard of a site, under one epoch: its file, its interpreter, and the hosts of its runs.

It begins with an empty file and the memory of the shard. A host with a run of the shard's jobs is followed
from the last checkpoint on, or from the beginning of that run: the same frames give the same decisions. So
is a host whose run ended while nobody decided on the shard. A shard ends when its lease is over, when
another analyzer has taken it over, or when it is cancelled.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct

from analyzers.archive.process.store_client import StoreClient
from analyzers.checkpoints.restart import restart
from analyzers.dispatch.collector_link import Commander
from analyzers.interpreter.interpreter import Interpreter
from analyzers.leases.site_leases import SiteLeases
from analyzers.service import watched_files
from analyzers.service.analyzer import Analyzer
from analyzers.shards.brokered_collector import Begin, BrokeredCollector
from analyzers.shards.roll_call import RollCall
from analyzers.shards.shard_store import ShardStore
from analyzers.shards.site_budgets import DecidedShard, SiteBudgets
from zeus_stream.broker.channels import BrokeredHost
from zeus_stream.broker.exchange import Exchange
from zeus_stream.broker.requests import Announced, unpack_earlier
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.clock import monotonic_ns
from zeus_stream.paths import Places, claim, prepare
from zeus_stream.protocol.fields import owner_of, shard_of
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets
from zeus_stream.transport.access import AccessGate
from zeus_stream.transport.listening.listener import Listener


class LogSpan(NamedTuple):
    """The frames of a host's log between which a run of the shard is, or some runs of one job are."""

    first_offset: int
    next_offset: int | None = None
    """None: the run is open."""
    session: str = ""
    """Of a run that has ended; empty if its job alone is known."""


def spans_of(announced: Announced, shard: int, shards: int) -> tuple[LogSpan, ...]:
    """Return where in a host's log the runs of a shard are, of so many shards."""
    earlier = unpack_earlier(announced.earlier)
    return (
        *(LogSpan(run.first_offset) for run in announced.runs if shard_of(run.job, shards) == shard),
        *(
            LogSpan(run.first_offset, run.next_offset, run.session)
            for run in announced.ended
            if shard_of(run.job, shards) == shard
        ),
        *(LogSpan(job.first_offset, job.next_offset) for job in earlier if job.job_hash % shards == shard),
    )


class InterpretedShard:
    """The frames that a shard has interpreted, under this holder and the ones before."""

    def __init__(self, interpreted: Mapping[str, int], unfinished: Collection[str]) -> None:
        """Begin with a checkpoint: by log the next offset, and the sessions not measured to their end."""
        self._next = dict(interpreted)
        self._unfinished = set(unfinished)

    def follow(self, spans: Iterable[LogSpan]) -> None:
        """A host is followed from now on, so its sessions are measured to their end."""
        self._unfinished -= {span.session for span in spans}

    def reach(self, log_id: str, next_offset: int) -> None:
        """Take in how far a log is interpreted."""
        self._next[log_id] = max(next_offset, self._next.get(log_id, 0))

    def next_offset(self, log_id: str) -> int | None:
        """Return the first offset of a log that is not interpreted. None: the log was never followed."""
        return self._next.get(log_id)

    def first_offset(self, log_id: str, spans: Iterable[LogSpan]) -> int | None:
        """Return where the first span of a log begins that is not interpreted to its end. None: all are."""
        known, unfinished = self._next.get(log_id, 0), self._unfinished
        return min(
            (
                span.first_offset
                for span in spans
                if span.next_offset is None or span.next_offset > known or span.session in unfinished
            ),
            default=None,
        )


LEAVE_NS = 60_000_000_000
"""A host is followed for so long after the last run of the shard on it."""
LOOK_S = 0.25
"""Between two looks at the hosts that may be left."""

_log = logging.getLogger(__name__)


class SharedSite(Struct, frozen=True, kw_only=True):
    """The parts of an analyzer that all its shards share."""

    settings: Settings
    options: SiteSettings
    where: Places
    exchange: Exchange
    roll: RollCall
    context: sockets.Context
    dsn: str
    holder: str
    budgets: SiteBudgets
    analyzers: dict[int, Analyzer]
    """Of the shards that are decided here, from the begin of each."""
    started: int
    """UTC, ns since 1970: it names files."""


def places_of(where: Places, shard: int) -> Places:
    """Return the directories of a shard: its query socket and its files."""
    return Places(where.run / f"shard-{shard}", where.state / f"shard-{shard}")


async def decide(site: SharedSite, decided: DecidedShard, file: StoreClient, path: Path) -> None:
    """Decide on the jobs of a shard until cancelled, with a new file.

    Raises RefusedError: another analyzer has taken the shard over. StorageError: it cannot be written.
    """
    settings, where, shard = site.settings, places_of(site.where, decided.shard), decided.shard
    leases = SiteLeases(site.dsn, site.options.site, site.holder)
    channel = None
    try:
        archive = await run_sync(ShardStore, file, leases, shard, decided.epoch)
        begin = await run_sync(restart, archive, settings, None)
        watched = watched_files.take_all(site.where, begin.interpreter)
        analyzer = Analyzer(archive, path, settings, begin, ())
        site.analyzers[decided.shard] = analyzer
        decided.behind_ns = analyzer.behind_ns
        decided.ask_use = partial(analyzer.interpretation.run, Interpreter.shard_use)
        await site.budgets.begin(decided)
        prepare(where, settings.group)
        with claim(where.run / "analyzer.lock", "analyzer"):
            channel = Listener(where.query, group=settings.group)
            gate = AccessGate(None, where.keys, {"query": channel})
            _log.info("shard %d: is decided here under epoch %d.", shard, decided.epoch)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(
                    partial(analyzer.follow, partial(site.budgets.publish, decided), alone=False)
                )
                tasks.start_soon(analyzer.queries.run, channel, gate)
                tasks.start_soon(watched_files.watch_all, watched, analyzer.interpretation.run)
                tasks.start_soon(watched_files.follow_signals, site.where.signals, analyzer.store_signals)
                progress = InterpretedShard(archive.interpreted(), archive.unfinished())
                tasks.start_soon(_follow_hosts, site, decided, analyzer, begin.since or {}, progress)
    finally:
        with anyio.CancelScope(shield=True):
            await run_sync(leases.close)
            site.budgets.end(decided)
            site.analyzers.pop(decided.shard, None)
            if channel is not None:
                channel.close()


async def _follow_hosts(
    site: SharedSite,
    decided: DecidedShard,
    analyzer: Analyzer,
    since: Mapping[str, int],
    progress: InterpretedShard,
) -> None:
    """Let the hosts of the shard's runs join, and leave when their runs are over and measured.

    A host stays as long as the shard may command its GPUs under a power budget.
    """
    shard, shards, followed = decided.shard, site.options.shards, dict[str, tuple[anyio.CancelScope, int]]()
    spans = dict[str, tuple[LogSpan, ...]]()
    roll, seen = site.roll, 0
    commander = Commander(
        owner_of(site.options.site, shard), decided.epoch, shard, shards, lambda: decided.valid
    )

    def ours(job: str) -> bool:
        return shard_of(job, shards) == shard

    while True:
        now_ns = monotonic_ns()
        for frame in map(analyzer.last_frame, followed):
            if frame is not None:
                progress.reach(frame.log_id, frame.offset + 1)
        changed, seen = tuple(roll.changed_since(seen)), roll.changed
        spans |= {host: spans_of(roll.hosts[host], shard, shards) for host in changed}
        for host in followed.keys() | set(changed) | decided.hosts:  # nothing is new about the others
            announced = roll.hosts.get(host)
            if announced is not None and host not in spans:
                spans[host] = spans_of(announced, shard, shards)
            first = None if announced is None else progress.first_offset(announced.log_id, spans[host])
            if announced is not None and first is None and host in decided.hosts:
                first = progress.next_offset(announced.log_id)
            if announced is None or first is None:
                continue
            progress.follow(spans[host])
            if host in followed:
                followed[host] = followed[host][0], now_ns
                continue
            collector = BrokeredCollector(
                site.context,
                BrokeredHost(site.exchange, site.options.site, host),
                analyzer.archive,
                site.settings,
                commander=commander,
                ours=ours,
                begin=begin_of(announced, first, since),
            )
            followed[host] = analyzer.join(collector), now_ns
        for host, (scope, last_ns) in tuple(followed.items()):
            if now_ns - last_ns > LEAVE_NS:
                scope.cancel()
                del followed[host]
        spans = {host: spans[host] for host in followed}
        with anyio.move_on_after(LOOK_S):
            await roll.wait()


def begin_of(announced: Announced, first: int, since: Mapping[str, int]) -> Begin:
    """Return where a host's log begins for a shard: at its checkpoint, or with the first of its runs."""
    if since.get(announced.log_id, -1) >= first:
        return Begin(announced, since[announced.log_id], known=True)
    return Begin(announced, first)
