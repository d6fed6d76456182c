"""Who holds which power limit under the budgets of a site, and what is to be done about it. Pure.

    budgets in force, GPUs, runs -> a ration for each GPU, and commands for those that no run commands
    outcomes, ends of leases     -> what is in force where

A run's machine sets what limits it likes up to its ration; a limit above it is lowered at once. GPUs without
such a run have the ration as their limit. All of them are held in the budget's name, so that the end of a run
gives nothing back that is not there. A ration grows only when those that shrank for it are confirmed: what
is in force, asked for or allowed never adds up to more than a budget, once it held.

A GPU that cannot be commanded (no permission, observing, a stranger's limit) keeps its limit, which counts:
the others share what it leaves. When no budget has a GPU any more, its limit is its run's again, or what was
found.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from analyzers.fleet.fleet import Allocation, Fleet
from analyzers.power_budget.allocation import Bound, Unit, least, most_mw, share_out, speeds
from analyzers.power_limit import profiler
from analyzers.power_limit.run import Output, Run
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.rows import (
    ApplyControl,
    BudgetRow,
    BudgetShareRow,
    CommandRow,
    DecisionRow,
    RestoreControl,
    RunRow,
)
from zeus_stream.protocol.fields import BUDGET
from zeus_stream.protocol.notes import Budget, BudgetsSet, ControlApplied, ControlLeaseEnded, ControlRefused

LOOK_NS = 1_000_000_000
"""Between two looks at a host's GPUs when nothing happens."""
RETRY_NS = 60_000_000_000
"""After a refusal that may pass."""
BACK = f"{BUDGET}back-"
"""Begins the ids of commands that give back; those of all others begin with `BUDGET`."""
BUSY, BUSY_NS = 0.9, 60_000_000_000
"""A GPU without a run that draws so much of its limit works for somebody, for so long after."""
PASSING = ("device", "storage", "owned", "range")
"""Refusals that may pass by themselves."""


@dataclass(slots=True, kw_only=True)
class _Account:
    """One GPU under a budget."""

    limit_mw: int
    """In force, as far as that is known."""
    most_mw: int
    """Its ration."""
    of_run: tuple[int | None, bool] = (None, False)
    """What its run wants, and whether it has a profile, when it was looked at last."""
    busy: bool = False
    """It works, though not for a run that is known."""
    busy_ns: int | None = None
    """When it was seen to."""
    ours: bool = False
    """Its limit is held in a budget's name."""
    asked_mw: dict[str, int] = field(default_factory=dict)
    """By command under way, in order."""
    asked_ns: int = 0
    """When the last was."""
    trouble: str = ""
    """Why it cannot be commanded."""
    retry_ns: int | None = None

    @property
    def promised_mw(self) -> int:
        return max(self.limit_mw, self.most_mw, *self.asked_mw.values())

    def settle(self, command: str) -> None:
        """A command has its outcome, and so have those before it: they are obeyed in order."""
        commands = list(self.asked_mw)
        for earlier in commands[: commands.index(command) + 1] if command in self.asked_mw else commands:
            del self.asked_mw[earlier]


class Ledger:
    """Of a site."""

    def __init__(self, fleet: Fleet, runs: Mapping[str, Run], settings: RunSettings) -> None:
        """``settings``: of GPUs that no run uses."""
        self.allocations: dict[str, Allocation] = {}
        """By GPU, its share of a power budget. Runs read it."""
        self._fleet = fleet
        self._settings = settings
        self._runs = runs
        self._budgets: tuple[Budget, ...] = ()
        self._accounts: dict[str, _Account] = {}
        self._limits_mw: dict[str, int] = {}
        """In force by our doing, by GPU."""
        self._found_mw: dict[str, int] = {}
        """By GPU, what was found there since its collector said what it found: the upper bound."""
        self._looked_ns: dict[str, int] = {}
        self._told: dict[tuple[str, int], BudgetRow] = {}
        """Of the budgets that hold, by name and when they were set."""
        self._rations: dict[str, BudgetShareRow] = {}
        """Told last, by GPU."""
        self._commands = 0
        self._members: dict[str, tuple[str, ...]] = {}
        """By budget, the GPUs that it is about."""
        self._units: tuple[Unit, ...] = ()
        self._bounds: tuple[Bound, ...] = ()
        """Of the budgets, in their order."""
        self._targets_mw: dict[str, int] = {}
        """By unit, what it is to have."""
        self._would_mw: dict[str, int] = {}
        """By GPU that cannot be commanded, what it would have."""
        self._on: dict[str, list[str]] = {}
        """By host, its GPUs under budgets."""
        self._stale = False
        """What units are to have is to be found anew."""
        self._cramped = False
        """Some have less than they are to have, until others have let go."""
        self._news: dict[str, None] = {}
        """GPUs on which something is in force, or asked for, that was not."""

    # ---- what happens

    def set(self, note: BudgetsSet) -> None:
        """From now on these budgets hold."""
        self._budgets, self._stale = note.budgets, True

    def collector_started(self, host: str) -> None:
        """All limits on a host are what was found, and whoever could not be commanded perhaps can."""
        self._stale = True
        self._looked_ns.pop(host, None)  # its clock may have begun anew
        for gpu in [gpu for gpu in self._limits_mw if self._fleet.gpus[gpu].host == host]:
            del self._limits_mw[gpu]
        for gpu, account in self._accounts.items():
            if self._fleet.gpus[gpu].host == host:
                account.asked_mw.clear()
                account.ours, account.trouble, account.retry_ns = False, "", None
                account.limit_mw = self._found(gpu)

    def device_found(self, gpu: str) -> None:
        """A collector says what it found on a GPU."""
        self._found_mw.pop(gpu, None)
        self._stale = True

    def outcome(self, row: CommandRow | None, note: ControlApplied | ControlRefused) -> None:
        """A command has its outcome. ``row``: None if it is not remembered, as after a start."""
        gpu = note.gpu
        self._news[gpu] = None
        account, of_budget = self._accounts.get(gpu), note.command.startswith(BUDGET)
        match note:
            case ControlApplied(
                value=limit_mw,
            ):
                back = note.command.startswith(BACK) if row is None else row.limit_w is None
                if back:
                    self._limits_mw.pop(gpu, None)
                    self._found_mw[gpu] = limit_mw
                else:
                    self._limits_mw[gpu] = limit_mw
                if account is not None:
                    account.limit_mw = limit_mw
                    account.settle(note.command)
                    account.ours = not back and (account.ours or of_budget)
            case ControlRefused() if account is not None and row is not None:
                account.settle(note.command)
                if of_budget and note.cause != "stale":
                    self._trouble(gpu, account, note)
            case ControlRefused():
                pass

    def _trouble(self, gpu: str, account: _Account, refused: ControlRefused) -> None:
        """A GPU takes no command of a budget."""
        self._stale = True
        read_mw = self._fleet.gpus[gpu].timeline.limit_mw
        if refused.cause == "range" and read_mw is not None and read_mw < self._found(gpu):
            self._found_mw[gpu] = account.limit_mw = read_mw  # an administrator has lowered it meanwhile
            return
        account.trouble = refused.reason
        account.retry_ns = self._now_ns(gpu) + RETRY_NS if refused.cause in PASSING else None

    def lost(self, ended: ControlLeaseEnded) -> None:
        """A limit of ours is in force no longer."""
        gpu, self._stale = ended.gpu, True
        self._limits_mw.pop(gpu, None)
        if ended.value is not None:
            self._found_mw[gpu] = ended.value
        if (account := self._accounts.get(gpu)) is not None:
            account.limit_mw, account.ours = self._found(gpu), False
            if ended.cause == "stranger":
                account.trouble, account.retry_ns = ended.reason, None

    # ---- what is to be done

    def keep(self, host: str, outputs: Sequence[Output]) -> list[Output]:
        """Return what is to be done after a frame of a host that gave these outputs."""
        if not (self._budgets or self._told):
            return []
        self._hear(outputs)
        now_ns = self._fleet.now_ns[host]
        if now_ns - self._looked_ns.get(host, 0) >= LOOK_NS:
            self._looked_ns[host] = now_ns
            self._look(host)
        stale, news = self._stale, self._news
        self._stale, self._news = False, {}  # what is done here may be news again, at the next frame
        done: list[Output] = []
        if stale:
            done += self._admit()
            self._share()
        if stale or (news and self._cramped):
            self._ration()
            done += [output for run in self._runs.values() for output in run.reallocated()]
            self._hear(done)
            news = dict.fromkeys(self._accounts)
        done += self._command(news)
        if stale:
            done += self._tell_budgets()
        return done + self._tell(news)

    def _hear(self, outputs: Iterable[Output]) -> None:
        """Learn what runs ask for, and what they decide."""
        for output in outputs:
            match output:
                case ApplyControl(
                    command=command,
                    run=holder,
                    gpu=gpu,
                    value=limit_mw,
                ):
                    if (account := self._accounts.get(gpu)) is not None:
                        account.asked_mw[command], account.asked_ns = limit_mw, self._now_ns(gpu)
                        account.ours = account.ours or holder.startswith(BUDGET)
                        self._news[gpu] = None
                case RunRow() | DecisionRow():
                    self._stale = True
                case _:
                    pass

    def _look(self, host: str) -> None:
        """Notice what only time brings, and what runs want by now."""
        for gpu in self._on.get(host, ()):
            self._news[gpu] = None
            account, run = self._accounts[gpu], self._commander(gpu)
            if account.retry_ns is not None and self._now_ns(gpu) >= account.retry_ns:
                account.trouble, account.retry_ns, self._stale = "", None, True
            of_run = (None, False) if run is None else (run.wanted_mw, bool(run.profile))
            self._stale |= of_run != account.of_run
            account.of_run = of_run
            self._watch(gpu, account)

    def _watch(self, gpu: str, account: _Account) -> None:
        """Notice whether a GPU works."""
        now_ns, power_mw = self._now_ns(gpu), self._fleet.gpus[gpu].timeline.power_mw
        if power_mw is not None and power_mw >= BUSY * account.limit_mw:
            account.busy_ns = now_ns
        busy = account.busy_ns is not None and abs(now_ns - account.busy_ns) < BUSY_NS
        self._stale |= busy != account.busy and self._user(gpu) is None
        account.busy = busy

    def _admit(self) -> list[Output]:
        """Take in GPUs that are under a budget by now, and give back those that are no more."""
        self._members = {budget.group: self._gpus(budget) for budget in self._budgets}
        group_of = {gpu: group for group in reversed(self._members) for gpu in self._members[group]}
        left = {gpu: self._accounts.pop(gpu) for gpu in tuple(self._accounts) if gpu not in group_of}
        for gpu in left:
            del self.allocations[gpu]
        for gpu, group in group_of.items():
            if gpu not in self._accounts:
                limit_mw = self._limits_mw.get(gpu, self._found(gpu))
                self._accounts[gpu] = _Account(limit_mw=limit_mw, most_mw=limit_mw)
            self.allocations[gpu] = Allocation(group, self._accounts[gpu].most_mw)
        self._on = {}
        for gpu in self._accounts:
            self._on.setdefault(self._fleet.gpus[gpu].host, []).append(gpu)
        commanders = {run.name: run for gpu in left if (run := self._commander(gpu)) is not None}
        done = [output for run in commanders.values() for output in run.reallocated()]
        set_anew = {output.gpu for output in done if isinstance(output, ApplyControl)}
        for gpu, account in left.items():
            if gpu not in set_anew:
                done += self._give_back(gpu, account)
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

    def _give_back(self, gpu: str, account: _Account) -> list[Output]:
        """Leave a limit to the GPU's run, or give back what was found."""
        if not account.ours and not account.asked_mw:
            return []
        if (run := self._commander(gpu)) is not None:
            return self._apply(gpu, run.name, account.limit_mw)
        command = self._name(BACK, gpu)
        self._fleet.asking(command, BUDGET, gpu, None)
        return [
            RestoreControl(
                command=command, run=BUDGET, host=self._fleet.gpus[gpu].host, gpu=gpu, control="power_limit"
            )
        ]

    def _share(self) -> None:
        """Find what everybody is to have."""
        able = [gpu for gpu, account in self._accounts.items() if not account.trouble]
        self._units, self._bounds = self._sharing(able)
        self._targets_mw = share_out(self._units, self._bounds)
        self._would_mw = {}
        if len(able) < len(self._accounts):
            units, bounds = self._sharing(self._accounts)
            would_mw = share_out(units, bounds)
            self._would_mw = {gpu: would_mw[unit.name] for unit in units for gpu in unit.gpus}

    def _sharing(self, among: Iterable[str]) -> tuple[tuple[Unit, ...], tuple[Bound, ...]]:
        """Return units of these GPUs, and what budgets leave them when the others keep their limits."""
        of: dict[str, list[str]] = {}
        runs: dict[str, Run | None] = {}
        for gpu in among:
            run = self._commander(gpu) or self._user(gpu)
            name = gpu if run is None else run.name
            of.setdefault(name, []).append(gpu)
            runs[name] = run
        shared = {gpu for gpus in of.values() for gpu in gpus}
        bounds = []
        for budget in self._budgets:
            gpus = self._members[budget.group]
            kept_mw = sum(self._accounts[gpu].limit_mw for gpu in gpus if gpu not in shared)
            most = most_mw(budget, sum(map(self._found, gpus)))
            bounds.append(Bound(frozenset(gpus) & shared, most - kept_mw))
        return tuple(self._unit(name, gpus, runs[name]) for name, gpus in of.items()), tuple(bounds)

    def _unit(self, name: str, gpus: Sequence[str], run: Run | None) -> Unit:
        """Return GPUs that have one limit: none above what was found, or what their run wants."""
        found_mw, least_mw = min(map(self._found, gpus)), max(map(self._least, gpus))
        stride_mw = (run.settings if run else self._settings).stride_mw
        limits = profiler.limits_mw(found_mw, least_mw, stride_mw)[::-1] or (found_mw,)
        if run is None:
            busy = any(self._accounts[gpu].busy for gpu in gpus)
            return Unit(name, tuple(gpus), limits, speeds(limits, 1, ()) if busy else (1.0,) * len(limits))
        wanted_mw = run.wanted_mw if run.commands_limits else None
        if wanted_mw is not None:
            limits = tuple(limit for limit in limits if limit <= wanted_mw) or limits[:1]
        return Unit(name, tuple(gpus), limits, speeds(limits, len(gpus), run.profile))

    def _ration(self) -> None:
        """Shrink rations at once, and let others grow as far as there is room by now."""
        for unit in self._units:
            for gpu in unit.gpus:
                account = self._accounts[gpu]
                account.most_mw = min(account.most_mw, self._targets_mw[unit.name])
        left_mw = [b.most_mw - sum(self._accounts[gpu].promised_mw for gpu in b.gpus) for b in self._bounds]
        self._cramped = False
        for unit in self._units:
            target_mw = self._targets_mw[unit.name]
            more = {gpu: max(0, target_mw - self._accounts[gpu].promised_mw) for gpu in unit.gpus}
            needs_mw = [sum(mw for gpu, mw in more.items() if gpu in bound.gpus) for bound in self._bounds]
            if all(not needs or needs <= left for needs, left in zip(needs_mw, left_mw, strict=True)):
                left_mw = [left - needs for needs, left in zip(needs_mw, left_mw, strict=True)]
                for gpu in unit.gpus:
                    self._accounts[gpu].most_mw = target_mw
            else:
                self._cramped = True
        for gpu, account in self._accounts.items():
            self.allocations[gpu] = Allocation(self.allocations[gpu].group, account.most_mw)

    def _command(self, gpus: Iterable[str]) -> list[Output]:
        """Set what is to be set on these GPUs and no run sets."""
        done: list[Output] = []
        for gpu in gpus:
            account = self._accounts.get(gpu)
            if account is None or account.trouble:
                continue
            run = self._commander(gpu)
            wanted_mw = account.most_mw if run is None else min(account.limit_mw, account.most_mw)
            # What a run has set before there was a budget is held in its name, and ends with it.
            runs_own = run is not None and gpu in self._limits_mw and not account.ours
            if not account.asked_mw:
                right = account.limit_mw == wanted_mw and not runs_own
            else:
                waited_ns = self._now_ns(gpu) - account.asked_ns
                asked_mw = list(account.asked_mw.values())[-1]
                right = asked_mw <= account.most_mw and waited_ns < self._settings.timeout_ns
            if not right:
                done += self._apply(gpu, self.allocations[gpu].holder, wanted_mw)
        return done

    def _apply(self, gpu: str, holder: str, limit_mw: int) -> list[Output]:
        """Ask for a limit. It becomes a row with its outcome: a stream heard in part may ask anew."""
        command = self._name(BUDGET, gpu)
        self._fleet.asking(command, holder, gpu, limit_mw)
        done: list[Output] = [
            ApplyControl(
                command=command,
                run=holder,
                host=self._fleet.gpus[gpu].host,
                gpu=gpu,
                control="power_limit",
                value=limit_mw,
            )
        ]
        self._hear(done)
        return done

    def _name(self, kind: str, gpu: str) -> str:
        """Return the next command's id: the same when the stream is heard again."""
        self._commands += 1
        return f"{kind}{self._now_ns(gpu)}-{self._commands}/{gpu[-12:]}"

    # ---- what people see

    def _tell(self, gpus: Iterable[str]) -> list[Output]:
        """Return the rows of GPUs that have changed."""
        changed: list[Output] = []
        for gpu in gpus:
            if (account := self._accounts.get(gpu)) is None:
                continue
            run = self._commander(gpu) or self._user(gpu)
            row = BudgetShareRow(
                gpu=gpu,
                budget=self.allocations[gpu].group,
                run=None if run is None else run.name,
                most_w=(self._would_mw[gpu] if account.trouble else account.most_mw) / 1000,
                limit_w=account.limit_mw / 1000,
                reason=account.trouble,
            )
            if self._rations.get(gpu) != row:
                self._rations[gpu] = row
                changed.append(row)
        return changed

    def _tell_budgets(self) -> list[Output]:
        """Return the rows of budgets that have changed, and of GPUs that are under none any more."""
        freed = [self._rations.pop(gpu) for gpu in tuple(self._rations) if gpu not in self._accounts]
        rows = {}
        for budget, bound in zip(self._budgets, self._bounds, strict=True):
            rows[budget.group, budget.set_ns] = BudgetRow(
                budget=budget.group,
                set_ns=budget.set_ns,
                limit_w=budget.limit_mw / 1000,
                begin_ns=budget.begin_ns,
                end_ns=budget.end_ns,
                gpus=self._members[budget.group],
                binding=True,
                reason=self._cannot(budget, bound),
            )
        over = [replace(row, binding=False) for key, row in self._told.items() if key not in rows]
        changed = [row for key, row in rows.items() if self._told.get(key) != row]
        self._told = rows
        return [*over, *changed, *(replace(row, budget=None, most_w=None, reason="") for row in freed)]

    def _cannot(self, budget: Budget, bound: Bound) -> str:
        """Return why a budget cannot be kept, if it cannot."""
        least_mw = least(self._units, bound)
        if least_mw <= bound.most_mw or budget.way < 1:
            return ""
        kept = [gpu for gpu in self._members[budget.group] if gpu not in bound.gpus]
        kept_mw = sum(self._accounts[gpu].limit_mw for gpu in kept)
        parts = [
            f"the least limits of {len(bound.gpus)} GPUs are {least_mw / 1000:g} W" if bound.gpus else "",
            f"{len(kept)} GPUs that cannot be commanded keep {kept_mw / 1000:g} W" if kept else "",
        ]
        return (
            f"budget {budget.group}: could not be kept: {', '.join(filter(None, parts))}, over"
            f" {budget.limit_mw / 1000:g} W. Raise it, or name fewer GPUs."
        )

    # ---- GPUs

    def _found(self, gpu: str) -> int:
        found = self._fleet.gpus[gpu].found
        assert found is not None
        return self._found_mw.get(gpu, found.found_limit_mw or 0)

    def _least(self, gpu: str) -> int:
        found = self._fleet.gpus[gpu].found
        assert found is not None
        return found.min_limit_mw or 0

    def _now_ns(self, gpu: str) -> int:
        return self._fleet.now_ns[self._fleet.gpus[gpu].host]

    def _commander(self, gpu: str) -> Run | None:
        """Return the run that sets a GPU's limit."""
        run = self._runs.get(self._fleet.gpus[gpu].commander or "")
        return run if run is not None and run.commands_limits else None

    def _user(self, gpu: str) -> Run | None:
        """Return the first of the runs that compute on a GPU."""
        for session in self._fleet.gpus[gpu].sessions.values():
            if session.ended is None and session.started.world_size:
                return self._runs.get(session.started.run)
        return None
