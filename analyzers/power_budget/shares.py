"""Shares of power budgets: what each run or GPU is to have, and what it may have by now. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Allocation, Fleet
from analyzers.power_budget.accounts import Accounts
from analyzers.power_budget.allocation import Bound, Unit, most_mw, share_out, speeds
from analyzers.power_limit.run import Run
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.visits import limits_mw
from zeus_stream.protocol.notes import Budget


class BudgetShares:
    """The share of each run in the budgets in force."""

    NOT_STATE: ClassVar = frozenset[str](("_settings",))

    def __init__(
        self,
        fleet: Fleet,
        pending: Pending,
        accounts: Accounts,
        runs: Mapping[str, Run],
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
        self._fleet = fleet
        self._pending = pending
        self._accounts = accounts
        self._runs = runs
        self._settings = settings
        self._targets_mw: dict[str, int] = {}
        """By unit, what it is to have."""

    def find(self, budgets: Sequence[Budget]) -> None:
        """Find what everybody is to have."""
        accounts = self._accounts.of
        able = [gpu for gpu, account in accounts.items() if not account.trouble]
        self.units, self.bounds = self._sharing(budgets, able)
        self._targets_mw = share_out(self.units, self.bounds)
        self.would_mw = {}
        if len(able) < len(accounts):
            units, bounds = self._sharing(budgets, accounts)
            would_mw = share_out(units, bounds)
            self.would_mw = {gpu: would_mw[unit.name] for unit in units for gpu in unit.gpus}

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
            most = most_mw(budget, sum(map(self._accounts.found, gpus)))
            bounds.append(Bound(frozenset(gpus) & shared, most - kept_mw))
        return tuple(self._unit(name, gpus, runs[name]) for name, gpus in of.items()), tuple(bounds)

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
        return Unit(name, tuple(gpus), limits, speeds(limits, len(gpus), run.search.profile))

    def ration(self) -> None:
        """Shrink shares at once, and let others grow as far as there is room by now."""
        accounts = self._accounts.of
        for unit in self.units:
            for gpu in unit.gpus:
                accounts[gpu].most_mw = min(accounts[gpu].most_mw, self._targets_mw[unit.name])
        left_mw = [b.most_mw - sum(self._accounts.promised_mw(gpu) for gpu in b.gpus) for b in self.bounds]
        self.cramped = False
        for unit in self.units:
            target_mw = self._targets_mw[unit.name]
            more = {gpu: max(0, target_mw - self._accounts.promised_mw(gpu)) for gpu in unit.gpus}
            needs_mw = [sum(mw for gpu, mw in more.items() if gpu in bound.gpus) for bound in self.bounds]
            if all(not needs or needs <= left for needs, left in zip(needs_mw, left_mw, strict=True)):
                left_mw = [left - needs for needs, left in zip(needs_mw, left_mw, strict=True)]
                for gpu in unit.gpus:
                    accounts[gpu].most_mw = target_mw
            else:
                self.cramped = True
        for gpu, account in accounts.items():
            self.allocations[gpu] = Allocation(self.allocations[gpu].group, account.most_mw)

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
