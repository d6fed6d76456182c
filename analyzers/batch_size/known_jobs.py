"""The jobs that recur, their tries, and what each job is for. Pure."""

from collections.abc import Callable, Collection, Mapping
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from analyzers.batch_size.history import LearnedHistory, by_job
from analyzers.fleet.ownership import Owners, name_of
from analyzers.results.memory import Memory
from analyzers.results.rows import JobRow, TryRow
from zeus_stream.protocol.events import TryWanted

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
        """Take in the newest row of a try."""
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
    """Return what makes tries comparable."""
    return row.metric, row.target, row.lower_is_better, row.max_epochs, row.eta


def _renew(learned: LearnedHistory, row: JobRow) -> JobRow:
    if row.version != learned.row.version:
        learned.tries.clear()
    learned.row, learned.history = row, None
    return row
