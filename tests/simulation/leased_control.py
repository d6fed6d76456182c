"""The lease of one control, and what carries out its instructions in turn, as the thread of a device does.

Subclasses say what a device, its record and a collector's log do, and what of it fails.
"""

from collections import deque

from collectors.controls.lease import ControlState, LeaseRules, step, validate
from collectors.controls.lease_messages import (
    CallRestore,
    CallSet,
    ClearRecord,
    Event,
    Instruction,
    Limits,
    Outcome,
    RecordFailed,
    Repeat,
    Say,
    WriteRecord,
)
from zeus_stream.protocol.notes import ControlApplied, ControlRefused, Note


class LeasedControl:
    """A control that is leased, and the instructions that wait to be carried out."""

    def __init__(self, rules: LeaseRules, state: ControlState) -> None:
        self.rules = rules
        self.state = state
        self.jobs: deque[Instruction] = deque()

    def tell(self, event: Event, now_ns: int) -> None:
        """Take in an event."""
        self.state, todo = step(self.rules, self.state, event, now_ns)
        validate(self.state)
        self.take(todo)

    def take(self, todo: tuple[Instruction, ...]) -> None:
        """Take in instructions: notes are logged at once, the rest waits."""
        for instruction in todo:
            match instruction:
                case Say(note):
                    self.say(note)
                    if isinstance(note, ControlApplied | ControlRefused):
                        self.reply(note)
                case Repeat(outcome):
                    self.reply(outcome)
                case _:
                    self.jobs.append(instruction)

    def work(self) -> Event | None:
        """Carry out the oldest instruction that waits. Return its outcome."""
        match self.jobs.popleft():
            case WriteRecord(limits):
                self.write_record(limits)
                return None
            case ClearRecord():
                self.clear_record()
                return None
            case CallSet(limits):
                if not self.write_record(limits):
                    return RecordFailed("no room")
                return self.set(limits)
            case CallRestore(limits):
                return self.restore(limits)
            case Say() | Repeat() as job:
                raise AssertionError(job)

    def say(self, *notes: Note) -> None:
        """Log notes."""

    def reply(self, outcome: Outcome, /) -> None:
        """Reply to a command."""

    def write_record(self, limits: Limits) -> bool:
        """Write a record; False: it failed."""
        raise NotImplementedError

    def clear_record(self) -> None:
        raise NotImplementedError

    def set(self, limits: Limits, /) -> Event:
        raise NotImplementedError

    def restore(self, limits: Limits) -> Event:
        raise NotImplementedError
