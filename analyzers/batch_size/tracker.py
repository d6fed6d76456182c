"""Jobs that recur, live: the tries of the stream, what they cost, and what a policy says to them. Pure.

    TryWanted   -> a try of its job: which batch size, for which recurrence  -> TryRow, then the answer
    epochs      -> what each has cost, over all ranks and GPUs of the run    -> TryRow, then whether to go on
    TryEnded    -> converged, stopped or exhausted                           -> TryRow
    run over    -> lost, which says nothing about the batch size             -> TryRow

A choice is a row before it is an answer: who asks again is given what is recorded, in another rank and after
another start too.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any

from analyzers.batch_size.history import Known, Learned, by_job, choose, verdict
from analyzers.batch_size.job_events import (
    AdviceAsked,
    EpochPassed,
    FrameMeasured,
    JobEvent,
    JobForgotten,
    MetricSent,
    RankBegan,
    RankDone,
    RankEnded,
    RankJoined,
    SizeWanted,
    WindowsMeasured,
)
from analyzers.batch_size.policy import Choice, Policy, Verdict
from analyzers.fleet.fleet import Clocks, Fleet
from analyzers.fleet.session import Session
from analyzers.power_limit.run import Run
from analyzers.results.instructions import NOTHING, GiveAdvice, Result
from analyzers.results.rows import Ended, JobRow, TryRow, WindowRow
from zeus_stream.protocol.events import Advice, AskTry, TryBegan, TryEnded, TryWanted
from zeus_stream.protocol.fields import of_host

MAX_JOBS = 10_000
"""Remembered; the oldest go."""
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


@dataclass(slots=True)
class _Epoch:
    """One epoch of a run, until every rank that began it is measured."""

    attempt: int
    host: str
    since_ns: int
    """Frame time of that host."""
    began: set[str] = field(default_factory=set)
    """Sessions."""
    ended: set[str] = field(default_factory=set)
    rows: dict[str, list[WindowRow]] = field(default_factory=dict)
    """By session: one a GPU."""


@dataclass(slots=True)
class _Following:
    """A try that is followed."""

    wanted: TryWanted
    session: Session
    """That asked first."""
    since_ns: int
    """Frame time of its host, as everything here."""
    row: TryRow | None = None
    """None: nothing is chosen yet."""
    settled: bool = False
    """It has ended and is measured; or had been, when an earlier analyzer heard it."""
    over: tuple[int, int, Ended, str] | None = None
    """Frame time at which that was heard, UTC, how and why it ended."""
    sizes: dict[str, int] = field(default_factory=dict)
    """By session: what it trains with."""
    left: set[str] = field(default_factory=set)
    """Sessions that have said how it ended."""
    epochs: int = 0
    energy_j: float | None = 0.0
    duration_s: float = 0.0
    cost_j: float | None = 0.0
    epoch_cost_j: float | None = None
    metrics: list[float] = field(default_factory=list)
    missing: str = ""
    """Why its cost is not known."""
    word: tuple[int, Verdict] | None = None
    """After so many epochs; the same for all ranks."""


@dataclass(slots=True)
class _Training:
    """A run of a job."""

    run: Run
    tries: dict[int, _Following] = field(default_factory=dict)
    """By attempt."""
    epochs: dict[int, _Epoch] = field(default_factory=dict)
    """By index."""


class Jobs:
    """All jobs, and the runs of them that are open. Its outputs are handed over by `look`."""

    def __init__(self, policy: Policy[Any], name: str, fleet: Fleet, known: Known, timeout_ns: int) -> None:
        """``name``: the policy's, as the settings have it. ``timeout_ns``: that reports are waited for."""
        self._policy = policy
        self._name = name
        self._fleet = fleet
        self._timeout_ns = timeout_ns
        self._jobs = by_job(known)
        self._recorded = {(row.session, row.attempt): row for row in known.tries}
        self._orphans: dict[str, set[int]] = {}
        """By job, tries that were open when another analyzer ended, and whose session was not heard since."""
        for row in known.tries:
            if row.ended == "running":
                self._orphans.setdefault(row.job, set()).add(row.number)
        self._trainings: dict[int, _Training] = {}
        """By identity of the run: one of the same name may come after it."""
        self._of: dict[str, _Training] = {}
        """By session."""
        self._on: defaultdict[str, dict[int, _Training]] = defaultdict(dict)
        """By host."""
        self._next_choice_ns: dict[str, int] = {}
        """By host, frame time."""
        self._asks: dict[str, tuple[str, AskTry, int | None]] = {}
        """By question: host, question, frame time; None: nothing was heard of the host yet."""
        self._outputs: list[Output] = []
        self._now: Clocks = {}
        """Frame times at the event under way, by host."""

    # ---- what is heard

    def handle(self, event: JobEvent, now: Clocks) -> Result:
        """Take in an event. Return rows of jobs and tries, and answers to scripts."""
        self._now = now
        match event:
            case RankJoined(session, run):
                self.joined(session, run)
            case SizeWanted(session, run, wanted):
                self.wanted(session, run, wanted)
            case RankBegan(session, began):
                self.began(session, began)
            case RankDone(session, ended):
                self.ended(session, ended)
            case MetricSent(session, name, value):
                self.metric(session, name, value)
            case EpochPassed(session, index, began=True):
                self.epoch_began(session, index)
            case EpochPassed(session, index):
                self.epoch_ended(session, index)
            case WindowsMeasured(rows):
                self.measured(rows)
            case RankEnded(session, t_ns, how):
                self.session_ended(session, t_ns, how)
            case AdviceAsked(host, ask):
                self.ask(host, ask)
            case JobForgotten(job):
                self.forget(job)
                return self._result()
            case FrameMeasured(host):
                self.look(host)
                return self._result()
        return NOTHING

    def tries(self, job: str) -> int | None:
        """Return the number of tries that count for a job; None: it is not known."""
        return None if (learned := self._jobs.get(job)) is None else len(learned.tries)

    def _result(self) -> Result:
        outputs, self._outputs = self._outputs, []
        rows = tuple(output for output in outputs if not isinstance(output, GiveAdvice))
        return Result(rows, tuple(output for output in outputs if isinstance(output, GiveAdvice)))

    def joined(self, session: Session, run: Run) -> None:
        """A rank has begun, perhaps of a training that is followed."""
        if (training := self._trainings.get(id(run))) is not None:
            self._join(training, session)

    def wanted(self, session: Session, run: Run, event: TryWanted) -> None:
        """A rank wants a batch size."""
        if not _sound(event):
            return
        training = self._trainings.setdefault(id(run), _Training(run))
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
        followed = _Following(event, session, self._now[session.host])
        training.tries[event.attempt] = followed
        recorded = self._recorded.get((session.session, event.attempt))
        if recorded is not None and recorded.job == event.job:
            followed.row = recorded
            followed.settled = recorded.ended not in ("running", "lost")
            self._orphans.get(recorded.job, set()).discard(recorded.number)
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
        followed.over = self._now_ns(followed), _wall_ns(session, event.t_ns), event.how, event.reason
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
            if _under_way(training) is None:
                return
            now_ns = self._now[session.host]
            epoch = training.epochs[index] = _Epoch(max(training.tries), session.host, now_ns)
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
                followed.over = self._now_ns(followed), _wall_ns(session, t_ns), "lost", why

    def ask(self, host: str, ask: AskTry) -> None:
        """Take in a question; `look` answers it now, when it can be, or in vain."""
        if len(self._asks) >= MAX_ASKS and ask.question not in self._asks:
            self._advise(host, ask, None, f"{MAX_ASKS} questions wait already")
            return
        self._asks.setdefault(ask.question, (host, ask, self._now.get(host)))

    def forget(self, job: str) -> int | None:
        """Let a job begin anew; return how many tries count no more, None if it is not known."""
        learned = self._jobs.get(job)
        if learned is None:
            return None
        count = len(learned.tries)
        self._renew(learned, replace(learned.row, version=learned.row.version + 1))
        return count

    # ---- what follows from it

    def look(self, host: str) -> None:
        """Find what follows from what was heard, after a frame of this host."""
        for training in list(self._on.get(host, {}).values()):
            self._look(training)
        for question, (asker, ask, asked_ns) in list(self._asks.items()):
            if asker != host:
                continue
            since_ns = self._now[host] if asked_ns is None else asked_ns
            self._asks[question] = asker, ask, since_ns
            if self._answer(asker, ask, since_ns):
                del self._asks[question]

    def _look(self, training: _Training) -> None:
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
                self._settle(followed)
        if over:
            self._drop(training)

    @staticmethod
    def _unsettled(training: _Training, attempt: int, followed: _Following) -> bool:
        """Whether a rank may still tell of a try that is over for another, or an epoch is to be measured."""
        living = {name for name, session in training.run.sessions.items() if session.ended is None}
        telling = (followed.sizes.keys() & living) - followed.left
        return bool(telling) or any(epoch.attempt == attempt for epoch in training.epochs.values())

    def _ready(self, training: _Training, followed: _Following) -> bool:
        """Whether a choice need wait no longer, for ranks or for tries that are about to be known."""
        now_ns = self._now_ns(followed)
        if _under_way(training) is not followed or now_ns < self._next_choice_ns.get(
            followed.session.host, 0
        ):
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

    def _choose(self, training: _Training, followed: _Following) -> None:
        """Choose a batch size for a try, of those it offers: another may have offered others since."""
        self._specify(followed.wanted)
        learned = self._jobs[followed.wanted.job]
        self._close_orphans(learned)
        self._next_choice_ns[followed.session.host] = self._now_ns(followed) + CHOICE_NS
        choice = choose(self._policy, learned, _setup(training.run, self._fleet))
        self._begin(training, followed, choice)

    def _close_orphans(self, learned: Learned) -> None:
        for number in self._orphans.pop(learned.row.job, ()):
            if (row := learned.tries.get(number)) is not None and row.ended == "running":
                why = "nothing was heard of its run when the analyzer started"
                row = replace(row, ended="lost", ended_why=why, ended_wall_ns=row.began_wall_ns)
                learned.put(row)
                self._outputs.append(row)

    def _begin(self, training: _Training, followed: _Following, choice: Choice) -> None:
        learned, wanted = self._jobs[followed.wanted.job], followed.wanted
        self._close_orphans(learned)
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
                setup=_setup(training.run, self._fleet),
                batch_size=choice.batch_size,
                policy=self._name,
                reason=choice.reason[:2000],
                stop_cost_j=choice.stop_cost_j if isfinite(choice.stop_cost_j) else None,
                began_wall_ns=_wall_ns(followed.session, wanted.t_ns),
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

    def _measure(self, training: _Training) -> None:
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
                self._add(followed, [row for rows in epoch.rows.values() for row in rows])

    def _add(self, followed: _Following, rows: list[WindowRow]) -> None:
        """A whole epoch has been measured on all GPUs."""
        eta = followed.wanted.eta
        by_gpu = {row.gpu: row for row in rows if row.gpu is not None}
        duration_s = max(row.duration_s for row in rows)
        energy_j, cost_j, limited = 0.0, inf, True
        for row in by_gpu.values():
            if row.energy_j is None or row.shared:
                why = "another run used it meanwhile" if row.shared else row.quality
                followed.missing = followed.missing or f"{row.gpu}: {why}"
            else:
                energy_j += row.energy_j
            limited = limited and row.power_limit_w is not None
        if not by_gpu:
            followed.missing = followed.missing or "the run has no GPU"
        most_w = _most_w(by_gpu, self._fleet)
        if most_w is None and eta < 1:
            followed.missing = followed.missing or "the highest power limit of its GPUs is not known"
        else:
            cost_j = eta * energy_j + (1 - eta) * (most_w or 0.0) * duration_s
        followed.epochs += 1
        followed.duration_s += duration_s
        if followed.missing or followed.cost_j is None or followed.energy_j is None:
            followed.energy_j = followed.cost_j = None
        else:
            followed.energy_j += energy_j
            followed.cost_j += cost_j
            if limited:
                followed.epoch_cost_j = cost_j
        if followed.row is not None and followed.over is None:
            self._store(followed, self._measured(followed, followed.row))

    def _measured(self, followed: _Following, row: TryRow) -> TryRow:
        """Return the row with all that is measured by now."""
        return replace(
            row,
            epochs=followed.epochs,
            energy_j=followed.energy_j,
            duration_s=followed.duration_s,
            cost_j=followed.cost_j,
            epoch_cost_j=followed.epoch_cost_j,
            metrics=tuple(followed.metrics),
        )

    def _settle(self, followed: _Following) -> None:
        """A try has ended, and is measured."""
        assert followed.over is not None
        followed.settled = True
        if followed.row is None:
            return  # it was lost before anything was chosen
        _, ended_wall_ns, how, why = followed.over
        if how == "lost" and _reached(followed):
            how, why = "converged", f"its metric had reached the target; {why}"
        if len(set(followed.sizes.values())) > 1:
            sizes = ", ".join(map(str, sorted(set(followed.sizes.values()))))
            how, why = "lost", f"its ranks trained with different batch sizes: {sizes}"
        elif how != "lost" and followed.missing:
            why = f"{why}; its cost is not known: {followed.missing}"
        row = self._measured(followed, followed.row)
        self._store(followed, replace(row, ended=how, ended_why=why[:2000], ended_wall_ns=ended_wall_ns))

    def _store(self, followed: _Following, row: TryRow) -> None:
        followed.row = row
        self._recorded[row.session, row.attempt] = row
        if len(self._recorded) > MAX_TRAININGS:
            del self._recorded[next(iter(self._recorded))]
        self._jobs[row.job].put(row)
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
        elif self._now[host] - since_ns >= 2 * self._timeout_ns:
            self._advise(host, ask, None, "it is not known: is it a try of this run, and its epoch measured?")
        else:
            return False
        return True

    def _advise(
        self, host: str, ask: AskTry, batch_size: int | None, reason: str, *, go_on: bool = True
    ) -> None:
        self._outputs.append(GiveAdvice(host, Advice(ask.question, batch_size, go_on, reason[:2000])))

    # ---- jobs

    def _specify(self, wanted: TryWanted) -> None:
        """Take in what a job is for; where its tries are to reach something else, it begins anew."""
        learned = self._jobs.get(wanted.job)
        row = JobRow(
            wanted.job,
            learned.row.version if learned else 1,
            wanted.batch_sizes,
            wanted.default,
            wanted.metric,
            wanted.target,
            wanted.lower_is_better,
            wanted.max_epochs,
            wanted.eta,
            wanted.beta,
            wanted.window,
        )
        if learned is None:
            self._jobs[wanted.job] = Learned(row)
            self._outputs.append(row)
            if len(self._jobs) > MAX_JOBS:
                used = {
                    of.wanted.job for training in self._trainings.values() for of in training.tries.values()
                }
                oldest = next((name for name in self._jobs if name not in used), None)
                if oldest is not None:
                    del self._jobs[oldest]
        elif row != learned.row:
            renewed = _meaning(row) != _meaning(learned.row)
            self._renew(learned, replace(row, version=row.version + renewed))

    def _renew(self, learned: Learned, row: JobRow) -> None:
        if row.version != learned.row.version:
            learned.tries.clear()
        learned.row, learned.state = row, None
        self._outputs.append(row)

    # ---- trainings

    def _join(self, training: _Training, session: Session) -> None:
        self._of[session.session] = training
        self._on[session.host][id(training.run)] = training

    def _drop(self, training: _Training) -> None:
        """Nothing more is to come of a training."""
        del self._trainings[id(training.run)]
        for session in training.run.sessions.values():
            self._of.pop(session.session, None)
            self._on[session.host].pop(id(training.run), None)

    def _followed(self, session: Session, attempt: int) -> _Following | None:
        training = self._of.get(session.session)
        return None if training is None else training.tries.get(attempt)

    def _now_ns(self, followed: _Following) -> int:
        return self._now[followed.session.host]


def _under_way(training: _Training) -> _Following | None:
    """Return the run's latest try, if it has not ended."""
    if not training.tries:
        return None
    latest = training.tries[max(training.tries)]
    return latest if latest.over is None else None


def _reached(followed: _Following) -> bool:
    """Return whether the target was reached by the epochs that are measured, whoever did not say so."""
    wanted, metrics = followed.wanted, followed.metrics
    if not metrics or followed.epochs < len(metrics):
        return False
    return metrics[-1] <= wanted.target if wanted.lower_is_better else metrics[-1] >= wanted.target


def _sound(event: TryWanted) -> bool:
    ascending = tuple(sorted(set(event.batch_sizes))) == event.batch_sizes
    return ascending and event.default in event.batch_sizes


def _meaning(row: JobRow) -> tuple[object, ...]:
    """Return what makes tries comparable."""
    return row.metric, row.target, row.lower_is_better, row.max_epochs, row.eta


def _wall_ns(session: Session, t_ns: int) -> int:
    """Return an instant of a session's clock as UTC."""
    return max(0, session.started.wall_ns + t_ns - session.started.t_ns)


def _setup(run: Run, fleet: Fleet) -> str:
    """Return model and number of a run's GPUs; ranks that are not there yet are taken to have as many."""
    ranks = [session for session in run.sessions.values() if session.admitted]
    gpus = dict.fromkeys(gpu for session in ranks for gpu in session.gpus)
    models = Counter(found.name for gpu in gpus if (found := fleet.gpus[gpu].found) is not None)
    size = max((session.started.world_size for session in ranks), default=0)
    times = max(1, size // len(ranks)) if ranks else 1
    return " + ".join(f"{name} x{count * times}" for name, count in sorted(models.items())) or "no GPU"


def _most_w(gpus: Mapping[str, object], fleet: Fleet) -> float | None:
    """Return the sum of the highest limits of GPUs; None: one is not known."""
    total_w = 0.0
    for gpu in gpus:
        found = fleet.gpus[gpu].found
        if found is None or found.max_limit_mw is None:
            return None
        total_w += found.max_limit_mw / 1000
    return total_w
