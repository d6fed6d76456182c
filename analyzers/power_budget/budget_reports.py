"""Rows that people see of power budgets, and of the GPUs under them: each when it has changed. Pure."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from analyzers.power_budget.accounts import Accounts
from analyzers.power_budget.allocation import Bound, least
from analyzers.power_budget.shares import Shares
from analyzers.results.rows import BudgetRow, BudgetShareRow, Row
from zeus_stream.protocol.notes import Budget


class BudgetReports:
    """The rows that were given last."""

    def __init__(self, accounts: Accounts, shares: Shares) -> None:
        """Begin with none."""
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
                limit_w=budget.limit_mw / 1000,
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
