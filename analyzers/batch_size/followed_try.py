"""A try of a recurring job that is followed: its epochs, what they cost, and how it ended. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Protocol

from msgspec.structs import replace

from analyzers.batch_size.known_jobs import LearnedHistory
from analyzers.batch_size.policy import Choice, TryVerdict
from analyzers.fleet.fleet import Fleet
from analyzers.fleet.session import Session
from analyzers.results.job_rows import Ended
from analyzers.results.rows import TryRow, WindowRow
from zeus_stream.protocol.events import TryWanted


class JobRun(Protocol):
    """The run of a job: all that batch sizes depend on of it."""

    @property
    def name(self) -> str: ...

    @property
    def sessions(self) -> Mapping[str, Session]: ...

    @property
    def over(self) -> bool: ...


@dataclass(slots=True, kw_only=True)
class FollowedEpoch:
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


@dataclass(slots=True, kw_only=True)
class FollowedTry:
    """A try that is followed."""

    wanted: TryWanted
    session: Session
    """That asked first."""
    since_ns: int
    """Frame time of its host, as everything here."""
    row: TryRow | None = None
    """None: nothing is chosen yet. One that an earlier analyzer saw end counts until it is measured again."""
    settled: bool = False
    """It has ended and is measured."""
    over: tuple[int, int, Ended, str] | None = None
    """Frame time at which that came, UTC, how and why it ended."""
    sizes: dict[str, int] = field(default_factory=dict)
    """By session: what it trains with."""
    left: set[str] = field(default_factory=set)
    """Sessions that have reported how it ended."""
    epochs: int = 0
    energy_j: float | None = 0.0
    duration_s: float = 0.0
    cost_j: float | None = 0.0
    epoch_cost_j: float | None = None
    metrics: list[float] = field(default_factory=list)
    missing: str = ""
    """Why its cost is not known."""
    word: tuple[int, TryVerdict] | None = None
    """After so many epochs; the same for all ranks."""


@dataclass(slots=True)
class FollowedRun:
    """A run of a job."""

    run: JobRun
    joined: dict[str, str] = field(default_factory=dict)
    """By session that is or was a part of it, its host."""
    tries: dict[int, FollowedTry] = field(default_factory=dict)
    """By attempt."""
    epochs: dict[int, FollowedEpoch] = field(default_factory=dict)
    """By index."""


def under_way(training: FollowedRun) -> FollowedTry | None:
    """Return the run's latest try, if it has not ended."""
    if not training.tries:
        return None
    latest = training.tries[max(training.tries)]
    return latest if latest.over is None else None


def _reached(followed: FollowedTry) -> bool:
    """Return whether the target was reached by the epochs that are measured, though no rank reported it."""
    wanted, metrics = followed.wanted, followed.metrics
    if not metrics or followed.epochs < len(metrics):
        return False
    return metrics[-1] <= wanted.target if wanted.lower_is_better else metrics[-1] >= wanted.target


def add_epoch(followed: FollowedTry, rows: list[WindowRow], fleet: Fleet) -> None:
    """Add an epoch that was measured on all GPUs to what its try has taken."""
    eta = followed.wanted.eta
    by_gpu = {row.gpu: row for row in rows if row.gpu is not None}
    duration_s = max(row.duration_s for row in rows)
    energy_j, cost_j, limited = 0.0, inf, True
    for row in by_gpu.values():
        if row.energy_j is None or row.shared:
            why = "another run used it at the same time" if row.shared else row.quality
            followed.missing = followed.missing or f"{row.gpu}: {why}"
        else:
            energy_j += row.energy_j
        limited = limited and row.power_limit_w is not None
    if not by_gpu:
        followed.missing = followed.missing or "the run has no GPU"
    most_w = _most_w(by_gpu, fleet)
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


def _unreached(training: FollowedRun, learned: LearnedHistory) -> int | None:
    """Return the recurrence of a run's last try of a job; None: it has none, or that reached the target."""
    job = learned.row.job, learned.row.version
    tries = [(of, of.row) for of in training.tries.values() if of.row and (of.row.job, of.row.version) == job]
    if not tries:
        return None
    last, row = tries[-1]
    return None if last.over is not None and last.over[2] == "converged" else row.recurrence


def begun_row(
    training: FollowedRun,
    followed: FollowedTry,
    learned: LearnedHistory,
    choice: Choice,
    policy: str,
    setup: str,
    trainings: Iterable[FollowedRun],
) -> TryRow:
    """Return the row of a try that begins. Its run keeps its recurrence until the target is reached."""
    wanted, recurrence = followed.wanted, _unreached(training, learned)
    if recurrence is None:
        held = {_unreached(other, learned) for other in trainings if not other.run.over}
        recurrence = learned.next_recurrence(held)
    return TryRow(
        job=wanted.job,
        number=learned.numbers + 1,
        version=learned.row.version,
        recurrence=recurrence,
        run=training.run.name,
        session=followed.session.session,
        attempt=wanted.attempt,
        setup=setup,
        batch_size=choice.batch_size,
        policy=policy,
        reason=choice.reason[:2000],
        stop_cost_j=choice.stop_cost_j if isfinite(choice.stop_cost_j) else None,
        began_wall_ns=followed.session.wall_ns(wanted.t_ns),
        ended_wall_ns=None,
        epochs=0,
        energy_j=None,
        duration_s=0.0,
        cost_j=None,
        epoch_cost_j=None,
        metrics=(),
        ended="running",
        ended_why="",
    )


def measured_row(followed: FollowedTry, row: TryRow) -> TryRow:
    return replace(
        row,
        epochs=followed.epochs,
        energy_j=followed.energy_j,
        duration_s=followed.duration_s,
        cost_j=followed.cost_j,
        epoch_cost_j=followed.epoch_cost_j,
        metrics=tuple(followed.metrics),
    )


def settled_row(followed: FollowedTry, row: TryRow) -> TryRow:
    assert followed.over is not None
    _, ended_wall_ns, how, why = followed.over
    if how == "lost" and _reached(followed):
        how, why = "converged", f"its metric had reached the target; {why}"
    if len(set(followed.sizes.values())) > 1:
        sizes = ", ".join(map(str, sorted(set(followed.sizes.values()))))
        how, why = "lost", f"its ranks trained with different batch sizes: {sizes}"
    elif how != "lost" and followed.missing:
        why = f"{why}; its cost is not known: {followed.missing}"
    row = measured_row(followed, row)
    return replace(row, ended=how, ended_why=why[:2000], ended_wall_ns=ended_wall_ns)


def is_sound(event: TryWanted) -> bool:
    ascending = tuple(sorted(set(event.batch_sizes))) == event.batch_sizes
    return ascending and event.default in event.batch_sizes


def setup_of(run: JobRun, fleet: Fleet) -> str:
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
