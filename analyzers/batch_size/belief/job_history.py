"""The tries of a job, each with what is best known of it, and a summary of those that have ended. Pure.

Converged outweighs stopped, an end outweighs lost, and lost outweighs running. Tries are summed up by number.
So no order of reports matters, and one that comes late changes what follows from it.
"""

from bisect import bisect_left

from msgspec import Struct
from msgspec.structs import replace

from analyzers.batch_size.belief.try_summary import TrySummary
from analyzers.batch_size.policy import Job, Try

_WEIGHT = {"running": 0, "lost": 1, "stopped": 2, "exhausted": 2, "converged": 3}


class JobHistory(Struct, frozen=True):
    """A job and its tries."""

    job: Job
    tries: tuple[Try, ...] = ()
    """By number."""
    seen: TrySummary = TrySummary()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHistory) and (other.job, other.tries) == (self.job, self.tries)

    def __hash__(self) -> int:
        return hash((self.job, self.tries))

    def heard(self, a_try: Try) -> "JobHistory":
        """Return the history with this report of a try, unless more is known of it already."""
        at = bisect_left(self.tries, a_try.number, key=_number)
        before = [one for one in self.tries[at : at + 1] if one.number == a_try.number]
        if before and _weight(before[0]) >= _weight(a_try):
            return self
        after = self.tries[at + len(before) :]
        tries = (*self.tries[:at], a_try, *after)
        if a_try.ended == "running":
            return replace(self, tries=tries)
        again = any(one.ended != "running" for one in (*before, *after))
        seen = TrySummary() if again else self.seen
        for one in tries if again else (a_try,):
            if one.ended != "running" and one.epochs > 0 and one.batch_size > 0:
                seen = seen.and_(one, self.job)
        return JobHistory(self.job, tries, seen)


def _number(a_try: Try) -> int:
    return a_try.number


def _weight(a_try: Try) -> tuple[int, int, float, str]:
    """Return what decides which of two reports of a try holds; the last part only tells equals apart."""
    return _WEIGHT[a_try.ended], a_try.epochs, a_try.cost_j, repr(a_try)
