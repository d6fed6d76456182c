"""The commands of one run: the limits it asks of its GPUs, and what came of that. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from analyzers.fleet.fleet import Allocation, Clocks, Fleet
from analyzers.fleet.session import Session
from analyzers.power_limit.profiler import LimitApplied, StepBegan
from analyzers.results.instructions import ApplyControl, Command, RestoreControl
from analyzers.results.result import Result
from analyzers.results.rows import Row
from zeus_stream.protocol.notes import ControlApplied, ControlRefused


@dataclass(slots=True)
class Attempt:
    """Limits that were asked of GPUs of the run: one of all, or (``single``) of some their own."""

    number: int
    single: bool = False
    waiting: set[str] = field(default_factory=set)
    """Commands without outcome."""
    applied_ns: dict[str, int] = field(default_factory=dict)
    """By host: when its last GPU was confirmed."""


class Commands:
    """Of one run."""

    def __init__(
        self,
        run: str,
        fleet: Fleet,
        allocations: Mapping[str, Allocation],
        sessions: Mapping[str, Session],
    ) -> None:
        """Begin with no command.

        Args:
            run: its name.
            fleet: the GPUs.
            allocations: by GPU, its share of a power budget.
            sessions: those of the run; the first names its commands.
        """
        self.held: dict[str, None] = {}
        """GPUs whose limit is ours."""
        self.asked_mw: dict[str, int] = {}
        """The limit that was asked for last, by GPU."""
        self._run = run
        self._fleet = fleet
        self._allocations = allocations
        self._sessions = sessions
        self._attempt: Attempt | None = None
        self._count = 0
        self._first = ""

    def ask(self, attempt: Attempt, limits_mw: Mapping[str, int], now: Clocks) -> Result:
        """Ask for limits of GPUs; what was asked for before is not waited for any longer."""
        self._attempt = attempt
        self.asked_mw |= limits_mw
        rows, commands = list[Row](), list[Command]()
        for gpu, limit_mw in limits_mw.items():
            command, share = self._name(gpu), self._allocations.get(gpu)
            holder = self._run if share is None else share.holder
            attempt.waiting.add(command)
            rows.append(self._fleet.asking(command, self._run, gpu, limit_mw, now))
            commands.append(
                ApplyControl(
                    command=command,
                    run=holder,
                    host=self._fleet.gpus[gpu].host,
                    gpu=gpu,
                    control="power_limit",
                    value=limit_mw,
                )
            )
        return Result(tuple(rows), tuple(commands))

    def give_back(self, now: Clocks) -> Result:
        """Give back every limit that is ours, but where it is a power budget's to say."""
        held, self.held, self._attempt, self.asked_mw = self.held, {}, None, {}
        rows, commands = list[Row](), list[Command]()
        for gpu in held:
            if gpu not in self._allocations:
                command = self._name(gpu)
                rows.append(self._fleet.asking(command, self._run, gpu, None, now))
                commands.append(
                    RestoreControl(
                        command=command,
                        run=self._run,
                        host=self._fleet.gpus[gpu].host,
                        gpu=gpu,
                        control="power_limit",
                    )
                )
        return Result(tuple(rows), tuple(commands))

    def applied(self, note: ControlApplied, host: str) -> None:
        """A GPU's limit was set as asked."""
        self.held[note.gpu] = None
        attempt = self._attempt
        if attempt is not None and note.command in attempt.waiting:
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
        """Return the attempt whose limits are in force, once the ranks concerned have begun a step since."""
        attempt = self._attempt
        if attempt is None or attempt.waiting or lead is None:
            return None
        applied_ns = attempt.applied_ns
        concerned = [session for session in ranks if session.gpus and session.host in applied_ns]
        firsts = [session.first_since(applied_ns[session.host]) for session in concerned]
        known = [first for first in firsts if first is not None]
        if len(known) < len(firsts):
            return None
        index = max(known, default=lead.step)
        began_ns = None if index is None else lead.began_ns(index)
        if index is None or began_ns is None:
            return None
        self._attempt = None
        return attempt, LimitApplied(attempt.number, StepBegan(index, began_ns))

    def _name(self, gpu: str) -> str:
        """Return the next command's id: the same when the stream is heard again, and no other run's."""
        self._count += 1
        self._first = self._first or next(iter(self._sessions))
        return f"{self._run[:100]}/{self._first[:8]}-{self._count}/{gpu[-12:]}"
