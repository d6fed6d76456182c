"""Histograms of the steps of jobs, for metrics. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import frexp

from zeus_stream.protocol.snapshots import MAX_JOB_ROWS, Bucket, JobSteps

OTHER = "other"
"""Stands for the jobs past the bound."""
LEAST, MOST = -30, 40
"""Exponents of two: smaller and larger values are in the outermost buckets."""


def exponent(value: float) -> int:
    """Return the least exponent of two whose power is not below a value."""
    if value <= 0:
        return LEAST
    mantissa, power = frexp(value)
    power -= mantissa == 0.5
    return power if LEAST <= power <= MOST else max(LEAST, min(power, MOST))


@dataclass(slots=True)
class _Histogram:
    counts: Counter[int] = field(default_factory=Counter)
    total: float = 0.0

    def add(self, values: Iterable[float]) -> None:
        for value in values:
            self.counts[exponent(value)] += 1
            self.total += value

    def buckets(self) -> tuple[Bucket, ...]:
        return tuple(sorted(self.counts.items()))


class StepsByJob:
    """The steps of all jobs since the service started."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[_Histogram, _Histogram]] = {}

    def add(self, job: str, joules: float | None, seconds: float) -> None:
        """Take in a measured step. ``joules``: None: not measured."""
        self.add_many(job, (joules,), (seconds,))

    def add_many(self, job: str, joules: Iterable[float | None], seconds: Iterable[float]) -> None:
        """Take in measured steps."""
        if (known := self._jobs.get(job)) is None:
            if len(self._jobs) >= MAX_JOB_ROWS - 1:
                job = OTHER
            known = self._jobs.setdefault(job, (_Histogram(), _Histogram()))
        energy, duration = known
        duration.add(seconds)
        energy.add([each for each in joules if each is not None])

    def rows(self) -> tuple[JobSteps, ...]:
        """Return the histograms by job."""
        return tuple(
            JobSteps(
                job=job,
                joules=energy.buckets(),
                sum_j=energy.total,
                seconds=duration.buckets(),
                sum_s=duration.total,
            )
            for job, (energy, duration) in self._jobs.items()
        )
