"""Tries of a job, and recurrences that the adaptive policy plays where all epochs and costs are known."""

from collections.abc import Callable
from functools import reduce
from math import exp
from random import Random
from typing import Any

from msgspec.structs import replace

from analyzers.batch_size.adaptive import Adaptive
from analyzers.batch_size.belief.try_summary import JobHistory
from analyzers.batch_size.policy import Job, Try
from analyzers.results.job_rows import Ended

POLICY = Adaptive()
GPU = "gpu"
Tried = tuple[int, int, bool]
"""Batch size, epochs, and whether the try converged."""


def one_try(
    number: int, size: int, epochs: int, ended: Ended = "converged", *, epoch_j: float = 10.0, **others: Any
) -> Try:
    """Return a try that is a recurrence of its own and whose epochs cost the same."""
    a_try = Try(
        number=number, recurrence=number, batch_size=size, setup=GPU, epochs=epochs, cost_j=epochs * epoch_j,
        epoch_cost_j=epoch_j, ended=ended,
    )  # fmt: skip
    return replace(a_try, **others)


def history(job: Job, *tries: Try) -> JobHistory:
    """Return the history of a job with these tries."""
    return reduce(JobHistory.heard, tries, JobHistory(job))


def recurred(
    state: JobHistory,
    times: int,
    needs: Callable[[int], float],
    epoch_j: Callable[[int], float],
    *,
    metrics: bool = False,
) -> tuple[JobHistory, list[Tried]]:
    """Return the state after so many recurrences, and every try of them.

    ``needs``: epochs to the target by batch size, infinite where it never converges. ``epoch_j``: of each.
    """
    tries = list[Tried]()
    first = max((one.recurrence for one in state.tries), default=-1) + 1
    for recurrence in range(first, first + times):
        converged = False
        while not converged:
            number = max((one.number for one in state.tries), default=-1) + 1
            size = POLICY.choose(state, GPU, Random(1)).batch_size
            a_try = Try(
                number=number, recurrence=recurrence, batch_size=size, setup=GPU, epoch_cost_j=epoch_j(size)
            )
            state = state.heard(a_try)
            while not converged and (a_try.epochs == 0 or POLICY.verdict(state, a_try).go_on):
                done = a_try.epochs + 1
                seen = (*a_try.metrics, 1 - exp(-2 * done / needs(size))) if metrics else ()
                a_try = replace(a_try, epochs=done, cost_j=done * epoch_j(size), metrics=seen)
                converged = done == needs(size)
            state = state.heard(replace(a_try, ended="converged" if converged else "stopped"))
            tries.append((size, a_try.epochs, converged))
    return state, tries
