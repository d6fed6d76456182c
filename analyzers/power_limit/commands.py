"""The commands of one run: the levels it asks of its GPUs, and what came of that. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from analyzers.dispatch.pending import ControlOfGpu, Pending
from analyzers.fleet.fleet import Allocation, Clocks, Fleet
from analyzers.fleet.session import Session
from analyzers.power_limit.search.levels import Level
from analyzers.power_limit.visits import MIXED, LimitApplied, StepBegan
from analyzers.results.result import ApplyControl, Command, RestoreControl, Result
from analyzers.results.rows import Row
from zeus_stream.protocol.fields import Control
from zeus_stream.protocol.notes import ControlApplied, ControlRefused

SAME_MW = 1_000
"""Limits that differ by less are the same."""
MAX_ASKED = 1_000
"""Commands of a run whose time is remembered; the oldest go."""


@dataclass(slots=True)
class Attempt:
    """Levels that were asked of GPUs of the run: one of all, or (``single``) of some their own."""

    number: int
    single: bool = False
    waiting: set[str] = field(default_factory=set)
    """Commands without outcome."""
    applied_ns: dict[str, int] = field(default_factory=dict)
    """By host: when its last GPU was confirmed."""
    taken_mw: int | None = None
    """The highest limit that a driver made of the one asked for, where that is another."""


class Commands:
    """Of one run."""

    def __init__(
        self,
        run: str,
        fleet: Fleet,
        pending: Pending,
        allocations: Mapping[str, Allocation],
        sessions: Mapping[str, Session],
    ) -> None:
        """Begin with no command. ``allocations``: by GPU. The first of ``sessions`` names the commands."""
        self._run = run
        self._fleet = fleet
        self._pending = pending
        self._allocations = allocations
        self._sessions = sessions
        self._attempt: Attempt | None = None
        self._count = 0
        self._first = ""
        self._asked_ns: dict[str, int] = {}
        """By command: frame time at which it was asked for, of the last `MAX_ASKED`."""
        self.behind_ns = 0
        """From when a limit was asked for, in frame time, until it was in force: the longest since the last
        decision. An analyzer that is behind asks late."""

    def ask(
        self, attempt: Attempt, levels: Mapping[str, Level], now: Clocks, profiles: int | None = None
    ) -> Result:
        """Ask for levels of GPUs; what was asked for before is not waited for any longer.

        ``profiles``: bits of the power profiles that they have to have; None: those found.
        """
        self._attempt = attempt
        holding = self._pending.holding(self._run)
        rows, commands, wanted = list[Row](), list[Command](), list[tuple[str, Control, int]]()
        for gpu, level in levels.items():
            if profiles is not None and (gpu, "power_profile") not in holding.held:
                wanted.append((gpu, "power_profile", profiles))
            if level.clock_mhz is None:
                holding.asked_mw[gpu] = level.limit_mw
                wanted.append((gpu, "power_limit", level.limit_mw))
            else:
                wanted.append((gpu, "graphics_clock", level.clock_mhz))
        for gpu, control, value in wanted:
            command = self._command(gpu, control, value)
            attempt.waiting.add(command.command)
            self._asked_ns[command.command] = now[command.host]
            if len(self._asked_ns) > MAX_ASKED:
                del self._asked_ns[next(iter(self._asked_ns))]
            rows.append(self._pending.ask(command, self._run, now[command.host]))
            commands.append(command)
        return Result(tuple(rows), tuple(commands))

    def _command(self, gpu: str, control: Control, value: int) -> ApplyControl:
        share = self._allocations.get(gpu) if control == "power_limit" else None
        return ApplyControl(
            command=self._name(gpu),
            run=self._run if share is None else share.holder,
            host=self._fleet.gpus[gpu].host,
            gpu=gpu,
            control=control,
            value=value,
        )

    def give_back(self, now: Clocks) -> Result:
        """Give back every control that is ours, but a limit where it is a power budget's to say."""
        holding = self._pending.holding(self._run)
        held, holding.held, holding.asked_mw, self._attempt = holding.held, {}, {}, None
        return self._restore(held, now)

    def release(self, control: Control, now: Clocks) -> Result:
        """Give back one control of every GPU that is ours."""
        holding = self._pending.holding(self._run)
        ours = {key: None for key in holding.held if key[1] == control}
        holding.held = {key: None for key in holding.held if key not in ours}
        if control == "power_limit":
            holding.asked_mw = {}
        return self._restore(ours, now)

    def _restore(self, held: Iterable[ControlOfGpu], now: Clocks) -> Result:
        rows, commands = list[Row](), list[Command]()
        for gpu, control in held:
            if control != "power_limit" or gpu not in self._allocations:
                host = self._fleet.gpus[gpu].host
                command = RestoreControl(
                    command=self._name(gpu), run=self._run, host=host, gpu=gpu, control=control
                )
                rows.append(self._pending.ask(command, self._run, now[host]))
                commands.append(command)
        return Result(tuple(rows), tuple(commands))

    def applied(self, note: ControlApplied, host: str) -> None:
        """Take in that a control of a GPU was set as asked. Of power profiles, a release comes here too."""
        asked_ns = self._asked_ns.pop(note.command, None)
        if asked_ns is None and note.control == "power_profile":
            return
        self._pending.holding(self._run).held[note.gpu, note.control] = None
        attempt = self._attempt
        if asked_ns is not None:
            self.behind_ns = max(self.behind_ns, note.t_ns - asked_ns)
        if attempt is not None and note.command in attempt.waiting:
            asked_mw = self._pending.holding(self._run).asked_mw.get(note.gpu)
            if (
                note.control == "power_limit"
                and asked_mw is not None
                and abs(note.value - asked_mw) >= SAME_MW
            ):
                attempt.taken_mw = max(note.value, attempt.taken_mw or 0)
            attempt.waiting.discard(note.command)
            attempt.applied_ns[host] = max(note.t_ns, attempt.applied_ns.get(host, 0))

    def refused(self, note: ControlRefused) -> Attempt | None:
        """Return the attempt that a refusal ends, if it is the one under way."""
        attempt = self._attempt
        if attempt is None or note.command not in attempt.waiting:
            return None
        self._attempt = None
        return attempt

    def landed(self, ranks: Iterable[Session], lead: Session | None) -> tuple[Attempt, LimitApplied] | None:
        """Return the attempt whose limits are in force, once the ranks concerned have begun a step since.

        A step under way counts if the limits came within the first `MIXED` of it.
        """
        attempt = self._attempt
        if attempt is None or attempt.waiting or lead is None:
            return None
        applied_ns = attempt.applied_ns
        concerned = [session for session in ranks if session.gpus and session.host in applied_ns]
        firsts = [
            session.first_since(applied_ns[session.host] - round(MIXED * session.last_step_ns()))
            for session in concerned
        ]
        known = [first for first in firsts if first is not None]
        if len(known) < len(firsts):
            return None
        index = max(known, default=lead.step)
        began_ns = None if index is None else lead.began_ns(index)
        if index is None or began_ns is None:
            return None
        begins = ((session.began_ns(index), applied_ns[session.host]) for session in concerned)
        waited_ns = min((began - applied for began, applied in begins if began is not None), default=0)
        self._attempt = None
        since = StepBegan(index, began_ns)
        return attempt, LimitApplied(attempt.number, since, attempt.taken_mw, waited_ns)

    def _name(self, gpu: str) -> str:
        """Return the next command's id: the same when the stream is interpreted again, and no other run's."""
        self._count += 1
        self._first = self._first or next(iter(self._sessions))
        return f"{self._run[:100]}/{self._first[:8]}-{self._count}/{gpu[-12:]}"
