"""Controls of GPUs: who may set them, what was asked for, what is in force, what waits. Pure.

    commands -> wait while the stream of their host is old -> are sent, the last of each control
    notes of a collector -> what is in force               -> leases to be renewed

This is the only owner of these facts: runs, budgets and the shell ask it.

A lease is renewed from when its command is sent, not from when its outcome was interpreted: on a busy host
that may be later than the lease lasts. A renewal of a lease that was refused or has ended changes nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from msgspec import Struct, field

from analyzers.results.fleet_rows import CommandRow
from analyzers.results.result import ApplyControl, ApplyPlan, Command, Instruction, RestoreControl
from zeus_stream.protocol.fields import BUDGET, UNLOCKED, Control
from zeus_stream.protocol.notes import ControlApplied, ControlLeaseEnded, ControlRefused

MAX_SENT = 1_000
"""Commands of a host under way; the oldest are forgotten."""
MAX_ASKED = 10_000
"""Commands without outcome remembered; the oldest go."""
BACK = f"{BUDGET}back-"
"""Begins the ids of commands that give back what a budget held; those of its others begin with `BUDGET`."""

ControlOfGpu = tuple[str, Control]


class _Host(Struct, kw_only=True):
    followed: bool = False
    connected: bool = False
    caught_up: bool = False
    """Its log was interpreted to the end once since the start."""
    in_force: dict[ControlOfGpu, int] = field(default_factory=dict)
    """Values that the collector confirmed: mW or MHz."""
    sent: dict[str, ControlOfGpu] = field(default_factory=dict)
    """By id, commands that set a control and have no outcome yet."""
    returned: dict[ControlOfGpu, None] = field(default_factory=dict)
    """Controls for which a command that gives them back was sent."""
    deferred: dict[ControlOfGpu, Command] = field(default_factory=dict)
    """The last command of each control that was not sent yet."""
    unsettled: dict[str, Command] = field(default_factory=dict)
    """By id, all commands that were sent and have no outcome yet."""
    leases: frozenset[str] | None = None
    """None: to be found again."""


class _Asked(Struct, frozen=True):
    """A command without outcome."""

    row: CommandRow
    host: str
    of_gpu: ControlOfGpu
    value: int | None
    """None: it gives the control back."""


class Holding(Struct):
    """The controls of one run."""

    held: dict[ControlOfGpu, None] = field(default_factory=dict)
    """The controls that the run holds."""
    asked_mw: dict[str, int] = field(default_factory=dict)
    """The limit that was asked for last, by GPU."""
    commanded: dict[str, None] = field(default_factory=dict)
    """GPUs whose limit it alone may set."""


class Pending:
    """The controls and commands of all hosts."""

    NOT_STATE: ClassVar = frozenset[str](("_at_once",))
    """A setting."""

    def __init__(self, *, at_once: bool = False) -> None:
        """``at_once``: no host is waited for, as where frames are interpreted that nobody acts on."""
        self._at_once = at_once
        self._hosts: defaultdict[str, _Host] = defaultdict(_Host)
        self._asked: dict[str, _Asked] = {}
        """By command, those without outcome."""
        self._under_way: defaultdict[str, dict[str, _Asked]] = defaultdict(dict)
        """By GPU and command: power limits asked for, until that or a later command has its outcome."""
        self._holdings: defaultdict[str, Holding] = defaultdict(Holding)
        """By run."""
        self._deferring: dict[str, None] = {}
        """Hosts for which commands wait."""
        self._commanders: dict[str, str] = {}
        """By GPU, the run that may set its limit."""
        self._of_budgets: dict[str, None] = {}
        """GPUs whose limit is in force, or asked for, in the name of a budget."""

    # ---- who may set limits

    def commander(self, gpu: str) -> str | None:
        return self._commanders.get(gpu)

    def appoint(self, run: str, gpus: Iterable[str]) -> None:
        """Let a run set the limits of GPUs, and nobody else."""
        for gpu in gpus:
            self._commanders[gpu] = run
            self._holdings[run].commanded[gpu] = None

    def dismiss(self, run: str) -> None:
        for gpu in self._holdings[run].commanded:
            if self._commanders.get(gpu) == run:
                del self._commanders[gpu]
        self._holdings[run].commanded.clear()

    def holding(self, run: str) -> Holding:
        return self._holdings[run]

    def forget(self, run: str) -> None:
        self.dismiss(run)
        self._holdings.pop(run, None)

    def forget_gpu(self, gpu: str) -> None:
        """Forget who may set the limit of a GPU, which is another host's from now on."""
        self._commanders.pop(gpu, None)

    # ---- commands and their outcomes

    def ask(self, command: Command, run: str, t_ns: int) -> CommandRow:
        """Take in a command of a run, at the frame time of its host. Return its row, without outcome."""
        plan = command if isinstance(command, ApplyPlan) else None
        value = max(plan.clocks_mhz) if plan else None
        if isinstance(command, ApplyControl):
            value = command.value
        is_limit = command.control == "power_limit"
        row = CommandRow(
            command=command.command,
            run=run,
            gpu=command.gpu,
            control=command.control,
            asked_ns=t_ns,
            limit_w=None if value is None or not is_limit else value / 1000,
            clock_mhz=value if command.control in ("graphics_clock", "memory_clock") else None,
            outcome=None,
            outcome_ns=None,
            outcome_limit_w=None,
            reason="",
            plan=plan.number if plan else None,
            plan_changes=count_changes(plan.clocks_mhz) if plan else None,
        )
        asked = _Asked(row, command.host, (command.gpu, command.control), value)
        self._asked[command.command] = asked
        if isinstance(command, ApplyControl) and is_limit:
            self._name_holder(command.gpu, of_budget=command.run.startswith(BUDGET))
            self._under_way[command.gpu][command.command] = asked
        if len(self._asked) > MAX_ASKED:
            oldest = next(iter(self._asked))
            self._under_way[self._asked.pop(oldest).row.gpu].pop(oldest, None)
        return row

    def under_way_mw(self, gpu: str) -> list[int]:
        """Return the limits of a GPU that were asked for and are not known to be in force or refused."""
        return [asked.value for asked in self._under_way[gpu].values() if asked.value is not None]

    def asked_ns(self, gpu: str) -> int:
        """Return when the last of `under_way_mw` was asked for, frame time; 0: there is none."""
        return max((asked.row.asked_ns for asked in self._under_way[gpu].values()), default=0)

    def settle(self, host: str, note: ControlApplied | ControlRefused) -> CommandRow | None:
        """Take in the outcome of a command. Return its row without it; None: it is not remembered.

        The outcome of a command on another GPU is none: its own may still come.
        """
        asked = self._asked.get(note.command)
        if asked is not None and asked.of_gpu[0] != note.gpu:
            return None
        known, _ = self._hosts[host], self._asked.pop(note.command, None)
        known.leases = None
        known.sent.pop(note.command, None)
        known.unsettled.pop(note.command, None)
        for of_gpu, deferred in tuple(known.deferred.items()):
            if deferred.command == note.command:  # decided again after a start
                del known.deferred[of_gpu]
        match note:
            case ControlApplied(gpu=gpu, control=control, value=value):
                back = note.command.startswith(BACK) if asked is None else asked.value is None
                if back or (control != "power_limit" and value == UNLOCKED):
                    known.in_force.pop((gpu, control), None)
                    known.returned.pop((gpu, control), None)
                else:
                    known.in_force[gpu, control] = value
                if control == "power_limit":
                    self._land(gpu, note.command)
                    if back or asked is None:
                        of_budget = not back and note.command.startswith(BUDGET)
                        self._name_holder(gpu, of_budget=of_budget)
            case ControlRefused(gpu=gpu) if asked is not None and asked.of_gpu[1] == "power_limit":
                self._land(gpu, note.command)
            case _:
                pass  # of a command that is not remembered
        return None if asked is None else asked.row

    def _land(self, gpu: str, command: str) -> None:
        """Count no more what was asked for before a command and by it: they are obeyed in order."""
        under_way = self._under_way[gpu]
        commands = list(under_way)
        for earlier in commands[: commands.index(command) + 1] if command in under_way else commands:
            del under_way[earlier]

    def _name_holder(self, gpu: str, *, of_budget: bool) -> None:
        """Note in whose name the limit of a GPU is: a budget's or a run's."""
        if of_budget:
            self._of_budgets[gpu] = None
        else:
            self._of_budgets.pop(gpu, None)

    def lost(self, host: str, note: ControlLeaseEnded) -> None:
        self._hosts[host].in_force.pop((note.gpu, note.control), None)
        self._hosts[host].leases = None
        if note.control == "power_limit":
            self._of_budgets.pop(note.gpu, None)

    def collector_started(self, host: str) -> None:
        """Take in that a collector started: it has given everything back."""
        known = self._hosts[host]
        for gpu, _ in known.in_force:
            self._of_budgets.pop(gpu, None)
        known.in_force.clear()
        known.sent.clear()
        known.unsettled.clear()
        known.returned.clear()
        known.leases = None
        for under_way in self._under_way.values():
            for command in [command for command, asked in under_way.items() if asked.host == host]:
                self._of_budgets.pop(under_way.pop(command).of_gpu[0], None)

    # ---- what is in force

    def in_force(self, host: str) -> dict[ControlOfGpu, int]:
        """Return what is in force on a host by our doing: mW of a power limit, MHz of a clock."""
        return dict(self._hosts[host].in_force)

    def limit_mw(self, host: str, gpu: str) -> int | None:
        """Return the limit of a GPU that is in force by our doing."""
        return self._hosts[host].in_force.get((gpu, "power_limit"))

    def caught_up(self, host: str) -> bool:
        """Tell whether a host's log was interpreted to its end since the start."""
        return self._hosts[host].caught_up

    def is_of_budget(self, gpu: str) -> bool:
        """Return whether the limit of a GPU is in force, or asked for, in the name of a budget."""
        return gpu in self._of_budgets

    def leases(self) -> Mapping[str, frozenset[str]]:
        for known in self._hosts.values():
            if known.leases is None:
                known.leases = _leased(known)
        return {name: known.leases for name, known in self._hosts.items() if known.leases}

    # ---- what is sent, and when

    def waiting(self) -> Mapping[str, int]:
        """Return, by host, the number of commands that wait until its stream is no longer old."""
        return {name: len(known.deferred) for name, known in self._hosts.items()}

    def link(self, host: str, *, connected: bool, behind: int | None) -> None:
        """Take in the state of a host's link. ``behind``: frames to be interpreted; None: not known."""
        known = self._hosts[host]
        known.followed, known.connected = True, connected
        known.caught_up = known.caught_up or behind == 0

    def release(self, instructions: Iterable[Instruction]) -> tuple[Instruction, ...]:
        """Take in instructions. Return those to be sent now: answers at once, commands when it is time."""
        now: list[Instruction] = []
        for instruction in instructions:
            known = self._hosts[instruction.host]
            match instruction:
                case ApplyControl() | ApplyPlan() | RestoreControl() if self._at_once:
                    self._sent(known, instruction)
                    now.append(instruction)
                case ApplyControl() | ApplyPlan() | RestoreControl():
                    known.deferred[instruction.gpu, instruction.control] = instruction
                    self._deferring[instruction.host] = None
                case _ if known.followed or self._at_once:
                    now.append(instruction)
                case _:
                    pass  # an answer for a host that is not followed
        for name in list(self._deferring):
            known = self._hosts[name]
            if known.connected and known.caught_up:
                del self._deferring[name]
                commands = list(known.deferred.values())
                known.deferred.clear()
                for command in commands:
                    self._sent(known, command)
                now += commands
        return tuple(now)

    def restart(self) -> None:
        """Take in a restart: no link is known, and commands without outcome are to be sent again."""
        for name, known in self._hosts.items():
            known.followed = known.connected = known.caught_up = False
            waiting = {(each.gpu, each.control): each for each in known.unsettled.values()}
            known.deferred = waiting | known.deferred
            known.sent, known.unsettled, known.returned, known.leases = {}, {}, {}, None
            if known.deferred:
                self._deferring[name] = None

    def _sent(self, known: _Host, command: Command) -> None:
        of_gpu, known.leases = (command.gpu, command.control), None
        known.unsettled[command.command] = command
        if len(known.unsettled) > MAX_SENT:
            del known.unsettled[next(iter(known.unsettled))]
        match command:
            case ApplyControl() | ApplyPlan():
                known.returned.pop(of_gpu, None)
                known.sent[command.command] = of_gpu
                if len(known.sent) > MAX_SENT:
                    del known.sent[next(iter(known.sent))]
            case RestoreControl():
                known.returned[of_gpu] = None
                known.sent = {sent: other for sent, other in known.sent.items() if other != of_gpu}

    def validate(self) -> None:
        """Check what holds between events. Raises AssertionError."""
        for gpu, run in self._commanders.items():
            assert gpu in self._holdings[run].commanded, f"{gpu}: {run} does not command it"
        for gpu, under_way in self._under_way.items():
            assert all(asked.of_gpu == (gpu, "power_limit") for asked in under_way.values()), gpu
        for name, known in self._hosts.items():
            assert not known.deferred or name in self._deferring, f"{name}: its commands wait for nothing"
            assert known.leases in (None, _leased(known)), f"{name}: other leases are renewed"


def _leased(known: _Host) -> frozenset[str]:
    held = (of for of in known.in_force if of not in known.returned)
    return frozenset(gpu for gpu, _ in (*held, *known.sent.values()))


def count_changes(clocks_mhz: Sequence[int]) -> int:
    """Return how often the clock changes in one iteration of a plan, which the next iteration follows."""
    return sum(
        before != after for before, after in zip(clocks_mhz, (*clocks_mhz[1:], clocks_mhz[0]), strict=True)
    )
