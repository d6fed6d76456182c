"""Accounts of GPUs under power budgets: what each may have, and what is in the way. Pure.

What is in force, and in whose name, `analyzers.dispatch.pending` knows.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from analyzers.dispatch.pending import BACK, Pending
from analyzers.fleet.fleet import Clocks, Fleet
from analyzers.results.instructions import ApplyControl
from analyzers.results.rows import CommandRow
from zeus_stream.protocol.fields import BUDGET
from zeus_stream.protocol.notes import ControlApplied, ControlLeaseEnded, ControlRefused

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
    of_run: tuple[int | None, bool] = (None, False)
    """What its run wants, and whether it has a profile, when it was looked at last."""
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
