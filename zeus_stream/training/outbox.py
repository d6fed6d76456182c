"""The events that a publisher has yet to hand over: in order, each once, in bounded memory. Pure.

    put -> entries (at most ROOM) --\\
                                    +-> flight (one batch, sent until acknowledged) -> gone
    loop of steps -> its stamps ----/

The training thread puts, one other thread does everything else. An entry is a tuple of a message's class and
its fields, which costs the training next to nothing. The message is built when it is sent. A loop of steps
appends instants to a list of its own, and each entry carries the number of the steps before it.

A collector that acknowledges less than it did before has lost its log, or is another one. Then the same run
goes on in a new session, which begins with its `RunStarted`.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from zeus_stream.protocol.events import (
    Ack,
    Ask,
    AskTry,
    Batch,
    Event,
    EventsDropped,
    RunStarted,
    StepBoundary,
)
from zeus_stream.protocol.fields import Name, Ns


class StepStamps:
    """Steps of one loop without a pause in between. One thread appends, another reads.

    The loop appends the instant at which each step began and the one at which it ended, and asks one flag.
    The sender works out all else: the number of a step, its boundary, the room that it takes.
    """

    __slots__ = ("before", "ended_ns", "first", "instants_ns", "stop")

    def __init__(self, first: int, ended_ns: Ns | None, before: int) -> None:
        self.first = first
        """Number of the first step."""
        self.ended_ns = ended_ns
        """End of the step before the first, if that is of the same loop."""
        self.before = before
        """Steps of this process that began before and were stamped so."""
        self.instants_ns: list[Ns] = []
        """Began, ended, began, ...: only ever appended to."""
        self.stop = False
        """The loop is to take its next stamps elsewhere. Any thread may say so."""

    @property
    def begun(self) -> int:
        """Return the number of steps that began."""
        return (len(self.instants_ns) + 1) // 2

    @property
    def last_ended_ns(self) -> Ns | None:
        """Return the end of the step that ended last. None: one is open."""
        instants_ns = self.instants_ns
        if len(instants_ns) % 2:
            return None
        return instants_ns[-1] if instants_ns else self.ended_ns

    def boundaries(self, start: int, end: int) -> Iterator[StepBoundary]:
        """Return the boundaries at which its steps from ``start`` to before ``end`` began."""
        instants_ns = self.instants_ns[max(0, 2 * start - 1) : 2 * end - 1]
        began_ns = instants_ns[1::2] if start else instants_ns[::2]
        ended_ns = instants_ns[::2] if start else [self.ended_ns, *instants_ns[1::2]]
        return map(StepBoundary, range(self.first + start, self.first + end), ended_ns, began_ns)


ROOM = 100_000
"""Events kept for a collector that is not there: 18 MB, or 25 minutes of 15 ms steps. A loop notices after
the sender's next turn that there is no more room."""
LONG = 8_000
"""Stamps after which a loop begins another list of them, so that memory is given back."""
BATCH = 500
ASK_AGAIN_NS = 1_000_000_000


class OpenQuestion(Struct, frozen=True):
    """Asked once everything put before it is acknowledged; given up at ``until_ns``."""

    question: Name
    kind: type[Ask] | type[AskTry]
    about: tuple[int, ...]
    """The fields of ``kind`` after the session."""
    until_ns: Ns


class Held(Protocol):
    """An entry that is not known yet. Those after it wait for it, so it limits how long that may take."""

    def settle(self, now_ns: Ns) -> tuple[Any, ...] | None:
        """Return the entry, for good. None: not yet."""


class Outbox:
    """Everything that is not acknowledged yet."""

    def __init__(
        self, started: RunStarted, new_session: Callable[[], str], room: int = ROOM, hold_ns: int = 0
    ) -> None:
        """``hold_ns``: how long the beginning waits for a batch size, until more than two entries were put.

        A plan and an epoch may precede the first loop.
        """
        self._started = started
        self._begins_ns = started.t_ns + hold_ns
        self._new_session = new_session
        self._room = room
        self._entries: deque[tuple[int, tuple[Any, ...] | Held]] = deque()
        """Each with the number of stamped steps that began before it was put."""
        self._stamps: deque[StepStamps] = deque()
        """The last one may still grow."""
        self._read = self._last_read = 0
        """Stamped steps that were read; those that are read once it is closed."""
        self._flight: tuple[Event, ...] = ()
        self._begun = False
        """The beginning was sent, so it stays as it is."""
        self._sequence = 0
        self._questions: dict[str, tuple[OpenQuestion, Ns]] = {}
        self._dropped_said = 0
        self.session = new_session()
        self.acknowledged = 0
        self.dropped = 0
        """Entries that found no room. The stream says so, as soon as there is room again."""

    def know(self, batch_size: int) -> None:
        """Say it with the run's beginning, if that does not say one and was not sent."""
        if not self._begun and self._started.batch_size is None:
            self._started = replace(self._started, batch_size=batch_size)

    def put(self, entry: tuple[Any, ...] | Held) -> None:
        """Take in ``(class, field, ...)``, without a lock or a wait. The class may be any callable."""
        if self._unread < self._room:
            self._entries.append((self._steps_begun, entry))
        else:
            self.dropped += 1

    def stamps(self, first: int, ended_ns: Ns | None) -> StepStamps | None:
        """Return where a loop stamps its steps from number ``first`` on. None: there is no room."""
        if self._unread >= self._room:
            return None
        stamps = StepStamps(first, ended_ns, self._steps_begun)
        self._stamps.append(stamps)
        stamps.stop = self._room < 0  # closed by another thread since
        return stamps

    def watch(self) -> bool:
        """Have the loop leave stamps that are too many. Returns whether a loop may be stamping."""
        if not self._stamps:
            return False
        stamps = self._stamps[-1]
        stamps.stop = stamps.stop or len(stamps.instants_ns) > LONG or self._unread >= self._room
        return not stamps.stop

    def close(self, *last: tuple[Any, ...]) -> None:
        """Take in ``last``, room or not, and nothing more."""
        self._end_stamps()
        self._entries.extend((self._last_read, entry) for entry in last)

    def empty(self) -> None:
        """Forget everything, and take in nothing more."""
        self._end_stamps()
        self._read = self._last_read
        self._stamps.clear()
        self._entries.clear()
        self._questions.clear()
        self._flight, self._begun = (), True

    def _end_stamps(self) -> None:
        self._last_read, self._room = self._steps_begun, -1
        for stamps in tuple(self._stamps):
            stamps.stop = True

    @property
    def _steps_begun(self) -> int:
        """Stamped steps that began, as far as they are taken in."""
        if self._room < 0 or not self._stamps:
            return self._last_read
        stamps = self._stamps[-1]
        return stamps.before + stamps.begun

    @property
    def _unread(self) -> int:
        return len(self._entries) + self._steps_begun - self._read

    @property
    def closed(self) -> bool:
        """Nothing more is taken in."""
        return self._room < 0

    @property
    def waiting(self) -> int:
        """Events that are not acknowledged."""
        return self._unread + len(self._flight) + (not self._begun)

    @property
    def fresh(self) -> bool:
        """There is an entry that is known, or a stamped step, that was not taken into a batch."""
        if self._steps_begun > self._read:
            return True
        return bool(self._entries) and isinstance(self._entries[0][1], tuple)

    @property
    def holding(self) -> bool:
        """The next entry is not known yet: it is to be looked at again soon."""
        return bool(self._entries) and not isinstance(self._entries[0][1], tuple)

    def batch(self, now_ns: Ns) -> Batch | None:
        """Return what is in flight: the same until it is acknowledged. None: there is nothing to send."""
        if not self._begun:
            open_yet = self._room >= 0 and self._unread < 3
            if self._started.batch_size is None and open_yet and now_ns < self._begins_ns:
                return None
            self._begun = True
            self._flight = (self._started,)
        if not self._flight:
            self._load(now_ns)
            if self.dropped > self._dropped_said and self._unread < self._room:
                count = self.dropped - self._dropped_said
                self.put((EventsDropped, now_ns, count, "no collector took them in time"))
                self._dropped_said += count
        return Batch(self.session, self._sequence, self._flight) if self._flight else None

    def gather(self, now_ns: Ns) -> None:
        """Add what came since to what is in flight."""
        if self._flight:
            self._load(now_ns)

    def _load(self, now_ns: Ns) -> None:
        events = list(self._flight)
        while len(events) < BATCH:
            begun = self._steps_begun  # before the entries: what is put from here on comes after these steps
            before, head = self._entries[0] if self._entries else (begun, None)
            if self._read < min(before, begun):
                self._load_steps(min(before, begun, self._read + BATCH - len(events)), events)
                continue
            if head is None:
                break
            if self._read < before and not self.closed:
                continue  # they began since we looked; if it was closed since, they are not taken in
            entry = head if isinstance(head, tuple) else head.settle(now_ns)
            if entry is None:
                break
            kind, *fields = entry
            if kind is not OpenQuestion:
                events.append(kind(*fields))
            elif events:
                break  # until they are acknowledged
            else:
                question = OpenQuestion(*fields)
                self._questions[question.question] = question, 0
            self._entries.popleft()
        self._flight = tuple(events)

    def _load_steps(self, end: int, events: list[Event]) -> None:
        """Read stamped steps up to this one, or up to the last of the oldest stamps."""
        stamps = self._stamps[0]
        while len(self._stamps) > 1 and self._read == stamps.before + stamps.begun:
            self._stamps.popleft()
            stamps = self._stamps[0]
        end = min(end - stamps.before, stamps.begun)
        events.extend(stamps.boundaries(self._read - stamps.before, end))
        self._read = stamps.before + end

    def acknowledge(self, ack: Ack) -> bool:
        """Let go of what the collector has. Returns whether it has anything new."""
        if ack.session != self.session:
            return False
        done = ack.next_sequence - self._sequence
        if done < 0:
            self.session, self._sequence = self._new_session(), 0
            self._flight = (self._started, *self._flight)
        if not 0 < done <= len(self._flight):
            return False
        self._flight = self._flight[done:]
        self._sequence += done
        self.acknowledged += done
        return True

    def asks(self, now_ns: Ns) -> tuple[Ask | AskTry, ...]:
        """Return the questions to be sent now, for the first time or again."""
        if not self._questions:
            return ()
        self._questions = {
            name: (asked, next_ns)
            for name, (asked, next_ns) in self._questions.items()
            if now_ns < asked.until_ns
        }
        due = [asked for asked, next_ns in self._questions.values() if now_ns >= next_ns]
        self._questions.update({asked.question: (asked, now_ns + ASK_AGAIN_NS) for asked in due})
        return tuple(asked.kind(asked.question, self.session, *asked.about) for asked in due)

    def answered(self, question: Name) -> None:
        """Ask no more."""
        self._questions.pop(question, None)
