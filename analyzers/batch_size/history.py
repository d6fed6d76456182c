"""The known tries of a job that recurs, and what a policy makes of them. Pure.

    rows of its tries -> `LearnedHistory.known`: its history -> `choose`: the next batch size
                                                      -> `verdict`: whether a try goes on

The history is made of the rows alone: it is the same before and after a restart, however late a report has
come.
"""

from collections.abc import Container, Iterable
from random import Random
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from analyzers.batch_size.belief.job_history import JobHistory
from analyzers.batch_size.policy import Choice, Job, Policy, Try, TryVerdict
from analyzers.results.rows import Ended, JobRow, TryRow

MAX_TRIES = 1_000
"""Of a job, that its policy gets; the oldest go."""
MAX_RECURRENCE_TRIES = 20
"""Then the next try begins a new recurrence."""


class LearnedHistory(Struct, kw_only=True):
    """A job, and all its tries that count."""

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
    """Return a job as a policy gets it."""
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
    """Return whether a running try goes on with another epoch."""
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
