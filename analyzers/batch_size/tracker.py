"""Jobs that recur, live: the tries of the stream, what they cost, and what a policy says to them. Pure.

    TryWanted   -> a try of its job: which batch size, for which recurrence  -> TryRow, then the answer
    epochs      -> what each has cost, over all ranks and GPUs of the run    -> TryRow, then whether to go on
    TryEnded    -> converged, stopped or exhausted                           -> TryRow
    run over    -> lost, which says nothing about the batch size             -> TryRow

A choice is a row before it is an answer: it is given again to other ranks, and after another start.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from analyzers.batch_size.followed_try import (
    FollowedEpoch,
    FollowedRun,
    FollowedTry,
    JobRun,
    add_epoch,
    begun_row,
    is_sound,
    measured_row,
    settled_row,
    setup_of,
    under_way,
)
from analyzers.batch_size.known_jobs import KnownJobs, choose, verdict
from analyzers.batch_size.policy import Choice, Policy
from analyzers.fleet.fleet import Clocks, Fleet
from analyzers.fleet.session import Session
from analyzers.results.result import NOTHING, GiveAdvice, Result, rows_only
from analyzers.results.rows import Row, TryRow, WindowRow
from zeus_stream.protocol.events import Advice, AskTry, TryBegan, TryEnded, TryWanted
from zeus_stream.protocol.fields import of_host

MAX_TRAININGS = 10_000
"""Runs whose tries are followed; the oldest go."""
MAX_ATTEMPTS = 32
"""Tries of one run that are followed; of those that have ended the oldest go, else one more is not."""
MAX_METRICS = 1_000
"""Of one try; the oldest go."""
MAX_EPOCHS = 1_000
"""Of one run that have begun and are not measured; the oldest go."""
MAX_ASKS = 1_000
"""Questions that wait; one more is answered at once."""
CHOICE_NS = 20_000_000
"""Frame time between two choices on a host: they take a while, and anybody may ask for one."""
PATIENCE_NS = 1_000_000_000
"""Frame time that a choice waits for ranks to be admitted, and for tries that have ended to be measured."""
LOOK_NS = 50_000_000
"""Frame time between two looks at all trainings of a host. One to which something happened does not wait."""


class RankJoined(Struct, frozen=True):
    """A rank has begun, perhaps of a training that is followed."""

    session: Session
    run: JobRun


class SizeWanted(Struct, frozen=True):
    """A rank wants a batch size."""

    session: Session
    run: JobRun
    event: TryWanted


class RankBegan(Struct, frozen=True):
    """A rank trains with a batch size."""

    session: Session
    event: TryBegan


class RankDone(Struct, frozen=True):
    """A rank says how its try ended."""

    session: Session
    event: TryEnded


class MetricSent(Struct, frozen=True):
    """A rank sent a metric: of its latest try, if that has not ended for it."""

    session: Session
    name: str
    value: float


class TryEpochPassed(Struct, frozen=True):
    """A rank began an epoch, or ended it itself."""

    session: Session
    index: int
    began: bool


class WindowsMeasured(Struct, frozen=True):
    """Windows were measured, each on all GPUs of its session: epochs among them, perhaps."""

    rows: Sequence[WindowRow]


class TryRankEnded(Struct, frozen=True):
    """A session is over; if it was the last of its run, a try under way was lost."""

    session: Session
    t_ns: int
    how: str


class AdviceAsked(Struct, frozen=True):
    """A script asks for a batch size, or whether to go on."""

    host: str
    ask: AskTry


class TriesForgotten(Struct, frozen=True):
    """A job begins again: its tries count no more."""

    job: str


class FrameMeasured(Struct, frozen=True):
    """All events of a frame of this host have been measured."""

    host: str


JobEvent: TypeAlias = (
    RankJoined
    | SizeWanted
    | RankBegan
    | RankDone
    | MetricSent
    | TryEpochPassed
    | WindowsMeasured
    | TryRankEnded
    | AdviceAsked
    | TriesForgotten
    | FrameMeasured
)


class JobTracker:
    """All jobs, and the runs of them that are open."""

    NOT_STATE: ClassVar = frozenset[str](("_policy", "_name", "_timeout_ns", "_asks"))
    """Settings; and scripts ask again what had no answer."""

    def __init__(
        self, policy: Policy[Any], name: str, fleet: Fleet, known: KnownJobs, timeout_ns: int
    ) -> None:
        """``name``: the policy's, as the settings have it. ``timeout_ns``: that reports are waited for."""
        self._policy = policy
        self._name = name
        self._fleet = fleet
        self._timeout_ns = timeout_ns
        self.known = known
        self._trainings: dict[JobRun, FollowedRun] = {}
        """By run, not by name: one of the same name may come after it."""
        self._of: dict[str, FollowedRun] = {}
        """By session."""
        self._on: defaultdict[str, dict[JobRun, FollowedRun]] = defaultdict(dict)
        """By host."""
        self._next_choice_ns: dict[str, int] = {}
        """By host, frame time."""
        self._asks: dict[str, tuple[str, AskTry, int | None]] = {}
        """By question: host, question, frame time; None: no frame of the host came yet."""
        self._touched: dict[JobRun, FollowedRun] = {}
        """Those to which something happened since they were looked at."""
        self._looked_ns: dict[str, int] = {}
        """By host, when all its trainings were looked at."""
        self._now: Clocks = {}
        """Frame times at the event under way, by host."""

    def handle(self, event: JobEvent, now: Clocks) -> Result:
        self._now = now
        match event:
            case RankJoined(session, run):
                if (training := self._trainings.get(run)) is not None:
                    self._join(training, session)
            case SizeWanted(session, run, wanted):
                return self._wanted(session, run, wanted)
            case RankBegan(session, began):
                return self._began(session, began)
            case RankDone(session, ended):
                self._ended(session, ended)
            case MetricSent(session, name, value):
                self._metric(session, name, value)
            case TryEpochPassed(session, index, began=True):
                self._epoch_began(session, index)
            case TryEpochPassed(session, index):
                self._epoch_ended(session, index)
            case WindowsMeasured(rows):
                self._measured(rows)
            case TryRankEnded(session, t_ns, how):
                self._session_ended(session, t_ns, how)
            case AdviceAsked(host, ask):
                return self._ask(host, ask)
            case TriesForgotten(job):
                return NOTHING if (row := self.known.forget(job)) is None else rows_only([row])
            case FrameMeasured(host):
                return self._look(host)
        return NOTHING

    # ---- what ranks say

    def _wanted(self, session: Session, run: JobRun, event: TryWanted) -> Result:
        if not is_sound(event):
            return NOTHING
        event = replace(event, job=self.known.name_of(event.job, session.uid))
        training = self._trainings.setdefault(run, FollowedRun(run))
        if len(self._trainings) > MAX_TRAININGS:
            self._drop(next(iter(self._trainings.values())))
        for rank in run.sessions.values():
            self._join(training, rank)
        if event.attempt in training.tries:
            return NOTHING
        if len(training.tries) >= MAX_ATTEMPTS:
            oldest = next((attempt for attempt, of in training.tries.items() if of.settled), None)
            if oldest is None:
                return NOTHING
            del training.tries[oldest]
        followed = FollowedTry(wanted=event, session=session, since_ns=self._now[session.host])
        training.tries[event.attempt] = followed
        self._touch(training)
        recorded = self.known.resume(session.session, event.attempt, event.job)
        if recorded is None:
            return rows_only(self._specify(event))
        followed.row = recorded
        return NOTHING

    def _began(self, session: Session, event: TryBegan) -> Result:
        followed = self._followed(session, event.attempt)
        if followed is None or followed.settled:
            return NOTHING
        followed.sizes[session.session] = event.batch_size
        if followed.row is None:
            reason = "it trains with its default: it got no answer in time"
            choice = Choice(event.batch_size, reason=reason)
            return rows_only(self._begin(self._of[session.session], followed, choice))
        if followed.row.batch_size != event.batch_size:
            reason = f"it trains with another size than the {followed.row.batch_size} it was advised"
            row = replace(followed.row, batch_size=event.batch_size, reason=reason)
            return rows_only([self._store(followed, row)])
        return NOTHING

    def _ended(self, session: Session, event: TryEnded) -> None:
        """Take in how a try ended; the first rank to say so is believed, and late is better than never."""
        followed = self._followed(session, event.attempt)
        if followed is None:
            return
        self._touch(self._of[session.session])
        followed.left.add(session.session)
        if followed.over is not None and followed.over[2] != "lost":
            return
        followed.over = self._now_ns(followed), session.wall_ns(event.t_ns), event.how, event.reason
        followed.settled = False

    def _metric(self, session: Session, name: str, value: float) -> None:
        training = self._of.get(session.session)
        followed = None if training is None else training.tries[max(training.tries)]
        if followed and followed.wanted.metric == name and session.session not in followed.left:
            followed.metrics.append(value)
            del followed.metrics[:-MAX_METRICS]

    def _epoch_began(self, session: Session, index: int) -> None:
        training = self._of.get(session.session)
        if training is None:
            return
        epoch = training.epochs.get(index)
        if epoch is None:
            if under_way(training) is None:
                return
            now_ns = self._now[session.host]
            epoch = training.epochs[index] = FollowedEpoch(
                attempt=max(training.tries), host=session.host, since_ns=now_ns
            )
            if len(training.epochs) > MAX_EPOCHS:
                del training.epochs[next(iter(training.epochs))]
        epoch.began.add(session.session)

    def _epoch_ended(self, session: Session, index: int) -> None:
        training = self._of.get(session.session)
        if training is not None and index in training.epochs:
            training.epochs[index].ended.add(session.session)

    def _measured(self, rows: Iterable[WindowRow]) -> None:
        if not self._of:
            return
        for row in rows:
            if row.kind == "epoch" and not of_host(row.gpu or "") and row.session in self._of:
                training = self._of[row.session]
                epoch = training.epochs.get(row.index)
                if epoch is not None:
                    epoch.rows.setdefault(row.session, []).append(row)
                    self._touch(training)

    def _session_ended(self, session: Session, t_ns: int, how: str) -> None:
        training = self._of.get(session.session)
        if training is None:
            return
        self._touch(training)
        if not training.run.over:
            return
        for followed in training.tries.values():
            if followed.over is None:
                why = "its run ended before it" if how == "ended" else how
                followed.over = self._now_ns(followed), session.wall_ns(t_ns), "lost", why

    # ---- what follows from it

    def _touch(self, training: FollowedRun) -> None:
        """Have a training looked at after the frame under way: something happened to it."""
        self._touched[training.run] = training

    def _look(self, host: str) -> Result:
        """Return what follows for trainings to which something happened; of all of a host now and then."""
        touched, self._touched = self._touched, {}
        since_ns = self._now[host] - self._looked_ns.get(host, 0)
        due = not 0 <= since_ns < LOOK_NS
        if due:
            self._looked_ns[host] = self._now[host]
            touched |= self._on.get(host, {})
        if not (touched or due):
            return NOTHING
        followed = [training for name, training in touched.items() if name in self._trainings]
        rows = [row for training in followed for row in self._follow(training)]
        sessions = {name for training in followed for name in training.run.sessions}
        given = []
        for question, (asker, ask, since) in list(self._asks.items()):
            if not (ask.session in sessions or (due and asker == host)) or asker not in self._now:
                continue
            since_ns = self._now[asker] if since is None else since
            self._asks[question] = asker, ask, since_ns
            if (advice := self._advice(asker, ask, since_ns)) is not None:
                given.append(advice)
                del self._asks[question]
        return Result(tuple(rows), tuple(given)) if rows or given else NOTHING

    def _follow(self, training: FollowedRun) -> list[Row]:
        rows: list[Row] = [*self._measure(training)]
        over = training.run.over
        for attempt, followed in training.tries.items():
            if followed.over is None:
                over = False
                if followed.row is None and self._ready(training, followed):
                    rows += self._choose(training, followed)
                continue
            late = self._now_ns(followed) - followed.over[0] >= 2 * self._timeout_ns
            over = over and late
            if not followed.settled and (late or not self._unsettled(training, attempt, followed)):
                followed.settled = True
                if followed.row is not None:  # else it was lost before anything was chosen
                    row = settled_row(followed, followed.row)
                    if row != followed.row and row.epochs >= followed.row.epochs:
                        rows.append(self._store(followed, row))
        if over:
            self._drop(training)
        return rows

    @staticmethod
    def _unsettled(training: FollowedRun, attempt: int, followed: FollowedTry) -> bool:
        """Return whether a rank may still report a try that is over for another, or an epoch is open."""
        living = {name for name, session in training.run.sessions.items() if session.ended is None}
        telling = (followed.sizes.keys() & living) - followed.left
        return bool(telling) or any(epoch.attempt == attempt for epoch in training.epochs.values())

    def _ready(self, training: FollowedRun, followed: FollowedTry) -> bool:
        """Return whether a choice need wait no longer, for ranks or for tries that are about to be known."""
        now_ns = self._now_ns(followed)
        if under_way(training) is not followed or now_ns < self._next_choice_ns.get(followed.session.host, 0):
            return False
        if now_ns - followed.since_ns >= PATIENCE_NS:
            return True
        ranks = [session for session in training.run.sessions.values() if session.ended is None]
        if len(ranks) < followed.session.started.world_size or not all(rank.admitted for rank in ranks):
            return False
        return not any(
            other.over is not None and not other.settled and other.wanted.job == followed.wanted.job
            for of_run in self._trainings.values()
            for other in of_run.tries.values()
        )

    def _choose(self, training: FollowedRun, followed: FollowedTry) -> list[Row]:
        """Choose a batch size for a try, of those it offers: another may have offered others since."""
        rows = self._specify(followed.wanted)
        learned = self.known[followed.wanted.job]
        rows += self.known.close_orphans(learned.row.job)
        self._next_choice_ns[followed.session.host] = self._now_ns(followed) + CHOICE_NS
        choice = choose(self._policy, learned, setup_of(training.run, self._fleet))
        return [*rows, *self._begin(training, followed, choice)]

    def _begin(self, training: FollowedRun, followed: FollowedTry, choice: Choice) -> list[Row]:
        learned, setup = self.known[followed.wanted.job], setup_of(training.run, self._fleet)
        rows: list[Row] = [*self.known.close_orphans(learned.row.job)]
        others = self._trainings.values()
        begun = begun_row(training, followed, learned, choice, self._name, setup, others)
        return [*rows, self._store(followed, begun)]

    def _measure(self, training: FollowedRun) -> Iterator[TryRow]:
        """Take in the epochs that every rank has been measured in."""
        living = sum(session.ended is None for session in training.run.sessions.values())
        for index, epoch in list(training.epochs.items()):
            if not epoch.began <= epoch.rows.keys():
                continue
            waited_ns = self._now[epoch.host] - epoch.since_ns
            if len(epoch.began) < living and waited_ns < self._timeout_ns:
                continue  # of a rank whose host is slower, it may begin yet
            del training.epochs[index]
            followed = training.tries.get(epoch.attempt)
            if followed is not None and epoch.began <= epoch.ended and not followed.settled:
                add_epoch(followed, [row for rows in epoch.rows.values() for row in rows], self._fleet)
                if followed.row and followed.row.ended in ("running", "lost") and followed.over is None:
                    yield self._store(followed, measured_row(followed, followed.row))

    def _store(self, followed: FollowedTry, row: TryRow) -> TryRow:
        followed.row = row
        self.known.store(row)
        return row

    # ---- answers

    def _ask(self, host: str, ask: AskTry) -> Result:
        """Answer a question now, if that can be done; else after a frame, or after a timeout."""
        since_ns = self._now.get(host)
        if since_ns is not None and (advice := self._advice(host, ask, since_ns)) is not None:
            return Result((), (advice,))
        if len(self._asks) >= MAX_ASKS and ask.question not in self._asks:
            return Result((), (_give(host, ask, None, f"{MAX_ASKS} questions wait already"),))
        self._asks.setdefault(ask.question, (host, ask, since_ns))
        return NOTHING

    def _advice(self, host: str, ask: AskTry, since_ns: int) -> GiveAdvice | None:
        """Return the answer to a question; None while it has none and may have one later."""
        training = self._of.get(ask.session)
        followed = training.tries.get(ask.attempt) if training else None
        row = followed.row if followed else None
        if row is not None and ask.epochs == 0:
            return _give(host, ask, row.batch_size, row.reason)
        if row is not None and row.epochs >= ask.epochs:
            assert followed is not None
            if followed.word is None or followed.word[0] != row.epochs:
                followed.word = row.epochs, verdict(self._policy, self.known[row.job], row)
            _, word = followed.word
            return _give(host, ask, row.batch_size, word.reason, go_on=word.go_on)
        if self._now[host] - since_ns >= 2 * self._timeout_ns:
            unknown = "it is not known: is it a try of this run, and its epoch measured?"
            return _give(host, ask, None, unknown)
        return None

    # ---- trainings

    def _specify(self, wanted: TryWanted) -> list[Row]:
        return [] if (row := self.known.specify(wanted, self.used_jobs)) is None else [row]

    def used_jobs(self) -> set[str]:
        """Return the names of the jobs of runs that are open."""
        return {of.wanted.job for training in self._trainings.values() for of in training.tries.values()}

    def _join(self, training: FollowedRun, session: Session) -> None:
        training.joined[session.session] = session.host
        self._of[session.session] = training
        self._on[session.host][training.run] = training
        self._touch(training)

    def _drop(self, training: FollowedRun) -> None:
        del self._trainings[training.run]
        for session, host in training.joined.items():
            self._of.pop(session, None)
            self._on[host].pop(training.run, None)

    def _followed(self, session: Session, attempt: int) -> FollowedTry | None:
        training = self._of.get(session.session)
        return None if training is None else training.tries.get(attempt)

    def validate(self) -> None:
        """Check what holds between events. Raises AssertionError."""
        for session, training in self._of.items():
            assert self._trainings.get(training.run) is training, f"{session}: its training is forgotten"
        for host, trainings in self._on.items():
            assert trainings.keys() <= self._trainings.keys(), f"{host}: a training there is forgotten"

    def _now_ns(self, followed: FollowedTry) -> int:
        return self._now[followed.session.host]


def _give(host: str, ask: AskTry, batch_size: int | None, reason: str, *, go_on: bool = True) -> GiveAdvice:
    return GiveAdvice(host, Advice(ask.question, batch_size, go_on, reason[:2000]))
