"""The known tries of a job that recurs, and what a policy makes of them. Pure.

    rows of its tries -> `learn`: the policy's state -> `choose`: the next batch size
                                                     -> `verdict`: whether a try goes on

The state is made of the rows alone, in the order of UTC: it is the same before and after a restart, however
late a report has come.
"""

from collections.abc import Container, Iterable
from random import Random
from typing import Any, TypeAlias

from msgspec import Struct, field

from analyzers.batch_size.policy import Choice, Job, Policy, Try, TryVerdict
from analyzers.results.rows import Ended, JobRow, TryRow

Happened: TypeAlias = tuple[int, bool, int]
"""UTC, whether it is an end, and the number of the try that began or ended."""
MAX_TRIES = 1_000
"""Of a job, that its policy gets; the oldest go."""
MAX_RECURRENCE_TRIES = 20
"""Then the next try begins a new recurrence."""


class Learned(Struct, kw_only=True):
    """A job, and all its tries that count."""

    row: JobRow
    tries: dict[int, TryRow] = field(default_factory=dict)
    """By number."""
    numbers: int = 0
    """Used up, by other versions as well; so are the recurrences."""
    recurrences: int = 0
    state: Any = None
    """Of the policy, after all that happened but what waits; None: to be made again."""
    heard: Happened = (-1, False, 0)
    """The last event that it got."""
    waits: list[Happened] = field(default_factory=list)

    def put(self, row: TryRow) -> None:
        """Take in what a try has come to; one of another version does not count."""
        self.numbers = max(self.numbers, row.number)
        self.recurrences = max(self.recurrences, row.recurrence)
        if row.version != self.row.version:
            return
        before = self.tries.get(row.number)
        self.tries[row.number] = row
        if before is None or (before.ended == "running" and before.batch_size == row.batch_size):
            known = [] if before is None else _happened(before)
            self.waits += [new for new in _happened(row) if new not in known]
        elif row != before:
            self.state = None
        if len(self.tries) > MAX_TRIES:
            del self.tries[min(self.tries)]
            self.state = None

    def next_recurrence(self, held: Container[int | None] = ()) -> int:
        """Return the latest recurrence that waits for another try, or a new one.

        Args:
            held: recurrences that open runs go on with.
        """
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


def learn(policy: Policy[Any], learned: Learned) -> Any:
    """Return what a policy knows of a job: its state after all tries, in the order of UTC.

    What happened after its last event is added; for a report that comes late it is made again.
    """
    state, waits = learned.state, sorted(learned.waits)
    if state is None or (waits and waits[0] < learned.heard):
        state = policy.start(job_of(learned.row))
        waits = sorted(at for row in learned.tries.values() for at in _happened(row))
    for _, over, number in waits:
        a_try = try_of(learned.tries[number])
        if a_try.batch_size not in learned.row.batch_sizes:
            continue
        if over:
            state = policy.ended(state, a_try)
        else:
            state = policy.began(
                state,
                Try(
                    number=number, recurrence=a_try.recurrence, batch_size=a_try.batch_size, setup=a_try.setup
                ),
            )
    learned.state, learned.waits = state, []
    learned.heard = waits[-1] if waits else learned.heard
    return state


def _happened(row: TryRow) -> list[Happened]:
    """Return when a try began and, if it has, when it ended."""
    began = row.began_wall_ns, False, row.number
    if row.ended == "running":
        return [began]
    return [began, (max(row.began_wall_ns, row.ended_wall_ns or 0), True, row.number)]


def choose(policy: Policy[Any], learned: Learned, setup: str) -> Choice:
    """Return what the next try is to train with: the same whenever it is asked of the same tries.

    A policy that fails has the default chosen, and the reason says so.
    """
    rng = Random(f"{learned.row.job}/{learned.row.version}/{learned.numbers + 1}")  # noqa: S311  (to be the same again, not to be secret)
    try:
        choice = policy.choose(learn(policy, learned), setup, rng)
    except Exception as wrong:  # noqa: BLE001  (an optimizer that stumbles ends neither a training nor the analyzer)
        return Choice(
            learned.row.default_batch_size, reason=f"the default, since the policy failed: {wrong!r}"
        )
    return choice


def verdict(policy: Policy[Any], learned: Learned, row: TryRow) -> TryVerdict:
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
        return policy.verdict(learn(policy, learned), try_of(row))
    except Exception as wrong:  # noqa: BLE001  (see above)
        return TryVerdict(go_on=True, reason=f"it goes on, since the policy failed: {wrong!r}")


def by_job(jobs: Iterable[JobRow], tries: Iterable[TryRow]) -> dict[str, Learned]:
    """Return what is known of each job.

    Args:
        jobs: the latest version of each.
        tries: the latest row of each, of whatever version; ascending by number.
    """
    of = {row.job: Learned(row=row) for row in jobs}
    for row in tries:
        if row.job in of:
            of[row.job].put(row)
    return of
