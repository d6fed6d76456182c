"""The events that a publisher has yet to hand over: in order, each once, in bounded memory. Pure.

    put -> entries (at most ROOM) -> flight (one batch, sent until acknowledged) -> gone

The training thread puts, one other thread does everything else. An entry is a tuple of a message's class
and its fields: making it costs the training next to nothing, the message is built when it is sent.

A collector that acknowledges less than it did before has lost its log (or is another one): then the same
run goes on in a new session, which begins with its `RunStarted` like every other.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from zeus_stream.protocol.events import Ack, Ask, AskTry, Batch, Event, EventsDropped, RunStarted
from zeus_stream.protocol.fields import Name, Ns
from zeus_stream.records import record

ROOM = 100_000
"""Events kept for a collector that is not there: 18 MB, or 25 minutes of 15 ms steps."""
BATCH = 500
ASK_AGAIN_NS = 1_000_000_000


@record
class Question:
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
        """``hold_ns``: how long the beginning waits for a batch size, until more than two entries were put:
        a plan and an epoch may precede the first loop."""
        self._started = started
        self._begins_ns = started.t_ns + hold_ns
        self._new_session = new_session
        self._room = room
        self._entries: deque[tuple[Any, ...] | Held] = deque()
        self._flight: tuple[Event, ...] = ()
        self._begun = False
        """The beginning was sent, so it stays as it is."""
        self._sequence = 0
        self._questions: dict[str, tuple[Question, Ns]] = {}
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
        if len(self._entries) < self._room:
            self._entries.append(entry)
        else:
            self.dropped += 1

    def close(self, *last: tuple[Any, ...]) -> None:
        """Take in ``last``, room or not, and nothing more."""
        self._room = -1
        self._entries.extend(last)

    def empty(self) -> None:
        """Forget everything, and take in nothing more."""
        self._room = -1
        self._entries.clear()
        self._questions.clear()
        self._flight, self._begun = (), True

    @property
    def waiting(self) -> int:
        """Entries that are not acknowledged."""
        return len(self._entries) + len(self._flight) + (not self._begun)

    @property
    def fresh(self) -> bool:
        """There is an entry that is known and was not taken into a batch."""
        return bool(self._entries) and isinstance(self._entries[0], tuple)

    @property
    def holding(self) -> bool:
        """The next entry is not known yet: it is to be looked at again soon."""
        return bool(self._entries) and not isinstance(self._entries[0], tuple)

    def batch(self, now_ns: Ns) -> Batch | None:
        """Return what is in flight: the same until it is acknowledged. None: there is nothing to send."""
        if not self._begun:
            open_yet = self._room >= 0 and len(self._entries) < 3
            if self._started.batch_size is None and open_yet and now_ns < self._begins_ns:
                return None
            self._begun = True
            self._flight = (self._started,)
        if not self._flight:
            self._load(now_ns)
            if self.dropped > self._dropped_said and len(self._entries) < self._room:
                count = self.dropped - self._dropped_said
                self._entries.append((EventsDropped, now_ns, count, "no collector took them in time"))
                self._dropped_said += count
        return Batch(self.session, self._sequence, self._flight) if self._flight else None

    def gather(self, now_ns: Ns) -> None:
        """Add what came since to what is in flight."""
        if self._flight:
            self._load(now_ns)

    def _load(self, now_ns: Ns) -> None:
        events = list(self._flight)
        while self._entries and len(events) < BATCH:
            head = self._entries[0]
            entry = head if isinstance(head, tuple) else head.settle(now_ns)
            if entry is None:
                break
            kind, *fields = entry
            if kind is not Question:
                events.append(kind(*fields))
            elif events:
                break  # until they are acknowledged
            else:
                question = Question(*fields)
                self._questions[question.question] = question, 0
            self._entries.popleft()
        self._flight = tuple(events)

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
