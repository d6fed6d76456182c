"""The jobs that recur, their tries, and what each job is for. Pure."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from random import Random
from typing import Any, ClassVar

from msgspec import Struct, field
from msgspec.structs import replace

from analyzers.batch_size.belief.try_summary import JobHistory
from analyzers.batch_size.policy import Choice, Job, Policy, Try, TryVerdict
from analyzers.fleet.ownership import Owners, name_of
from analyzers.results.job_rows import Ended
from analyzers.results.memory import Memory
from analyzers.results.rows import JobRow, TryRow
from zeus_stream.protocol.events import TryWanted

MAX_TRIES = 1_000
"""Of a job, that its policy gets; the oldest go."""
MAX_RECURRENCE_TRIES = 20
"""Then the next try begins a new recurrence."""


class LearnedHistory(Struct, kw_only=True):
    """A job, and all its tries that count: its history is made of their rows alone, also after a restart."""

    row: JobRow
    tries: dict[int, TryRow] = field(default_factory=dict)
    """By number."""
    numbers: int = 0
    """Used up, by other versions as well; so are the recurrences."""
    recurrences: int = 0
    history: JobHistory | None = None
    """None: to be made again."""

    def put(self, row: TryRow) -> None:
        """Take in what a try has come to; one of another version does not count."""
        self.numbers = max(self.numbers, row.number)
        self.recurrences = max(self.recurrences, row.recurrence)
        if row.version != self.row.version:
            return
        before = self.tries.get(row.number)
        self.tries[row.number] = row
        grows = before is None or (before.ended == "running" and before.batch_size == row.batch_size)
        self.history = self._with(self.history, row) if self.history is not None and grows else None
        if len(self.tries) > MAX_TRIES:
            del self.tries[min(self.tries)]
            self.history = None

    def known(self) -> JobHistory:
        """Return the job and its tries as a policy gets them."""
        if self.history is None:
            history = JobHistory(job_of(self.row))
            for number in sorted(self.tries):
                history = self._with(history, self.tries[number])
            self.history = history
        return self.history

    def _with(self, history: JobHistory, row: TryRow) -> JobHistory:
        """Return the history with a try. Of a running one, only that it began: how far it is comes apart."""
        if row.batch_size not in self.row.batch_sizes:
            return history
        a_try = try_of(row)
        if row.ended == "running":
            a_try = replace(a_try, epochs=0, cost_j=0.0, epoch_cost_j=None, metrics=())
        return history.heard(a_try)

    def next_recurrence(self, held: Container[int | None] = ()) -> int:
        """Return the latest recurrence that waits for a try and that no open run holds, or a new one."""
        open_yet: dict[int, int] = {}
        for row in self.tries.values():
            count = open_yet.get(row.recurrence, 0)
            busy = row.ended in ("running", "converged")
            open_yet[row.recurrence] = MAX_RECURRENCE_TRIES if busy else count + 1
        waiting = (
            each for each, count in open_yet.items() if count < MAX_RECURRENCE_TRIES and each not in held
        )
        return max(waiting, default=self.recurrences + 1)


def job_of(row: JobRow) -> Job:
    return Job(
        batch_sizes=row.batch_sizes,
        default=row.default_batch_size,
        max_epochs=row.max_epochs,
        eta=row.eta,
        beta=row.beta,
        window=row.cost_window,
        target=row.target,
        lower_is_better=row.lower_is_better,
    )


def try_of(row: TryRow) -> Try:
    """Return a try as a policy gets it. One whose cost is not known is lost to it."""
    ended: Ended = "lost" if row.ended != "running" and row.cost_j is None else row.ended
    return Try(
        number=row.number,
        recurrence=row.recurrence,
        batch_size=row.batch_size,
        setup=row.setup,
        epochs=row.epochs,
        cost_j=row.cost_j or 0.0,
        epoch_cost_j=row.epoch_cost_j,
        metrics=row.metrics,
        ended=ended,
    )


def choose(policy: Policy[Any], learned: LearnedHistory, setup: str) -> Choice:
    """Return what the next try is to train with: the same whenever it is asked of the same tries.

    A policy that fails has the default chosen, and the reason says so.
    """
    rng = Random(f"{learned.row.job}/{learned.row.version}/{learned.numbers + 1}")  # noqa: S311  (to be the same again, not to be secret)
    try:
        choice = policy.choose(learned.known(), setup, rng)
    except Exception as wrong:  # noqa: BLE001  (an optimizer that stumbles ends neither a training nor the analyzer)
        return Choice(
            learned.row.default_batch_size, reason=f"the default, since the policy failed: {wrong!r}"
        )
    return choice


def verdict(policy: Policy[Any], learned: LearnedHistory, row: TryRow) -> TryVerdict:
    if row.cost_j is None or not row.epochs or row.version != learned.row.version:
        return TryVerdict(go_on=True)
    next_j = row.cost_j / row.epochs if row.epoch_cost_j is None else row.epoch_cost_j
    if row.stop_cost_j is not None and row.cost_j + next_j > row.stop_cost_j:
        return TryVerdict(
            go_on=False,
            reason=f"another epoch would take its cost from {row.cost_j:.0f} J above {row.stop_cost_j:.0f} J",
        )
    try:
        return policy.verdict(learned.known(), try_of(row))
    except Exception as wrong:  # noqa: BLE001  (see above)
        return TryVerdict(go_on=True, reason=f"it goes on, since the policy failed: {wrong!r}")


def by_job(jobs: Iterable[JobRow], tries: Iterable[TryRow]) -> dict[str, LearnedHistory]:
    """Return what is known of each job, by latest versions and by tries ascending in number."""
    of = {row.job: LearnedHistory(row=row) for row in jobs}
    for row in tries:
        if row.job in of:
            of[row.job].put(row)
    return of


MAX_JOBS = 10_000
"""Remembered; the oldest go."""
MAX_RECORDED = 10_000
"""Tries that a session may ask for again; the oldest go."""


class OpenJobs(Struct, frozen=True):
    """The known tries of jobs that open runs are about."""

    jobs: Mapping[str, LearnedHistory]
    recorded: Mapping[tuple[str, int], TryRow]
    """By session and attempt."""
    orphans: Mapping[str, set[int]]
    """See `KnownJobs`."""


class KnownJobs:
    """All jobs that recur, by name. Rows that it returns are to be stored."""

    NOT_STATE: ClassVar = frozenset[str](("_jobs", "_owners", "_shared", "_recorded", "_orphans"))
    """Rows of the archive; those of open runs are written apart (`open_jobs`)."""

    def __init__(self, memory: Memory, shared: frozenset[str]) -> None:
        """``memory``: of earlier starts. ``shared``: jobs that an administrator shares among users."""
        self._jobs = by_job(memory.jobs, memory.tries)
        self._owners = Owners(memory.owners.jobs)
        self._shared = shared
        self._recorded = {(row.session, row.attempt): row for row in memory.tries}
        self._orphans: dict[str, set[int]] = {}
        """By job, tries that were open when another analyzer ended, and whose session was not seen since."""
        for row in memory.tries:
            if row.ended == "running":
                self._orphans.setdefault(row.job, set()).add(row.number)

    def open_jobs(self, jobs: Collection[str]) -> "OpenJobs":
        """Return what is known of these jobs, without their histories: tries make them again."""
        known = {job: self._jobs[job] for job in sorted(jobs) if job in self._jobs}
        return OpenJobs(
            jobs={job: replace(learned, history=None) for job, learned in known.items()},
            recorded={key: row for key, row in self._recorded.items() if row.job in known},
            orphans={job: self._orphans[job] for job in jobs if job in self._orphans},
        )

    def go_on(self, then: "OpenJobs") -> None:
        """Go on with what was known of jobs, unless they began again since."""
        for job, learned in then.jobs.items():
            known = self._jobs.get(job)
            if known is not None and known.row.version > learned.row.version:
                continue
            self._jobs[job] = learned
            self._recorded = {key: row for key, row in self._recorded.items() if row.job != job}
            self._orphans.pop(job, None)
            if job in then.orphans:
                self._orphans[job] = then.orphans[job]
            self._recorded |= {key: row for key, row in then.recorded.items() if row.job == job}

    def name_of(self, job: str, uid: int | None) -> str:
        """Return the name under which a user's job is known: it belongs to the user who named it first."""
        return job if uid is None or job in self._shared else name_of(self._owners, job, uid)

    def __getitem__(self, job: str) -> LearnedHistory:
        return self._jobs[job]

    def resume(self, session: str, attempt: int, job: str) -> TryRow | None:
        """Return the try that a session asked for before; None: it did not. It is no orphan any more."""
        recorded = self._recorded.get((session, attempt))
        if recorded is None or recorded.job != job:
            return None
        self._orphans.get(job, set()).discard(recorded.number)
        return recorded

    def store(self, row: TryRow) -> None:
        self._recorded[row.session, row.attempt] = row
        if len(self._recorded) > MAX_RECORDED:
            del self._recorded[next(iter(self._recorded))]
        self._jobs[row.job].put(row)

    def close_orphans(self, job: str) -> list[TryRow]:
        """End the tries of a job whose run never came back."""
        learned, closed = self._jobs[job], []
        for number in self._orphans.pop(job, ()):
            if (row := learned.tries.get(number)) is not None and row.ended == "running":
                why = "its run had sent nothing when the analyzer started"
                row = replace(row, ended="lost", ended_why=why, ended_wall_ns=row.began_wall_ns)
                learned.put(row)
                closed.append(row)
        return closed

    def specify(self, wanted: TryWanted, used: Callable[[], Collection[str]]) -> JobRow | None:
        """Take in what a job is for; if that has changed, return its row: it begins again."""
        learned = self._jobs.get(wanted.job)
        row = JobRow(
            job=wanted.job,
            version=learned.row.version if learned else 1,
            batch_sizes=wanted.batch_sizes,
            default_batch_size=wanted.default,
            metric=wanted.metric,
            target=wanted.target,
            lower_is_better=wanted.lower_is_better,
            max_epochs=wanted.max_epochs,
            eta=wanted.eta,
            beta=wanted.beta,
            cost_window=wanted.window,
        )
        if learned is None:
            self._jobs[wanted.job] = LearnedHistory(row=row)
            if len(self._jobs) > MAX_JOBS:
                kept = used()
                oldest = next((name for name in self._jobs if name not in kept), None)
                if oldest is not None:
                    del self._jobs[oldest]
            return row
        if row == learned.row:
            return None
        renewed = _meaning(row) != _meaning(learned.row)
        return _renew(learned, replace(row, version=row.version + renewed))

    def tries(self, job: str) -> int | None:
        """Return the number of tries that count for a job; None: it is not known."""
        return None if (learned := self._jobs.get(job)) is None else len(learned.tries)

    def forget(self, job: str) -> JobRow | None:
        """Let a job begin again, without its tries. Return its row; None: it is not known."""
        if (learned := self._jobs.get(job)) is None:
            return None
        return _renew(learned, replace(learned.row, version=learned.row.version + 1))


def _meaning(row: JobRow) -> tuple[object, ...]:
    return row.metric, row.target, row.lower_is_better, row.max_epochs, row.eta


def _renew(learned: LearnedHistory, row: JobRow) -> JobRow:
    if row.version != learned.row.version:
        learned.tries.clear()
    learned.row, learned.history = row, None
    return row
