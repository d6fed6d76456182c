"""Histograms of the steps of jobs, for metrics. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from zeus_stream.protocol.snapshots import MAX_JOB_ROWS, Bucket, JobSteps

OTHER = "other"
"""Stands for the jobs past the bound."""
LEAST, MOST = -30, 40
"""Exponents of two: smaller and larger values are in the outermost buckets."""


TOGETHER = 1_000
"""Values that are counted together."""


def exponents(values: Sequence[float]) -> list[int]:
    """Return for each value the least exponent of two whose power is not below it."""
    mantissa, power = np.frexp(values)
    bounded = np.clip(power - (mantissa == 0.5), LEAST, MOST)
    return np.where(mantissa > 0, bounded, LEAST).tolist()  # type: ignore[no-any-return]  # NumPy says Any


@dataclass(slots=True)
class _Histogram:
    counts: Counter[int] = field(default_factory=Counter)
    counted: float = 0.0
    """The sum of the values that are counted."""
    fresh: list[float] = field(default_factory=list)
    """Values that are not."""

    @property
    def total(self) -> float:
        """Return the sum of all values."""
        return self.counted + sum(self.fresh)

    def add(self, values: Iterable[float]) -> None:
        self.fresh += values
        if len(self.fresh) >= TOGETHER:
            self.count()

    def count(self) -> None:
        """Count the fresh values."""
        self.counts.update(exponents(self.fresh))
        self.counted, self.fresh = self.total, []

    def buckets(self) -> tuple[Bucket, ...]:
        self.count()
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
