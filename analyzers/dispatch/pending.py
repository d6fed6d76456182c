"""Controls of GPUs that are in force, and commands that wait, as the shell of the analyzer needs them. Pure.

    commands -> wait while the stream of their host is old -> are sent, the last of each control
    notes of a collector -> what is in force               -> leases to be renewed

A lease is renewed from when its command is sent, not from when its outcome was interpreted: on a busy host
that may be later than the lease lasts. A renewal of a lease that was refused or has ended changes nothing.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from analyzers.results.instructions import ApplyControl, ApplyPlan, Command, Instruction, RestoreControl
from zeus_stream.protocol.fields import UNLOCKED, Control, Unknown
from zeus_stream.protocol.notes import (
    CollectorStarted,
    ControlApplied,
    ControlLeaseEnded,
    ControlRefused,
    Note,
)

MAX_SENT = 1_000
"""Commands of a host under way; the oldest are forgotten."""

ControlOfGpu = tuple[str, Control]


@dataclass(slots=True, kw_only=True)
class _Host:
    followed: bool = False
    connected: bool = False
    caught_up: bool = False
    """Its log was interpreted to the end once since the start."""
    in_force: dict[ControlOfGpu, int] = field(default_factory=dict)
    """What a collector confirmed: mW or MHz."""
    sent: dict[str, ControlOfGpu] = field(default_factory=dict)
    """By id, commands that set a control and have no outcome yet."""
    deferred: dict[ControlOfGpu, Command] = field(default_factory=dict)
    """The last command of each control that was not sent yet."""


class Pending:
    """The controls and commands of all hosts."""

    def __init__(self) -> None:
        self._hosts: defaultdict[str, _Host] = defaultdict(_Host)

    def leases(self, host: str) -> frozenset[str]:
        """Return the GPUs of a host whose leases are to be renewed."""
        known = self._hosts[host]
        return frozenset(gpu for gpu, _ in (*known.in_force, *known.sent.values()))

    def in_force(self, host: str) -> dict[ControlOfGpu, int]:
        """Return what is in force on a host by our doing: mW of a power limit, MHz of a clock."""
        return dict(self._hosts[host].in_force)

    def waiting(self, host: str) -> int:
        """Return the number of commands that wait until the host's stream is no longer old."""
        return len(self._hosts[host].deferred)

    def link(self, host: str, *, connected: bool, behind: int | None) -> None:
        """Take in the state of a host's link. ``behind``: frames to be interpreted; None: not known."""
        known = self._hosts[host]
        known.followed, known.connected = True, connected
        known.caught_up = known.caught_up or behind == 0

    def notes(self, host: str, notes: Iterable[Note | Unknown]) -> None:
        """Take in what a collector noted, in order."""
        known = self._hosts[host]
        for note in notes:
            match note:
                case ControlApplied(command=command, gpu=gpu, control=control, value=value):
                    if control != "power_limit" and value == UNLOCKED:
                        known.in_force.pop((gpu, control), None)
                    else:
                        known.in_force[gpu, control] = value
                    self._settle(known, command)
                case ControlRefused(command=command):
                    self._settle(known, command)
                case ControlLeaseEnded(gpu=gpu, control=control):
                    known.in_force.pop((gpu, control), None)
                case CollectorStarted():
                    known.in_force.clear()
                    known.sent.clear()
                case _:
                    pass  # nothing about controls

    def handle(self, instructions: Iterable[Instruction]) -> list[Instruction]:
        """Take in instructions. Return those to be sent now: answers at once, commands when it is time."""
        now: list[Instruction] = []
        for instruction in instructions:
            known = self._hosts[instruction.host]
            if isinstance(instruction, ApplyControl | ApplyPlan | RestoreControl):
                known.deferred[instruction.gpu, instruction.control] = instruction
            elif known.followed:
                now.append(instruction)
        for known in self._hosts.values():
            if known.connected and known.caught_up:
                now += self._send(known)
        return now

    def _send(self, known: _Host) -> list[Command]:
        commands = list(known.deferred.values())
        known.deferred.clear()
        for command in commands:
            of_gpu = command.gpu, command.control
            if isinstance(command, ApplyControl | ApplyPlan):
                known.sent[command.command] = of_gpu
                if len(known.sent) > MAX_SENT:
                    del known.sent[next(iter(known.sent))]
            else:
                known.in_force.pop(of_gpu, None)
                known.sent = {sent: other for sent, other in known.sent.items() if other != of_gpu}
        return commands

    def _settle(self, known: _Host, command: str) -> None:
        """Forget a command that has its outcome, also one that was decided again after a start."""
        known.sent.pop(command, None)
        for of_gpu, deferred in tuple(known.deferred.items()):
            if deferred.command == command:
                del known.deferred[of_gpu]
