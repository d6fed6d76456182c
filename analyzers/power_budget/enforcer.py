"""The enforcer of power budgets: it grants limits or lowers them, before a command leaves. Pure.

    budgets in force, GPUs, runs -> a ration for each GPU, and commands for those that no run commands
    a run asks for a limit       -> the limit is granted, or lowered to the ration
    outcomes, ends of leases     -> what is in force where

A run's machine sets what limits it likes up to its ration; a limit above it is lowered at once. GPUs without
such a run have the ration as their limit. All of them are held in the budget's name, so that the end of a run
gives nothing back that is not there. A ration grows only when those that shrank for it are confirmed: what
is in force, asked for or allowed never adds up to more than a budget, once it held.

A GPU that cannot be commanded (no permission, observing, another program's limit) keeps its limit, which
counts: the others share what it leaves. When no budget has a GPU any more, its limit is its run's again, or
what was found.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from analyzers.dispatch.pending import BACK, Pending
from analyzers.fleet.fleet import Allocation, Clocks, Divided, Division, Fleet
from analyzers.power_budget.allocation import Bound, Unit, gains_more, least, most_mw, share_out, speeds
from analyzers.power_budget.following import Following, rank
from analyzers.power_budget.grants import GpuUse
from analyzers.power_limit.run import Run, ShareChanged
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.visits import limits_mw
from analyzers.results.result import (
    NOTHING,
    ApplyControl,
    Command,
    Instruction,
    RestoreControl,
    Result,
    in_order,
    rows_only,
)
from analyzers.results.rows import BudgetRow, BudgetShareRow, BudgetTargetRow, CommandRow, DecisionRow, Row
from zeus_stream.protocol.fields import BUDGET
from zeus_stream.protocol.notes import (
    Budget,
    BudgetsSet,
    ControlApplied,
    ControlLeaseEnded,
    ControlRefused,
    DeviceFound,
)

RETRY_NS = 60_000_000_000
"""After a refusal that may pass."""
BUSY, BUSY_NS = 0.9, 60_000_000_000
"""A GPU without a run that draws so much of its limit works for somebody, for so long after."""
PASSING = ("device", "lost", "storage", "owned", "range")
"""Refusals that may pass by themselves."""


@dataclass(slots=True, kw_only=True)
class Account:
    """One GPU under a budget."""

    most_mw: int
    """Its ration."""
    of_run: tuple[int | None, bool, bool] = (None, False, False)
    """What its run wants, and whether it has a profile, as a pipeline too, when it was looked at last."""
    busy: bool = False
    """It works, though not for a run that is known."""
    busy_ns: int | None = None
    """When it was seen to."""
    trouble: str = ""
    """Why it cannot be commanded."""
    retry_ns: int | None = None


class Accounts:
    """The accounts of a site."""

    def __init__(self, fleet: Fleet, pending: Pending) -> None:
        self.of: dict[str, Account] = {}
        """By GPU."""
        self.stale = False
        """What units are to have is to be found again."""
        self.news: dict[str, None] = {}
        """GPUs on which something is in force, or asked for, that was not."""
        self._fleet = fleet
        self._pending = pending
        self._found_mw: dict[str, int] = {}
        """By GPU, the value found there since its collector reported one: the upper bound."""

    def collector_started(self, host: str) -> None:
        """Note that all limits on a host are what was found; refusals may not be repeated."""
        self.stale = True
        for gpu, account in self.of.items():
            if self._fleet.gpus[gpu].host == host:
                account.trouble, account.retry_ns = "", None

    def device_found(self, gpu: str) -> None:
        self._found_mw.pop(gpu, None)
        self.stale = True

    def asked(self, command: ApplyControl) -> None:
        if command.gpu in self.of:
            self.news[command.gpu] = None

    def settled(self, row: CommandRow | None, note: ControlApplied | ControlRefused, now: Clocks) -> None:
        """Note the outcome of a command. ``row``: None if it is not remembered, as after a start."""
        gpu = note.gpu
        self.news[gpu] = None
        account, of_budget = self.of.get(gpu), note.command.startswith(BUDGET)
        match note:
            case ControlApplied(value=limit_mw):
                back = note.command.startswith(BACK) if row is None else row.limit_w is None
                if back:
                    self._found_mw[gpu] = limit_mw
            case ControlRefused() if account is not None and row is not None:
                if of_budget and note.cause != "stale":
                    self._trouble(gpu, account, note, now)
            case ControlRefused():
                pass

    def _trouble(self, gpu: str, account: Account, refused: ControlRefused, now: Clocks) -> None:
        self.stale = True
        read_mw = self._fleet.gpus[gpu].timeline.limit_mw
        if refused.cause == "range" and read_mw is not None and read_mw < self.found(gpu):
            self._found_mw[gpu] = read_mw  # an administrator has lowered it since
            return
        account.trouble = refused.reason
        now_ns = now[self._fleet.gpus[gpu].host]
        account.retry_ns = now_ns + RETRY_NS if refused.cause in PASSING else None

    def lost(self, ended: ControlLeaseEnded) -> None:
        """Note that a limit of ours is in force no longer."""
        gpu, self.stale = ended.gpu, True
        if ended.value is not None:
            self._found_mw[gpu] = ended.value
        if (account := self.of.get(gpu)) is not None and ended.cause == "other_program":
            account.trouble, account.retry_ns = ended.reason, None

    def look(self, gpus: Iterable[str], now_ns: int) -> None:
        """Notice refusals that may have passed by now."""
        for gpu in gpus:
            account = self.of[gpu]
            if account.retry_ns is not None and now_ns >= account.retry_ns:
                account.trouble, account.retry_ns, self.stale = "", None, True

    def works(self, gpu: str, now_ns: int) -> tuple[bool, bool]:
        """Return whether a GPU draws about what it may, now or a short time ago; and whether that is new."""
        account, power_mw = self.of[gpu], self._fleet.gpus[gpu].timeline.power_mw
        if power_mw is not None and power_mw >= BUSY * self.limit_mw(gpu):
            account.busy_ns = now_ns
        was, account.busy = (
            account.busy,
            account.busy_ns is not None and abs(now_ns - account.busy_ns) < BUSY_NS,
        )
        return account.busy, account.busy != was

    def promised_mw(self, gpu: str) -> int:
        return max(self.limit_mw(gpu), self.of[gpu].most_mw, *self._pending.under_way_mw(gpu))

    def limit_mw(self, gpu: str) -> int:
        """Return the limit of a GPU, as far as it is known (mW): set by us, or found."""
        found_mw, set_mw = self.found(gpu), self._pending.limit_mw(self._fleet.gpus[gpu].host, gpu)
        return found_mw if set_mw is None else min(found_mw, set_mw)

    def found(self, gpu: str) -> int:
        """Return the limit that was found on a GPU (mW): none above it is asked for."""
        found = self._fleet.gpus[gpu].found
        assert found is not None
        return self._found_mw.get(gpu, found.found_limit_mw or 0)

    def least(self, gpu: str) -> int:
        found = self._fleet.gpus[gpu].found
        assert found is not None
        return found.min_limit_mw or 0


class BudgetShares:
    """The share of each run in the budgets in force."""

    NOT_STATE: ClassVar = frozenset[str](("_settings",))

    def __init__(
        self,
        fleet: Fleet,
        pending: Pending,
        accounts: Accounts,
        runs: Mapping[str, Run],
        pipelines: Mapping[str, Divided],
        settings: RunSettings,
    ) -> None:
        """Begin without a budget; ``settings``: of GPUs that no run uses."""
        self.allocations: dict[str, Allocation] = {}
        """By GPU, its share of a power budget. Runs read it."""
        self.members: dict[str, tuple[str, ...]] = {}
        """By budget, the GPUs that it is about."""
        self.units: tuple[Unit, ...] = ()
        self.bounds: tuple[Bound, ...] = ()
        """Of the budgets, in their order."""
        self.would_mw: dict[str, int] = {}
        """By GPU that cannot be commanded, what it would have."""
        self.cramped = False
        """Some have less than they are to have, until others have let go."""
        self.following = Following()
        self._fleet = fleet
        self._pending = pending
        self._accounts = accounts
        self._runs = runs
        self._pipelines = pipelines
        self._settings = settings
        self._targets_mw: dict[str, int] = {}
        """By GPU, what it is to have."""

    def find(self, budgets: Sequence[Budget]) -> None:
        """Find what everybody is to have."""
        accounts = self._accounts.of
        able = [gpu for gpu, account in accounts.items() if not account.trouble]
        self.units, self.bounds = self._sharing(budgets, able)
        self._targets_mw = _by_gpu(self.units, self.bounds)
        self._note_used(budgets)
        self.would_mw = {}
        if len(able) < len(accounts):
            self.would_mw = _by_gpu(*self._sharing(budgets, accounts))

    def follow(self, budgets: Sequence[Budget]) -> list[Row]:
        """Take in the targets of now, and what is drawn under them. Return a row of each new target."""
        drawn_mw = {
            budget.group: sum(
                self._fleet.gpus[gpu].timeline.power_mw or 0 for gpu in self.members.get(budget.group, ())
            )
            for budget in budgets
            if budget.target_ns is not None
        }
        return [
            BudgetTargetRow(
                budget=group,
                target_ns=followed.target_ns,
                target_w=followed.target_mw / 1000,
                most_w=followed.bound_mw / 1000,
            )
            for group, followed in self.following.follow(budgets, drawn_mw)
        ]

    def _note_used(self, budgets: Sequence[Budget]) -> None:
        """Note what the limits under each budget add up to as they were shared out."""
        for budget in budgets:
            if budget.target_ns is None:
                continue
            gpus = set(self.members[budget.group])
            used_mw = sum(self._accounts.limit_mw(gpu) for gpu in gpus if self._accounts.of[gpu].trouble)
            inside = [unit for unit in self.units if not gpus.isdisjoint(unit.gpus)]
            used_mw += sum(self._targets_mw[gpu] for unit in inside for gpu in unit.gpus if gpu in gpus)
            more = any(gains_more(unit, self._targets_mw) for unit in inside)
            self.following.used(budget.group, used_mw, more=more)

    def _sharing(
        self, budgets: Sequence[Budget], among: Iterable[str]
    ) -> tuple[tuple[Unit, ...], tuple[Bound, ...]]:
        """Return units of these GPUs, and what budgets leave them when the others keep their limits."""
        of: dict[str, list[str]] = {}
        runs: dict[str, Run | None] = {}
        for gpu in among:
            run = self.commander(gpu) or self.user(gpu)
            name = gpu if run is None else run.name
            of.setdefault(name, []).append(gpu)
            runs[name] = run
        shared = {gpu for gpus in of.values() for gpu in gpus}
        bounds = []
        for budget in budgets:
            gpus = self.members[budget.group]
            kept_mw = sum(self._accounts.limit_mw(gpu) for gpu in gpus if gpu not in shared)
            bound_mw = self.following.bound_mw(budget.group)
            within = budget if bound_mw is None else replace(budget, limit_mw=bound_mw)
            most = most_mw(within, sum(map(self._accounts.found, gpus)))
            bounds.append(Bound(frozenset(gpus) & shared, most - kept_mw, spreads=bound_mw is None))
        first = {gpu: b.first for b in reversed(budgets) if b.first for gpu in self.members[b.group]}
        units = [
            replace(self._unit(name, gpus, runs[name]), rank=_rank(runs[name], first.get(gpus[0], ())))
            for name, gpus in of.items()
        ]
        return tuple(units), tuple(bounds)

    def _unit(self, name: str, gpus: Sequence[str], run: Run | None) -> Unit:
        """Return GPUs that have one limit: none above what was found, or what their run wants."""
        found_mw = min(map(self._accounts.found, gpus))
        least_mw = max(map(self._accounts.least, gpus))
        stride_mw = (run.settings if run else self._settings).stride_mw
        limits = limits_mw(found_mw, least_mw, stride_mw)[::-1] or (found_mw,)
        if run is None:
            busy = any(self._accounts.of[gpu].busy for gpu in gpus)
            return Unit(name, tuple(gpus), limits, speeds(limits, 1, ()) if busy else (1.0,) * len(limits))
        wanted_mw = run.search.wanted_mw if run.search.commands_limits else None
        if wanted_mw is not None:
            limits = tuple(limit for limit in limits if limit <= wanted_mw) or limits[:1]
        division = self._division(name, gpus, limits)
        speed = division.speed if division else speeds(limits, len(gpus), run.search.profile)
        return Unit(name, tuple(gpus), limits, speed, division)

    def _division(self, run: str, gpus: Sequence[str], limits_mw: Sequence[int]) -> Division | None:
        """Return the limits of a pipeline's GPUs. None: it is none, or a budget is about a part of them."""
        pipeline = self._pipelines.get(run)
        within = [len(set(gpus).intersection(members)) for members in self.members.values()]
        if pipeline is None or any(number not in (0, len(gpus)) for number in within):
            return None
        return pipeline.divide(gpus, limits_mw)

    def ration(self) -> list[str]:
        """Shrink shares at once, and let others grow as far as there is room by now. Return who changed."""
        accounts = self._accounts.of
        for unit in self.units:
            for gpu in unit.gpus:
                accounts[gpu].most_mw = min(accounts[gpu].most_mw, self._targets_mw[gpu])
        promised_mw = {gpu: self._accounts.promised_mw(gpu) for unit in self.units for gpu in unit.gpus}
        left_mw = [b.most_mw - sum(promised_mw[gpu] for gpu in b.gpus) for b in self.bounds]
        self.cramped = False
        for unit in self.units:
            targets_mw = {gpu: self._targets_mw[gpu] for gpu in unit.gpus}
            more = {gpu: max(0, mw - promised_mw[gpu]) for gpu, mw in targets_mw.items()}
            needs_mw = [sum(mw for gpu, mw in more.items() if gpu in bound.gpus) for bound in self.bounds]
            if all(not needs or needs <= left for needs, left in zip(needs_mw, left_mw, strict=True)):
                left_mw = [left - needs for needs, left in zip(needs_mw, left_mw, strict=True)]
                for gpu, target_mw in targets_mw.items():
                    accounts[gpu].most_mw = target_mw
            else:
                self.cramped = True
        changed = [gpu for gpu, each in accounts.items() if self.allocations[gpu].most_mw != each.most_mw]
        for gpu in changed:
            self.allocations[gpu] = Allocation(self.allocations[gpu].group, accounts[gpu].most_mw)
        return changed

    def commander(self, gpu: str) -> Run | None:
        """Return the run that sets a GPU's limit."""
        run = self._runs.get(self._pending.commander(gpu) or "")
        return run if run is not None and run.search.commands_limits else None

    def user(self, gpu: str) -> Run | None:
        """Return the first of the runs that compute on a GPU."""
        for session in self._fleet.gpus[gpu].sessions.values():
            if session.ended is None and session.started.world_size:
                return self._runs.get(session.started.run)
        return None


def _by_gpu(units: Sequence[Unit], bounds: Sequence[Bound]) -> dict[str, int]:
    """Return the limit that each GPU is to have, mW."""
    limits_mw = share_out(units, bounds)
    return {gpu: mw for unit in units for gpu, mw in unit.divided(limits_mw[unit.name]).items()}


def _rank(run: Run | None, first: tuple[str, ...]) -> int:
    """Return the place of a run's job among those that get watts first; a GPU without a run comes last."""
    session = next(iter(run.sessions.values()), None) if run is not None else None
    return len(first) if session is None else rank(session.started.job, first)


class BudgetReports:
    """The rows that were given last."""

    def __init__(self, accounts: Accounts, shares: BudgetShares) -> None:
        self.binding: dict[tuple[str, int], BudgetRow] = {}
        """Of the budgets that hold, by name and when they were set."""
        self._reported: dict[str, BudgetShareRow] = {}
        """By GPU."""
        self._accounts = accounts
        self._shares = shares

    def of_gpus(self, gpus: Iterable[str]) -> list[Row]:
        """Return the rows of GPUs that have changed."""
        changed: list[Row] = []
        for gpu in gpus:
            if (account := self._accounts.of.get(gpu)) is None:
                continue
            run = self._shares.commander(gpu) or self._shares.user(gpu)
            row = BudgetShareRow(
                gpu=gpu,
                budget=self._shares.allocations[gpu].group,
                run=None if run is None else run.name,
                most_w=(self._shares.would_mw[gpu] if account.trouble else account.most_mw) / 1000,
                limit_w=self._accounts.limit_mw(gpu) / 1000,
                reason=account.trouble,
            )
            if self._reported.get(gpu) != row:
                self._reported[gpu] = row
                changed.append(row)
        return changed

    def of_budgets(self, budgets: Sequence[Budget]) -> list[Row]:
        """Return the rows of budgets that have changed, and of GPUs that are under none any more."""
        freed = [self._reported.pop(gpu) for gpu in tuple(self._reported) if gpu not in self._accounts.of]
        rows = {}
        for budget, bound in zip(budgets, self._shares.bounds, strict=True):
            rows[budget.group, budget.set_ns] = BudgetRow(
                budget=budget.group,
                set_ns=budget.set_ns,
                limit_w=(budget.site_mw or budget.limit_mw) / 1000,
                begin_ns=budget.begin_ns,
                end_ns=budget.end_ns,
                gpus=self._shares.members[budget.group],
                binding=True,
                reason=self._cannot(budget, bound),
            )
        over = [replace(row, binding=False) for key, row in self.binding.items() if key not in rows]
        changed = [row for key, row in rows.items() if self.binding.get(key) != row]
        self.binding = rows
        return [*over, *changed, *(replace(row, budget=None, most_w=None, reason="") for row in freed)]

    def _cannot(self, budget: Budget, bound: Bound) -> str:
        """Return why a budget cannot be kept, if it cannot."""
        least_mw = least(self._shares.units, bound)
        if least_mw <= bound.most_mw or budget.way < 1:
            return ""
        kept = [gpu for gpu in self._shares.members[budget.group] if gpu not in bound.gpus]
        kept_mw = sum(self._accounts.limit_mw(gpu) for gpu in kept)
        parts = [
            f"the least limits of {len(bound.gpus)} GPUs are {least_mw / 1000:g} W" if bound.gpus else "",
            f"{len(kept)} GPUs that cannot be commanded keep {kept_mw / 1000:g} W" if kept else "",
        ]
        return (
            f"budget {budget.group}: could not be kept: {', '.join(filter(None, parts))}, over"
            f" {budget.limit_mw / 1000:g} W. Raise it, or name fewer GPUs."
        )


LOOK_NS = 1_000_000_000
"""Between two looks at a host's GPUs when nothing happens."""


class CollectorRestarted(Struct, frozen=True):
    """All limits on a host are what was found, and a GPU that could not be commanded perhaps can."""

    host: str


class CommandSettled(Struct, frozen=True):
    """A command has its outcome."""

    row: CommandRow | None
    """None: it is not remembered, as after a start."""
    note: ControlApplied | ControlRefused


class LimitAsked(Struct, frozen=True):
    """A run asks for a limit."""

    command: ApplyControl


class RunsChanged(Struct, frozen=True):
    """A run began, ended, got its GPUs or decided."""


class FrameHandled(Struct, frozen=True):
    """A frame of a host has been handled by all others."""

    host: str


BudgetEvent: TypeAlias = (
    BudgetsSet
    | CollectorRestarted
    | DeviceFound
    | CommandSettled
    | ControlLeaseEnded
    | LimitAsked
    | RunsChanged
    | FrameHandled
)


class Enforcer:
    """The enforcer of the budgets of a site."""

    NOT_STATE: ClassVar = frozenset[str](("_settings",))

    def __init__(
        self,
        fleet: Fleet,
        pending: Pending,
        runs: Mapping[str, Run],
        pipelines: Mapping[str, Divided],
        settings: RunSettings,
    ) -> None:
        """Begin without a budget; ``settings``: of GPUs that no run uses."""
        self._accounts = Accounts(fleet, pending)
        self._shares = BudgetShares(fleet, pending, self._accounts, runs, pipelines, settings)
        self._reports = BudgetReports(self._accounts, self._shares)
        self._fleet = fleet
        self._pending = pending
        self._settings = settings
        self._runs, self._pipelines = runs, pipelines
        self._budgets: tuple[Budget, ...] = ()
        self._now: Clocks = {}
        """Frame times at the event under way, by host."""
        self._looked_ns: dict[str, int] = {}
        """By host."""
        self._count = 0
        self._on: dict[str, list[str]] = {}
        """By host, its GPUs under budgets."""

    @property
    def allocations(self) -> Mapping[str, Allocation]:
        return self._shares.allocations

    def handle(self, event: BudgetEvent, now: Clocks) -> Result:
        self._now = now
        match event:
            case BudgetsSet(budgets=budgets):
                self._budgets, self._accounts.stale = budgets, True
                return rows_only(self._shares.follow(budgets))
            case CollectorRestarted(host):
                self._looked_ns.pop(host, None)  # its clock may have begun again
                self._accounts.collector_started(host)
            case DeviceFound(gpu=gpu):
                self._accounts.device_found(gpu)
            case CommandSettled(row, note):
                self._accounts.settled(row, note, now)
            case ControlLeaseEnded():
                self._accounts.lost(event)
            case LimitAsked(command):
                return Result((), (self._granted(command),))
            case RunsChanged():
                self._accounts.stale = self._accounts.stale or self.active
            case FrameHandled(host):
                return self._keep(host) if self.active else NOTHING
        return NOTHING

    @property
    def active(self) -> bool:
        """True while there are budgets, or rows of some are still open."""
        return bool(self._budgets or self._reports.binding)

    def shard_use(self) -> tuple[dict[str, GpuUse], dict[str, int]]:
        """Return the use of GPUs whose hosts' logs were read to the end, and the budgets that are obeyed."""
        gpus = {
            gpu: self._gpu_use(gpu)
            for gpu, known in self._fleet.gpus.items()
            if known.found is not None and self._pending.caught_up(known.host)
        }
        obeyed = () if self._accounts.stale else self._budgets
        return gpus, {budget.group: budget.limit_mw for budget in obeyed}

    def _gpu_use(self, gpu: str) -> GpuUse:
        account, accounts = self._accounts.of.get(gpu), self._accounts
        run = self._shares.commander(gpu) or self._shares.user(gpu)
        under_way_mw = self._pending.under_way_mw(gpu)
        limit_mw = accounts.limit_mw(gpu)
        used_mw = max([limit_mw, *under_way_mw]) if account is None else accounts.promised_mw(gpu)
        works = run is not None or (account is not None and account.busy)
        wanted_mw = run.search.wanted_mw if run is not None and run.search.commands_limits else None
        ours = self._pending.is_of_budget(gpu) or under_way_mw  # not what a run of another shard sets by now
        return GpuUse(
            used_mw=used_mw,
            least_mw=accounts.least(gpu),
            wanted_mw=(wanted_mw or accounts.found(gpu)) if works else accounts.least(gpu),
            busy=run is not None,
            returned=account is None and not ours,
        )

    def validate(self) -> None:
        """Check what holds between events. Raises AssertionError."""
        accounts, allocations = self._accounts.of, self._shares.allocations
        assert allocations.keys() == accounts.keys(), "a GPU under a budget has no share"
        assert sorted(gpu for on_host in self._on.values() for gpu in on_host) == sorted(accounts)
        for gpu, share in allocations.items():
            assert share.most_mw == accounts[gpu].most_mw, f"{gpu}: its run has another share"

    def _granted(self, command: ApplyControl) -> ApplyControl:
        """Return the command that may leave: no limit is above the ration of its GPU."""
        if (share := self._shares.allocations.get(command.gpu)) is not None:
            command = replace(command, value=min(command.value, share.most_mw))
        if self.active:
            self._accounts.asked(command)
        return command

    def _keep(self, host: str) -> Result:
        """Return what is to be done after a frame of a host."""
        now_ns = self._now[host]
        if now_ns - self._looked_ns.get(host, 0) >= LOOK_NS:
            self._looked_ns[host] = now_ns
            self._look(host)
        stale, news = self._accounts.stale, self._accounts.news
        self._accounts.stale, self._accounts.news = False, {}  # what is done here may be news at the next
        done = NOTHING
        if stale:
            known = set(self._accounts.of)
            done |= self._admit()
            self._shares.find(self._budgets)
            news |= dict.fromkeys(g for g, a in self._accounts.of.items() if a.trouble or g not in known)
        if stale or (news and self._shares.cramped):
            news |= dict.fromkeys(self._shares.ration())
            done |= self._reallocate(self._runs.values())
            self._learn(done)
        done |= self._command(news)
        if stale:
            done |= rows_only(self._reports.of_budgets(self._budgets))
        return done | rows_only(self._reports.of_gpus(news))

    def _reallocate(self, runs: Iterable[Run]) -> Result:
        """Return what runs ask for under what they are allowed by now."""
        return in_order([run.handle(ShareChanged(), self._now) for run in runs])

    def _learn(self, done: Result) -> None:
        """Take in what runs decided and asked for under what they are allowed by now."""
        self._accounts.stale |= any(isinstance(row, DecisionRow) for row in done.rows)
        for command in done.instructions:
            if _sets_limit(command):  # nothing is taken by what is given back
                self._accounts.asked(command)

    def _look(self, host: str) -> None:
        """Notice what only time brings, and what runs want by now."""
        gpus, now_ns = self._on.get(host, ()), self._now[host]
        self._accounts.look(gpus, now_ns)
        for gpu in gpus:
            self._accounts.news[gpu] = None
            account, run = self._accounts.of[gpu], self._shares.commander(gpu)
            user = self._shares.user(gpu)
            pipeline = None if user is None else self._pipelines.get(user.name)
            of_run = (
                None if run is None else run.search.wanted_mw,
                run is not None and bool(run.search.profile),
                pipeline is not None and pipeline.is_known,
            )
            self._accounts.stale |= of_run != account.of_run
            account.of_run = of_run
            _, new = self._accounts.works(gpu, now_ns)
            self._accounts.stale |= new and user is None

    def _admit(self) -> Result:
        """Take in GPUs that are under a budget by now, and give back those that are no more."""
        accounts, allocations = self._accounts.of, self._shares.allocations
        members = self._shares.members = {budget.group: self._gpus(budget) for budget in self._budgets}
        group_of = {gpu: group for group in reversed(members) for gpu in members[group]}
        left = [gpu for gpu in accounts if gpu not in group_of]
        for gpu in left:
            del accounts[gpu], allocations[gpu]
        for gpu, group in group_of.items():
            if gpu not in accounts:
                accounts[gpu] = Account(most_mw=self._accounts.limit_mw(gpu))
            allocations[gpu] = Allocation(group, accounts[gpu].most_mw)
        self._on = {}
        for gpu in accounts:
            self._on.setdefault(self._fleet.gpus[gpu].host, []).append(gpu)
        commanders = {run.name: run for gpu in left if (run := self._shares.commander(gpu)) is not None}
        done = self._reallocate(commanders.values())
        set_again = {command.gpu for command in done.instructions if _sets_limit(command)}
        for gpu in left:
            if gpu not in set_again:
                done |= self._give_back(gpu)
        return done

    def _gpus(self, budget: Budget) -> tuple[str, ...]:
        """Return the GPUs of a budget whose limits can be set."""
        words = set(budget.gpus)
        return tuple(
            uuid
            for uuid, gpu in self._fleet.gpus.items()
            if gpu.found is not None
            and gpu.found.min_limit_mw is not None
            and gpu.found.found_limit_mw is not None
            and (not words or words & {uuid, f"{gpu.host}:{gpu.found.index}", f"{gpu.host}:all"})
        )

    def _give_back(self, gpu: str) -> Result:
        if not self._pending.is_of_budget(gpu) and not self._pending.under_way_mw(gpu):
            return NOTHING
        if (run := self._shares.commander(gpu)) is not None:
            return self._apply(gpu, run.name, self._accounts.limit_mw(gpu))
        host = self._fleet.gpus[gpu].host
        command = RestoreControl(
            command=self._name(BACK, gpu), run=BUDGET, host=host, gpu=gpu, control="power_limit"
        )
        self._pending.ask(command, BUDGET, self._now_ns(gpu))
        return _command(command)

    def _command(self, gpus: Iterable[str]) -> Result:
        """Set what is to be set on these GPUs and no run sets."""
        done = NOTHING
        for gpu in gpus:
            account = self._accounts.of.get(gpu)
            if account is None or account.trouble:
                continue
            run = self._shares.commander(gpu)
            limit_mw = self._accounts.limit_mw(gpu)
            wanted_mw = account.most_mw if run is None else min(limit_mw, account.most_mw)
            # What a run has set before there was a budget is held in its name, and ends with it.
            in_force_mw = self._pending.limit_mw(self._fleet.gpus[gpu].host, gpu)
            runs_own = run is not None and in_force_mw is not None and not self._pending.is_of_budget(gpu)
            if not (asked_mw := self._pending.under_way_mw(gpu)):
                right = limit_mw == wanted_mw and not runs_own
            else:
                waited_ns = self._now_ns(gpu) - self._pending.asked_ns(gpu)
                right = asked_mw[-1] <= account.most_mw and waited_ns < self._settings.timeout_ns
            if not right:
                done |= self._apply(gpu, self._shares.allocations[gpu].holder, wanted_mw)
        return done

    def _apply(self, gpu: str, holder: str, limit_mw: int) -> Result:
        """Ask for a limit. It becomes a row with its outcome: a stream read in part may ask again."""
        applied = ApplyControl(
            command=self._name(BUDGET, gpu),
            run=holder,
            host=self._fleet.gpus[gpu].host,
            gpu=gpu,
            control="power_limit",
            value=limit_mw,
        )
        self._pending.ask(applied, holder, self._now_ns(gpu))
        self._accounts.asked(applied)
        return _command(applied)

    def _name(self, kind: str, gpu: str) -> str:
        """Return the next command's id: the same when the stream is interpreted again."""
        self._count += 1
        return f"{kind}{self._now_ns(gpu)}-{self._count}/{gpu[-12:]}"

    def _now_ns(self, gpu: str) -> int:
        return self._now[self._fleet.gpus[gpu].host]


def _sets_limit(instruction: Instruction) -> TypeGuard[ApplyControl]:
    return isinstance(instruction, ApplyControl) and instruction.control == "power_limit"


def _command(command: Command) -> Result:
    return Result((), (command,))
