"""Take checkpoints of an interpreter: after a decision, and when it is time (`CheckpointTimes`)."""

import hmac
import logging
import zlib
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import msgpack
from msgspec import to_builtins
from msgspec.structs import replace

from analyzers.checkpoints import machine_state, object_graph, state_classes
from analyzers.interpreter.state import SiteState
from analyzers.live.live_site import LiveSite
from analyzers.results.pipeline_rows import PipelineRow, PlanRow
from analyzers.results.result import Result
from analyzers.results.rows import CheckpointRow, DecisionRow, Derived, GpuRow
from zeus_stream.clock import anchor, monotonic_ns, thread_time_ns
from zeus_stream.errors import MalformedError
from zeus_stream.own_files import own_secret
from zeus_stream.protocol.frames import Body, Frame

EVERY_NS = 60_000_000_000
"""Between two checkpoints, at most, once there was as much work as `LITTLE_NS`."""
LITTLE_NS = 500_000_000
"""Work of the interpreter that a restart may repeat at any time; an idle host gives as much in 15 min."""
WORK_NS = 2_000_000_000
"""Work of the interpreter after which one is due: a restart takes about as long."""
LEAST_TIMES = 50
"""A checkpoint waits until so many times the processor time of the last one: they take 2 % of a core at most.
On a busy host it takes ten times as long: what a restart repeats is not to grow with that."""
SOONER = 16
"""The first after a start is due this many times sooner than these two say, the next half as many times: of
any life of an analyzer that is killed again and again, half the work is not repeated."""


class CheckpointTimes:
    """The time of the next checkpoint: after so much work, since a restart repeats it. Pure."""

    def __init__(self, now_ns: int) -> None:
        """``now_ns``: on the clock of this process, as everywhere here."""
        self.wanted = False
        """One is due as soon as it may be: something was decided."""
        self._sooner = SOONER
        self._worked_ns = 0
        self._taken_ns = now_ns
        self._not_before_ns = now_ns

    def work(self, spent_ns: int) -> None:
        self._worked_ns += spent_ns

    def due(self, now_ns: int) -> bool:
        late = self._worked_ns >= LITTLE_NS and now_ns - self._taken_ns >= EVERY_NS
        due = self.wanted or late or self._worked_ns >= WORK_NS // self._sooner
        return due and now_ns >= self._not_before_ns

    def taken(self, now_ns: int, cpu_ns: int) -> None:
        self.wanted, self._worked_ns, self._taken_ns = False, 0, now_ns
        self._not_before_ns = now_ns + LEAST_TIMES * cpu_ns // self._sooner
        self._sooner = max(1, self._sooner // 2)


_log = logging.getLogger(__name__)

NAME = "analyzer"
FAST = 1
"""Level of zlib."""
WANTED = frozenset((DecisionRow, PipelineRow, PlanRow, GpuRow))
"""Rows after which a checkpoint is taken as soon as it may be.

The kind of a counter is one: a replay that knew it from the first frame would measure other joules.
"""
_NOT_TAKEN = "checkpoint: could not be taken: %s. A restart replays the streams of all open runs. Report it."
MOST_PUT_OFF = 5
"""Times that a checkpoint waits since a command does."""


class CheckpointTaker:
    """The checkpoints of one start of an analyzer. For the thread of the interpreter."""

    def __init__(self, start: int, interpreted: Mapping[str, int], *, whole: bool) -> None:
        """``interpreted``: by log, the offset to be interpreted next.

        ``whole``: the interpreter knows what came before these offsets. Another knows it at the end of its
        replay, and is worth a checkpoint then.
        """
        self.times = CheckpointTimes(monotonic_ns())
        self.times.wanted = not whole
        self.whole = whole
        """The interpreter knows all before the offsets; until then no checkpoint is taken."""
        self._start = start
        self.next = dict(interpreted)
        """By log, the offset to be interpreted next."""
        self._number = self._put_off = 0
        self._failed = False

    def take(
        self,
        site: SiteState,
        frames: Iterable[tuple[Frame, Body]],
        rows: Sequence[Derived],
        spent_ns: int,
        *,
        hurried: bool = False,
    ) -> tuple[CheckpointRow, ...]:
        """Return the row of a checkpoint after these frames if it is time for one, else nothing.

        ``rows``: of the frames, to be stored with it. ``hurried``: a command waits, so the checkpoint does.
        """
        for frame, _ in frames:
            self.next[frame.log_id] = max(frame.offset + 1, self.next.get(frame.log_id, 0))
        self.times.work(spent_ns)
        self.times.wanted |= not WANTED.isdisjoint(map(type, rows))
        if not self.whole or self._failed or not self.times.due(monotonic_ns()):
            return ()
        if hurried and self._put_off < MOST_PUT_OFF:
            self._put_off += 1
            return ()
        self._put_off = 0
        began_cpu_ns = thread_time_ns()
        try:
            state = zlib.compress(machine_state.state_of(site), FAST)
        except object_graph.UnknownObjectError as wrong:
            self._failed = True
            _log.warning(_NOT_TAKEN, wrong)
            return ()
        self.times.taken(monotonic_ns(), thread_time_ns() - began_cpu_ns)
        self._number += 1
        return (
            CheckpointRow(
                name=NAME,
                number=self._number,
                start=self._start,
                wall_ns=anchor().wall_ns,
                code=state_classes.version(),
                runs=tuple(dict.fromkeys(each.started.run for each in site.sessions.values())),
                sessions=tuple(site.sessions),
                log_ids=tuple(self.next),
                offsets=tuple(self.next.values()),
                state=state,
                live=b"",
                signature=b"",
            ),
        )


def complete(result: Result, live: LiveSite, key: bytes | None) -> Result:
    """Return a result whose checkpoint, if it has one, has the live state and the signature of a key."""
    if CheckpointRow not in set(map(type, result.rows)):
        return result
    rows: list[Derived] = [row for row in result.rows if not isinstance(row, CheckpointRow)]
    try:
        state = zlib.compress(machine_state.live_state_of(live), FAST)
    except object_graph.UnknownObjectError as wrong:
        _log.warning(_NOT_TAKEN, wrong)
    else:
        taken = [replace(row, live=state) for row in result.rows if isinstance(row, CheckpointRow)]
        rows += taken if key is None else [sign(row, key) for row in taken]
    return Result(tuple(rows), result.instructions)


FILE = "checkpoint.key"
KEY_BYTES = 32


def load_key(state: Path) -> bytes:
    """Return the key of a state directory; it is made at the first call. Raises StorageError.

    Its owner alone may read it: who has only the archive cannot make the analyzer begin with any state.
    """
    return own_secret(state / FILE, KEY_BYTES)


def sign(row: CheckpointRow, key: bytes) -> CheckpointRow:
    return replace(row, signature=_signature(row, key))


def verify(row: CheckpointRow, key: bytes) -> None:
    """Check that this key signed a checkpoint. Raises MalformedError."""
    if not hmac.compare_digest(row.signature, _signature(row, key)):
        raise MalformedError("its signature is not of this analyzer.")


def _signature(row: CheckpointRow, key: bytes) -> bytes:
    content = to_builtins(replace(row, signature=b""), builtin_types=(bytes,))
    return hmac.digest(key, msgpack.packb(content), sha256)
