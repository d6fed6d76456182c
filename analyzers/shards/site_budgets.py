"""The power budgets of a site, in one of its analyzers.

    every second: uses of all shards here -> one transaction -> each shard's budgets, as notes in its own log

While PostgreSQL is away, each shard keeps to its last grant.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct

from analyzers.dispatch.own_log import OwnLog
from analyzers.leases.budget_grants import BudgetGrants, SiteGpu
from analyzers.leases.renewal import Renewal
from analyzers.leases.site_leases import SHARD, SiteLeases
from analyzers.power_budget.grants import GpuUse, ShardUse
from analyzers.shards.roll_call import RollCall
from analyzers.state_files import budgets
from zeus_stream.clock import anchor, monotonic_ns, to_next_s
from zeus_stream.errors import StorageError
from zeus_stream.protocol import codec
from zeus_stream.protocol.notes import Budget, BudgetsSet, DeviceFound, Notes

EVERY_S = 1.0
"""Between two exchanges."""

_log = logging.getLogger(__name__)


class DecidedShard(Struct):
    """A shard whose lease this process has: it is decided here, under one epoch."""

    shard: int
    epoch: int
    renewal: Renewal
    behind_ns: Callable[[], int] = lambda: 0
    """Returns how long the oldest frame waits that is not interpreted."""
    ask_use: Callable[[], Awaitable[tuple[dict[str, GpuUse], dict[str, int]]]] | None = None
    """Returns what `Enforcer.shard_use` does."""
    log: OwnLog | None = None
    """None until it states budgets."""
    granted: tuple[Budget, ...] | None = None
    """As stated last; None: nothing was."""
    hosts: frozenset[str] = frozenset()
    """Hosts of GPUs that the shard may command."""

    @property
    def name(self) -> str:
        """Return the name of its lease in the database."""
        return f"{SHARD}{self.shard}"

    @property
    def valid(self) -> bool:
        """The shard is still held, as far as this process can know."""
        return self.renewal.valid(self.name, self.epoch)

    async def use(self) -> ShardUse:
        assert self.ask_use is not None
        gpus, obeyed_mw = await self.ask_use()
        stated_mw = {budget.group: budget.limit_mw for budget in self.granted or ()}
        same = self.granted is not None and obeyed_mw == stated_mw
        return ShardUse(shard=self.shard, epoch=self.epoch, gpus=gpus, obeyed_mw=obeyed_mw if same else {})


class SiteBudgets:
    """The exchange of one analyzer's process."""

    def __init__(
        self, leases: SiteLeases, roll: RollCall, file: Path, groups: Mapping[str, tuple[str, ...]]
    ) -> None:
        """``leases``: for this alone. ``file``, ``groups``: budgets that are set on this machine."""
        self._leases, self._roll, self._file, self._groups = leases, roll, file, groups
        self._grants: BudgetGrants | None = None
        self._shards: dict[int, DecidedShard] = {}
        self._gpus: dict[str, SiteGpu] = {}
        """Of hosts that are at the broker, or were."""
        self._changed = 0
        self._turn = anyio.Lock()
        self.known: tuple[Budget, ...] = ()
        """Of the site, whichever machine set them."""
        self.trouble: str | None = None

    async def run(self) -> None:
        """Exchange until cancelled."""
        try:
            while True:
                try:
                    await self._exchange()
                    self.trouble = None
                except StorageError as wrong:
                    if str(wrong) != self.trouble:
                        _log.warning("%s", wrong)
                    self.trouble = str(wrong)
                await anyio.sleep(to_next_s(EVERY_S))
        finally:
            self._leases.close()

    async def begin(self, decided: DecidedShard) -> None:
        """Take in a shard. Its first budgets are stated by `publish`. Raises StorageError."""
        self._shards[decided.shard] = decided
        await self._exchange()

    def end(self, decided: DecidedShard) -> None:
        if self._shards.get(decided.shard) is decided:
            del self._shards[decided.shard]

    async def publish(self, decided: DecidedShard, log: OwnLog) -> None:
        """State the budgets of a shard in its own log, before any host is followed."""
        decided.log = log
        await log.state("budgets", BudgetsSet(monotonic_ns(), decided.granted or ()))

    async def _exchange(self) -> None:
        async with self._turn:
            decided = [each for each in self._shards.values() if each.valid]
            uses = [await each.use() for each in decided]
            self._see_gpus()
            granted, hosts = await run_sync(self._store, uses)
            for each in decided:
                budgets_now = granted.get(each.shard, each.granted or ())
                each.hosts = hosts.get(each.shard, frozenset())
                if budgets_now != each.granted:
                    each.granted = budgets_now
                    if each.log is not None:
                        await each.log.state("budgets", BudgetsSet(monotonic_ns(), budgets_now))

    def _store(self, uses: list[ShardUse]) -> tuple[dict[int, tuple[Budget, ...]], dict[int, frozenset[str]]]:
        if self._grants is None:
            self._grants = BudgetGrants(self._leases)
        grants = self._grants
        here = budgets.load(self._file, self._groups)
        granted = grants.exchange(here, self._gpus, uses, anchor().wall_ns)
        self.known = grants.known
        return granted, {use.shard: grants.hosts(use.shard) for use in uses if granted.get(use.shard)}

    def _see_gpus(self) -> None:
        """Take in the GPUs of hosts that have announced themselves."""
        changed, self._changed = tuple(self._roll.changed_since(self._changed)), self._roll.changed
        for host in changed:
            for note in codec.decode(self._roll.hosts[host].standing, Notes).notes:
                if isinstance(note, DeviceFound) and note.min_limit_mw is not None and note.found_limit_mw:
                    self._gpus[note.gpu] = SiteGpu(host, note.index, note.found_limit_mw)
