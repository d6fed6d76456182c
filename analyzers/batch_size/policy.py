"""Jobs that recur, and what a policy is asked about them. Pure.

    job, its tries, rng -> a batch size for the next try, and at which cost it ends

A *recurrence* is one wish to have the model trained; it may take several *tries*, each with a batch size of
its own, until one reaches the target. Costs are joules: C = eta * energy + (1 - eta) * MAXPOWER * time, with
MAXPOWER the highest power limit of the GPU model times the number of GPUs.

A policy has no state. It is asked with the history of the job (`belief/try_summary.py`), which is nothing but
its tries: it can be made again from the rows of the archive at any time.

    choice = policy.choose(history, setup, rng)
    verdict = policy.verdict(history, a_try)  # after each epoch of a running try

Source: You, Chung, Chowdhury, "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training",
NSDI 2023.
"""

from math import inf
from random import Random
from typing import Protocol, TypeVar

from msgspec import Struct

from analyzers.results.job_rows import Ended


class Job(Struct, frozen=True, kw_only=True):
    """The constants of a job, from recurrence to recurrence."""

    batch_sizes: tuple[int, ...]
    """Ascending, positive."""
    default: int
    """One of them."""
    max_epochs: int
    eta: float = 0.5
    """0: only time counts; 1: only energy."""
    beta: float = 2.0
    """A try may cost so many times the least a converged one has cost."""
    window: int = 0
    """Only so many of the latest costs of a batch size count; 0: all."""
    target: float | None = None
    lower_is_better: bool = False
    metric_step: float = 0.0
    """The metric is known in steps of this; 0: exactly."""


class Try(Struct, frozen=True, kw_only=True):
    """One training of a recurrence, as far as it has come."""

    number: int
    """Unique within the job, growing in the order in which tries began."""
    recurrence: int
    batch_size: int
    setup: str
    """Where it ran: GPU model and number of GPUs."""
    epochs: int = 0
    """Whole ones."""
    cost_j: float = 0.0
    """Of them, profiling included."""
    epoch_cost_j: float | None = None
    """What an epoch of it costs at the power limit chosen for it; None until that is known."""
    metrics: tuple[float, ...] = ()
    """The target's metric after each epoch, where it was reported."""
    ended: Ended = "running"


class Choice(Struct, frozen=True):
    """The batch size of the next try."""

    batch_size: int
    stop_cost_j: float = inf
    """It ends before an epoch that would take its cost above this."""
    reason: str = ""
    """For people: why this one."""


class TryVerdict(Struct, frozen=True):
    """The answer to whether a try goes on with another epoch, and why not."""

    go_on: bool
    reason: str = ""


H_contra = TypeVar("H_contra", contravariant=True)


class Policy(Protocol[H_contra]):
    """A way to choose batch sizes. Its functions are pure; every history has an answer."""

    def choose(self, history: H_contra, setup: str, rng: Random) -> Choice: ...

    def verdict(self, history: H_contra, a_try: Try) -> TryVerdict: ...
