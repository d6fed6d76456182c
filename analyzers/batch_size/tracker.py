"""Jobs that recur, live: the tries of the stream, what they cost, and what a policy says to them. Pure.

    TryWanted   -> a try of its job: which batch size, for which recurrence  -> TryRow, then the answer
    epochs      -> what each has cost, over all ranks and GPUs of the run    -> TryRow, then whether to go on
    TryEnded    -> converged, stopped or exhausted                           -> TryRow
    run over    -> lost, which says nothing about the batch size             -> TryRow

A choice is a row before it is an answer: who asks again is given what is recorded, in another rank and after
another start too.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from math import isfinite
from typing import Any

from analyzers.batch_size.followed_try import (
    FollowedEpoch,
    FollowedRun,
    FollowedTry,
    add_epoch,
    is_sound,
    measured_row,
    settled_row,
    setup_of,
    under_way,
    wall_ns,
)
from analyzers.batch_size.history import Known, choose, verdict
from analyzers.batch_size.known_jobs import KnownJobs
from analyzers.batch_size.policy import Choice, Policy
from analyzers.fleet.fleet import Fleet
from analyzers.fleet.session import Session
from analyzers.power_limit.run import Run
from analyzers.results.rows import GiveAdvice, JobRow, TryRow, WindowRow
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

Output = JobRow | TryRow | GiveAdvice


class Jobs:
    """All jobs, and the runs of them that are open. Its outputs are handed over by `look`."""

    def __init__(self, policy: Policy[Any], name: str, fleet: Fleet, known: Known, timeout_ns: int) -> None:
        """``name``: the policy's, as the settings have it. ``timeout_ns``: that reports are waited for."""
        self._policy = policy
        self._name = name
        self._fleet = fleet
        self._timeout_ns = timeout_ns
        self._jobs = KnownJobs(known)
        self._trainings: dict[int, FollowedRun] = {}
        """By identity of the run: one of the same name may come after it."""
        self._of: dict[str, FollowedRun] = {}
        """By session."""
        self._on: defaultdict[str, dict[int, FollowedRun]] = defaultdict(dict)
        """By host."""
        self._next_choice_ns: dict[str, int] = {}
        """By host, frame time."""
        self._asks: dict[str, tuple[str, AskTry, int | None]] = {}
        """By question: host, question, frame time; None: nothing was heard of the host yet."""
        self._outputs: list[Output] = []

    # ---- what is heard

    def joined(self, session: Session, run: Run) -> None:
        """A rank has begun, perhaps of a training that is followed."""
        if (training := self._trainings.get(id(run))) is not None:
            self._join(training, session)

    def wanted(self, session: Session, run: Run, event: TryWanted) -> None:
        """A rank wants a batch size."""
        if not is_sound(event):
            return
        training = self._trainings.setdefault(id(run), FollowedRun(run))
        if len(self._trainings) > MAX_TRAININGS:
            self._drop(next(iter(self._trainings.values())))
        for rank in run.sessions.values():
            self._join(training, rank)
        if event.attempt in training.tries:
            return
        if len(training.tries) >= MAX_ATTEMPTS:
            oldest = next((attempt for attempt, of in training.tries.items() if of.settled), None)
            if oldest is None:
                return
            del training.tries[oldest]
        followed = FollowedTry(wanted=event, session=session, since_ns=self._fleet.now_ns[session.host])
        training.tries[event.attempt] = followed
        recorded = self._jobs.resume(session.session, event.attempt, event.job)
        if recorded is not None:
            followed.row = recorded
            followed.settled = recorded.ended not in ("running", "lost")
        else:
            self._specify(event)

    def began(self, session: Session, event: TryBegan) -> None:
        """A rank trains with this batch size."""
        followed = self._followed(session, event.attempt)
        if followed is None or followed.settled:
            return
        followed.sizes[session.session] = event.batch_size
        if followed.row is None:
            reason = "it trains with its default: it got no answer in time"
            self._begin(self._of[session.session], followed, Choice(event.batch_size, reason=reason))
        elif followed.row.batch_size != event.batch_size:
            reason = f"it trains with another size than the {followed.row.batch_size} it was advised"
            self._store(followed, replace(followed.row, batch_size=event.batch_size, reason=reason))

    def ended(self, session: Session, event: TryEnded) -> None:
        """A rank says how its try ended; the first to say so is believed, and late is better than never."""
        followed = self._followed(session, event.attempt)
        if followed is None:
            return
        followed.left.add(session.session)
        if followed.over is not None and followed.over[2] != "lost":
            return
        if followed.row is not None and followed.row.ended not in ("running", "lost"):
            return
        followed.over = self._now_ns(followed), wall_ns(session, event.t_ns), event.how, event.reason
        followed.settled = False

    def metric(self, session: Session, name: str, value: float) -> None:
        """A rank tells a metric: of its latest try, if that has not ended for it."""
        training = self._of.get(session.session)
        followed = None if training is None else training.tries[max(training.tries)]
        if followed and followed.wanted.metric == name and session.session not in followed.left:
            followed.metrics.append(value)
            del followed.metrics[:-MAX_METRICS]

    def epoch_began(self, session: Session, index: int) -> None:
        """A rank begins an epoch."""
        training = self._of.get(session.session)
        if training is None:
            return
        epoch = training.epochs.get(index)
        if epoch is None:
            if under_way(training) is None:
                return
            now_ns = self._fleet.now_ns[session.host]
            epoch = training.epochs[index] = FollowedEpoch(
                attempt=max(training.tries), host=session.host, since_ns=now_ns
            )
            if len(training.epochs) > MAX_EPOCHS:
                del training.epochs[next(iter(training.epochs))]
        epoch.began.add(session.session)

    def epoch_ended(self, session: Session, index: int) -> None:
        """A rank ended an epoch itself."""
        training = self._of.get(session.session)
        if training is not None and index in training.epochs:
            training.epochs[index].ended.add(session.session)

    def measured(self, rows: Iterable[WindowRow]) -> None:
        """Windows were measured, each on all GPUs of its session: epochs among them, perhaps."""
        if not self._of:
            return
        for row in rows:
            if row.kind == "epoch" and not of_host(row.gpu or "") and row.session in self._of:
                epoch = self._of[row.session].epochs.get(row.index)
                if epoch is not None:
                    epoch.rows.setdefault(row.session, []).append(row)

    def session_ended(self, session: Session, t_ns: int, how: str) -> None:
        """A session is over; if it was the last of its run, a try under way was lost."""
        training = self._of.get(session.session)
        if training is None or not training.run.over:
            return
        for followed in training.tries.values():
            if followed.over is None:
                why = "its run ended before it" if how == "ended" else how
                followed.over = self._now_ns(followed), wall_ns(session, t_ns), "lost", why

    def ask(self, host: str, ask: AskTry) -> None:
        """Take in a question; `look` answers it now, when it can be, or in vain."""
        if len(self._asks) >= MAX_ASKS and ask.question not in self._asks:
            self._advise(host, ask, None, f"{MAX_ASKS} questions wait already")
            return
        self._asks.setdefault(ask.question, (host, ask, self._fleet.now_ns.get(host)))

    def forget(self, job: str) -> int | None:
        """Let a job begin anew; return how many tries count no more, None if it is not known."""
        forgotten = self._jobs.forget(job)
        if forgotten is None:
            return None
        count, row = forgotten
        self._outputs.append(row)
        return count

    # ---- what follows from it

    def look(self, host: str) -> list[Output]:
        """Return what follows from what was heard, after a frame of this host."""
        for training in list(self._on.get(host, {}).values()):
            self._look(training)
        for question, (asker, ask, asked_ns) in list(self._asks.items()):
            if asker != host:
                continue
            since_ns = self._fleet.now_ns[host] if asked_ns is None else asked_ns
            self._asks[question] = asker, ask, since_ns
            if self._answer(asker, ask, since_ns):
                del self._asks[question]
        return self.told()

    def told(self) -> list[Output]:
        """Return the outputs that were not handed over yet."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def _look(self, training: FollowedRun) -> None:
        self._measure(training)
        over = training.run.over
        for attempt, followed in training.tries.items():
            if followed.over is None:
                over = False
                if followed.row is None and self._ready(training, followed):
                    self._choose(training, followed)
                continue
            late = self._now_ns(followed) - followed.over[0] >= 2 * self._timeout_ns
            over = over and late
            if not followed.settled and (late or not self._unsettled(training, attempt, followed)):
                followed.settled = True
                if followed.row is not None:  # else it was lost before anything was chosen
                    self._store(followed, settled_row(followed, followed.row))
        if over:
            self._drop(training)

    @staticmethod
    def _unsettled(training: FollowedRun, attempt: int, followed: FollowedTry) -> bool:
        """Whether a rank may still tell of a try that is over for another, or an epoch is to be measured."""
        living = {name for name, session in training.run.sessions.items() if session.ended is None}
        telling = (followed.sizes.keys() & living) - followed.left
        return bool(telling) or any(epoch.attempt == attempt for epoch in training.epochs.values())

    def _ready(self, training: FollowedRun, followed: FollowedTry) -> bool:
        """Whether a choice need wait no longer, for ranks or for tries that are about to be known."""
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

    def _choose(self, training: FollowedRun, followed: FollowedTry) -> None:
        """Choose a batch size for a try, of those it offers: another may have offered others since."""
        self._specify(followed.wanted)
        learned = self._jobs[followed.wanted.job]
        self._outputs += self._jobs.close_orphans(learned.row.job)
        self._next_choice_ns[followed.session.host] = self._now_ns(followed) + CHOICE_NS
        choice = choose(self._policy, learned, setup_of(training.run, self._fleet))
        self._begin(training, followed, choice)

    def _begin(self, training: FollowedRun, followed: FollowedTry, choice: Choice) -> None:
        learned, wanted = self._jobs[followed.wanted.job], followed.wanted
        self._outputs += self._jobs.close_orphans(wanted.job)
        recurrence = learned.next_recurrence()
        for other in training.tries.values():  # a try that missed the target is followed by another
            if other.row and (other.row.job, other.row.version) == (wanted.job, learned.row.version):
                converged = other.over is not None and other.over[2] == "converged"
                recurrence = learned.next_recurrence() if converged else other.row.recurrence
        self._store(
            followed,
            TryRow(
                job=wanted.job,
                number=learned.numbers + 1,
                version=learned.row.version,
                recurrence=recurrence,
                run=training.run.name,
                session=followed.session.session,
                attempt=wanted.attempt,
                setup=setup_of(training.run, self._fleet),
                batch_size=choice.batch_size,
                policy=self._name,
                reason=choice.reason[:2000],
                stop_cost_j=choice.stop_cost_j if isfinite(choice.stop_cost_j) else None,
                began_wall_ns=wall_ns(followed.session, wanted.t_ns),
                ended_wall_ns=None,
                epochs=0,
                energy_j=None,
                duration_s=0.0,
                cost_j=None,
                epoch_cost_j=None,
                metrics=(),
                ended="running",
                ended_why="",
            ),
        )

    def _measure(self, training: FollowedRun) -> None:
        """Take in the epochs that every rank has been measured in."""
        living = sum(session.ended is None for session in training.run.sessions.values())
        for index, epoch in list(training.epochs.items()):
            if not epoch.began <= epoch.rows.keys():
                continue
            waited_ns = self._fleet.now_ns[epoch.host] - epoch.since_ns
            if len(epoch.began) < living and waited_ns < self._timeout_ns:
                continue  # of a rank whose host is slower, it may begin yet
            del training.epochs[index]
            followed = training.tries.get(epoch.attempt)
            if followed is not None and epoch.began <= epoch.ended and not followed.settled:
                add_epoch(followed, [row for rows in epoch.rows.values() for row in rows], self._fleet)
                if followed.row is not None and followed.over is None:
                    self._store(followed, measured_row(followed, followed.row))

    def _store(self, followed: FollowedTry, row: TryRow) -> None:
        followed.row = row
        self._jobs.store(row)
        self._outputs.append(row)

    # ---- answers

    def _answer(self, host: str, ask: AskTry, since_ns: int) -> bool:
        """Answer a question if that can be done by now, or never."""
        training = self._of.get(ask.session)
        followed = training.tries.get(ask.attempt) if training else None
        row = followed.row if followed else None
        if row is not None and ask.epochs == 0:
            self._advise(host, ask, row.batch_size, row.reason)
        elif row is not None and row.epochs >= ask.epochs:
            assert followed is not None
            if followed.word is None or followed.word[0] != row.epochs:
                followed.word = row.epochs, verdict(self._policy, self._jobs[row.job], row)
            _, word = followed.word
            self._advise(host, ask, row.batch_size, word.reason, go_on=word.go_on)
        elif self._fleet.now_ns[host] - since_ns >= 2 * self._timeout_ns:
            self._advise(host, ask, None, "it is not known: is it a try of this run, and its epoch measured?")
        else:
            return False
        return True

    def _advise(
        self, host: str, ask: AskTry, batch_size: int | None, reason: str, *, go_on: bool = True
    ) -> None:
        self._outputs.append(GiveAdvice(host, Advice(ask.question, batch_size, go_on, reason[:2000])))

    # ---- trainings

    def _specify(self, wanted: TryWanted) -> None:
        if (row := self._jobs.specify(wanted, self._used_jobs)) is not None:
            self._outputs.append(row)

    def _used_jobs(self) -> set[str]:
        return {of.wanted.job for training in self._trainings.values() for of in training.tries.values()}

    def _join(self, training: FollowedRun, session: Session) -> None:
        self._of[session.session] = training
        self._on[session.host][id(training.run)] = training

    def _drop(self, training: FollowedRun) -> None:
        """Nothing more is to come of a training."""
        del self._trainings[id(training.run)]
        for session in training.run.sessions.values():
            self._of.pop(session.session, None)
            self._on[session.host].pop(id(training.run), None)

    def _followed(self, session: Session, attempt: int) -> FollowedTry | None:
        training = self._of.get(session.session)
        return None if training is None else training.tries.get(attempt)

    def _now_ns(self, followed: FollowedTry) -> int:
        return self._fleet.now_ns[followed.session.host]
