"""The runs of a `Snapshot`: rows of the interpreter, and progress of searches, to what screens show. Pure."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import frexp
from typing import ClassVar

from msgspec.structs import replace

from analyzers.live.live_run import (
    RECENT_STEPS,
    SAME_W,
    Gained,
    LiveRun,
    OpenStep,
    is_found_limit,
    sum_of,
)
from analyzers.results.limit_rows import CHANGED
from analyzers.results.rows import (
    DecisionRow,
    ForecastRow,
    PipelineRow,
    ProfileRow,
    RunRow,
    StepColumns,
    TrialRow,
    WindowRow,
)
from zeus_stream.protocol.events import EpochBegan, StepBoundary
from zeus_stream.protocol.fields import MOST_WALL_NS, of_host
from zeus_stream.protocol.frames import Events
from zeus_stream.protocol.notes import Pod
from zeus_stream.protocol.snapshots import (
    MAX_JOB_ROWS,
    MAX_TRIAL_ROWS,
    Bucket,
    ForecastNow,
    JobSteps,
    RunNow,
    SearchNow,
    StretchNow,
    TrialNow,
)

OTHER = "other"
"""Stands for the jobs past the bound."""
LEAST, MOST = -30, 40
"""Exponents of two: smaller and larger values are in the outermost buckets."""


def exponent(value: float) -> int:
    """Return the exponent of the smallest power of two that is not below a value, within the bounds."""
    mantissa, power = frexp(value)
    return max(LEAST, min(MOST, power - (mantissa == 0.5))) if value > 0 else LEAST


@dataclass(slots=True)
class _Histogram:
    counts: Counter[int] = field(default_factory=Counter)
    total: float = 0.0

    def add(self, value: float) -> None:
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
        if (known := self._jobs.get(job)) is None:
            if len(self._jobs) >= MAX_JOB_ROWS - 1:
                job = OTHER
            known = self._jobs.setdefault(job, (_Histogram(), _Histogram()))
        energy, duration = known
        duration.add(seconds)
        if joules is not None:
            energy.add(joules)

    def rows(self) -> tuple[JobSteps, ...]:
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


MAX_OPEN_STEPS = 64
"""Steps of a run of which rows of some ranks are awaited."""
MAX_RUNS = 10_000
KEPT_NS = 120_000_000_000
"""A run that ended is shown for so long."""


class LiveRuns:
    """The runs that are open, and those that ended a short time ago."""

    NOT_STATE: ClassVar = frozenset[str](("_energy_mj",))
    """A function."""

    def __init__(self, energy_mj: Callable[[str], int | None]) -> None:
        """Begin with none. ``energy_mj`` returns the energy of a GPU since it was first seen."""
        self._energy_mj = energy_mj
        self._runs: dict[str, LiveRun] = {}
        self._of_session: dict[str, str] = {}
        self._ended_saved = [0.0, 0.0]
        self.steps_by_job = StepsByJob()

    def restart(self, now_ns: int) -> None:
        """Take in that this process was restarted: runs that have ended are shown no longer."""
        for run in self._runs.values():
            run.ended_ns = None if run.ended_ns is None else now_ns - KEPT_NS

    def take_events(self, body: Events) -> None:
        run = self._runs.get(self._of_session.get(body.session, ""))
        if run is None:
            return
        for event in body.events:
            if isinstance(event, StepBoundary):
                if event.began_ns is not None:
                    run.step, joined = event.index, run.steps.get(body.session)
                    run.steps[body.session] = event.index if joined is None else joined[0], event.index
                    rank = run.ranks.get(body.session)
                    run.changes += joined is None or rank is None or rank.ended_ns is not None
            elif isinstance(event, EpochBegan):
                run.epoch = event.index

    def take_rows(self, rows: Iterable[object], now_ns: int, *, live: bool = True) -> None:
        """Take in rows in order. ``live``: False: of the archive, where a run that ended is not shown."""
        for row in rows:
            match row:
                case RunRow():
                    self._rank(row, now_ns if live else now_ns - KEPT_NS)
                case PipelineRow():
                    if (run := self._runs.get(row.run)) is not None:
                        run.pipeline = row.state
                case StepColumns():
                    self.take_rows(row.rows(), now_ns, live=live)
                case WindowRow() | TrialRow() | ForecastRow() | DecisionRow() | ProfileRow():
                    if (run := self._runs.get(row.run)) is not None:
                        self._take_row(run, row)
                case _:
                    pass  # not shown

    def _take_row(
        self, run: LiveRun, row: WindowRow | TrialRow | ForecastRow | DecisionRow | ProfileRow
    ) -> None:
        match row:
            case WindowRow(kind="step"):
                self._step(run, row)
            case WindowRow(kind="run", gpu=str() as gpu):
                run.measured_j[row.session, gpu] = row.energy_j
                if row.energy_j is None and not of_host(gpu):
                    run.unmeasured = row.quality
            case TrialRow():
                run.take_visit(row)
            case ProfileRow():
                run.take_profile(row)
            case ForecastRow():
                run.forecast = row
            case DecisionRow():
                run.take_decision(row)
            case _:
                pass  # epochs and named windows are not shown

    def _rank(self, row: RunRow, now_ns: int) -> None:
        if row.world_size == 0:
            return  # it only watches GPUs
        run = self._runs.get(row.run)
        if run is None or (
            run.ended_ns is not None and row.ended_ns is None and row.session not in run.ranks
        ):
            self._forget_ended(now_ns)
            before_j = 0.0 if run is None else self._energy_j(run)
            unmeasured = run.unmeasured if run is not None and before_j is None else ""
            run = self._runs[row.run] = LiveRun(
                run=row.run,
                job=row.job,
                began_wall_ns=row.began_wall_ns,
                before_j=before_j,
                unmeasured=unmeasured,
            )
        run.take_rank(row)
        self._of_session[row.session] = row.run
        in_use = {gpu for rank in run.ranks.values() if rank.ended_ns is None for gpu in rank.gpus}
        for gpu in row.gpus:
            if (energy_mj := self._energy_mj(gpu)) is None:
                continue
            run.begin_mj.setdefault(gpu, energy_mj)
            if gpu in in_use:
                run.end_mj.pop(gpu, None)
            else:
                run.end_mj.setdefault(gpu, energy_mj)
        open_ranks = any(rank.ended_ns is None for rank in run.ranks.values())
        run.ended_ns = None if open_ranks else run.ended_ns or now_ns

    def _forget_ended(self, now_ns: int) -> None:
        """Forget the runs that ended some time ago; of too many, the oldest."""
        old = [run for run in self._runs.values() if run.ended_ns and now_ns - run.ended_ns > KEPT_NS]
        spare = len(self._runs) - len(old) - MAX_RUNS + 1
        if spare > 0:
            old += [run for run in self._runs.values() if run not in old][:spare]
        for run in old:
            if (saved := run.saved) is not None:
                self._ended_saved = [self._ended_saved[0] + saved[0], self._ended_saved[1] + saved[1]]
            del self._runs[run.run]
            for session in run.ranks:
                self._of_session.pop(session, None)

    def _step(self, run: LiveRun, row: WindowRow) -> None:
        if row.gpu is not None:
            if of_host(row.gpu):
                return
            if row.energy_j is not None:
                if (steps_j := run.gpu_steps_j.get(row.gpu)) is None:
                    steps_j = run.gpu_steps_j[row.gpu] = deque(maxlen=RECENT_STEPS)
                steps_j.append(row.energy_j)
        if (step := run.open_steps.get(row.index)) is None:
            step = run.open_steps[row.index] = OpenStep()
        step.add(row, counted=(row.session, row.gpu) not in run.of_lower_ranks)
        if step.changes != run.changes:
            step.wanted, step.changes = run.rows_of(row.index), run.changes
        if step.rows < step.wanted:
            if len(run.open_steps) > MAX_OPEN_STEPS:
                del run.open_steps[next(iter(run.open_steps))]
            return
        del run.open_steps[row.index]
        run.recent.append((step.energy_j, step.duration_s))
        self.steps_by_job.add(run.job, step.energy_j, step.duration_s)
        if step.energy_j is None or step.highest_w is None:
            return
        lowered = step.lowest_w < step.highest_w - SAME_W
        run.add(row.index, step.energy_j, step.highest_w, lowered=lowered)

    # ---- the answer

    def now(self, searches: Mapping[str, SearchNow], now_ns: int, wall_ns: int) -> list[RunNow]:
        """Return the runs: open ones first, the latest first. ``wall_ns``: UTC, now."""
        self._forget_ended(now_ns)
        runs = sorted(self._runs.values(), key=lambda run: (run.ended_ns is not None, -run.began_wall_ns))
        return [self._run(run, searches.get(run.run), wall_ns) for run in runs]

    def steps_j(self) -> dict[str, float]:
        """Return, by GPU, the mean energy of the last steps of the run that began last on it."""
        runs = sorted(self._runs.values(), key=lambda run: run.began_wall_ns)
        return {gpu: sum(j) / len(j) for run in runs for gpu, j in run.gpu_steps_j.items() if j}

    def saved(self) -> tuple[float, float]:
        """Return the joules that all runs have saved since the start, and what they would have taken."""
        each = [saved for run in self._runs.values() if (saved := run.saved) is not None]
        saved_j = self._ended_saved[0] + sum(saved for saved, _ in each)
        usual_j = self._ended_saved[1] + sum(usual for _, usual in each)
        return saved_j, usual_j

    def _run(self, run: LiveRun, progress: SearchNow | None, wall_ns: int) -> RunNow:
        gpus = run.gpus
        energies = [joules for joules, _ in run.recent if joules is not None]
        ranks, ended = run.ranks.values(), run.ended_ns is not None
        return RunNow(
            run=run.run,
            job=run.job,
            ranks=sum(rank.ended_ns is None for rank in ranks),
            hosts=tuple(dict.fromkeys(rank.host for rank in ranks))[:256],
            gpus=gpus,
            began_wall_ns=run.began_wall_ns,
            ended_wall_ns=max(map(_ended_wall_ns, ranks)) if ended else None,
            epoch=run.epoch,
            step=run.step,
            step_j=sum(energies) / len(energies) if len(energies) == len(run.recent) > 0 else None,
            step_ms=1000 * sum(s for _, s in run.recent) / len(run.recent) if run.recent else None,
            energy_j=self._energy_j(run),
            energy_absent=run.unmeasured if ended or run.before_j is None else "",
            search=_search(run, progress),
            forecast=None if ended else _forecast(run.forecast, wall_ns),
            pipeline=run.pipeline,
            pods=tuple(dict.fromkeys(pod for rank in ranks if (pod := _pod(rank))))[:256],
        )

    def _energy_j(self, run: LiveRun) -> float | None:
        """Return the energy so far; of a run that has ended, the measured one as soon as it is known."""
        if run.ended_ns is not None and run.is_measured:
            return run.energy_j
        used_mj = [self._used_mj(run, gpu) for gpu in run.gpus]
        used_j = sum_of([None if each is None else each / 1000 for each in used_mj])
        return None if used_j is None or not used_mj else sum_of([run.before_j, used_j])

    def _used_mj(self, run: LiveRun, gpu: str) -> int | None:
        energy_mj = run.end_mj.get(gpu, self._energy_mj(gpu))
        return energy_mj - run.begin_mj[gpu] if energy_mj is not None and gpu in run.begin_mj else None


def _forecast(row: ForecastRow | None, wall_ns: int) -> ForecastNow | None:
    if row is None:
        return None
    since_s = row.spent_s + max(0, wall_ns - row.made_wall_ns) / 1e9
    left = [
        None if whole_s is None else max(0.0, whole_s - since_s)
        for whole_s in (row.duration_s, row.duration_p2_5_s, row.duration_p97_5_s)
    ]
    return ForecastNow(
        epochs=row.epochs,
        steps=row.steps,
        energy_j=row.energy_j,
        energy_low_j=row.energy_p2_5_j,
        energy_high_j=row.energy_p97_5_j,
        left_s=left[0],
        left_low_s=left[1],
        left_high_s=left[2],
    )


def _pod(rank: RunRow) -> Pod | None:
    if rank.namespace is None or rank.pod is None or rank.container is None:
        return None
    return Pod(namespace=rank.namespace, name=rank.pod, container=rank.container)


def _ended_wall_ns(rank: RunRow) -> int:
    ended_ns = max(rank.began_ns, rank.ended_ns or 0)  # as a script says: any time
    return min(rank.began_wall_ns + ended_ns - rank.began_ns, MOST_WALL_NS)


def _search(run: LiveRun, progress: SearchNow | None) -> SearchNow | None:
    """Return the search of a run; of one that has ended, what was chosen. None: nothing is searched."""
    decision = run.decision
    if progress is None:
        if decision is None:
            return None
        chosen = decision.applied and decision.power_limit_w is not None
        progress = SearchNow(
            phase="chosen" if chosen else "observing",
            limit_mw=_milliwatts(decision.power_limit_w),
            clock_mhz=decision.clock_mhz,
            found_mw=_milliwatts(decision.default_limit_w),
        )
    trials = _trials(run, progress.found_mw)
    latest = max(run.visits.values(), key=lambda row: (row.best_w is not None, row.ended_ns), default=None)
    saved, added = run.saved, _added_percent(decision, "energy_per_step_j")
    return replace(
        progress,
        best_mw=_milliwatts(latest.best_w) if latest and latest.best_w else _least_energy_mw(trials),
        best_excess_p95_percent=latest.best_excess_p95_percent if latest else None,
        saved_j=saved[0] if saved else None,
        saved_percent=None if added is None else 0.0 - added,
        saved_low_percent=_of(decision, "energy_saved_low_percent"),
        saved_high_percent=_of(decision, "energy_saved_high_percent"),
        time_added_percent=_added_percent(decision, "step_s"),
        time_added_low_percent=_of(decision, "time_added_low_percent"),
        time_added_high_percent=_of(decision, "time_added_high_percent"),
        reason=(progress.reason or (decision.reason if decision else ""))[:2000],
        trials=tuple(trials[-MAX_TRIAL_ROWS:]),
        stretches=tuple(_stretch(*gain) for gain in run.gains if gain[1].steps),
    )


def _stretch(decision: DecisionRow, gained: Gained) -> StretchNow:
    added = _added_percent(decision, "energy_per_step_j")
    return StretchNow(
        first_step=decision.steps if decision.changed_step is None else decision.changed_step,
        changed=CHANGED in decision.reason,
        limit_mw=round(1000 * (decision.power_limit_w or 0)),
        clock_mhz=decision.clock_mhz,
        steps=gained.steps,
        saved_j=gained.saved_j,
        saved_percent=None if added is None else 0.0 - added,
        saved_low_percent=_of(decision, "energy_saved_low_percent"),
        saved_high_percent=_of(decision, "energy_saved_high_percent"),
        measured_by=f"{decision.trials_run} {decision.trials_round}",
    )


def _least_energy_mw(trials: Iterable[TrialNow]) -> int | None:
    """Return the limit with the least energy of a step: the best so far where all limits are measured."""
    known = [(each.step_j, each.limit_mw) for each in trials if each.step_j is not None]
    return min(known, default=(None, None))[1]


def _trials(run: LiveRun, found_mw: int | None) -> list[TrialNow]:
    """Return the limits that were measured: of each, all steps of its visits, as in `trials_of_rows`.

    Once the round has decided, they are as the search believes them, as in `as_believed`.
    """
    at: dict[tuple[float, bool], list[TrialRow]] = {}
    for row in run.visits.values():
        at.setdefault((row.power_limit_w, row.confirms), []).append(row)
    trials = [_trial(own) for own in at.values()]
    believed = {_milliwatts(row.power_limit_w): row for row in run.believed}
    if found_mw not in believed:
        return trials
    return [_as_believed(each, believed.get(each.limit_mw)) for each in trials]


def _as_believed(trial: TrialNow, belief: ProfileRow | None) -> TrialNow:
    if trial.confirms or belief is None:
        return trial
    step_ms = 1000 * belief.duration_s / belief.steps
    return replace(trial, step_j=belief.energy_j / belief.steps, step_ms=step_ms)


def _trial(visits: Sequence[TrialRow]) -> TrialNow:
    first, steps = visits[0], sum(row.steps for row in visits)
    return TrialNow(
        limit_mw=round(first.power_limit_w * 1000),
        steps=steps,
        step_j=sum(row.energy_j for row in visits) / steps if steps else None,
        step_ms=1000 * sum(row.duration_s for row in visits) / steps if steps else None,
        confirms=first.confirms,
        clock_mhz=first.clock_mhz,
    )


def _of(decision: DecisionRow | None, bound: str) -> float | None:
    """Return a bound of the saving or of the time added; None: not known, or the limit found is kept."""
    return None if decision is None or is_found_limit(decision) else getattr(decision, bound)


def _added_percent(decision: DecisionRow | None, name: str) -> float | None:
    """Return by how much a step at the limit chosen takes more, in energy or time. None: it is not known."""
    if decision is None:
        return None
    chosen, found = getattr(decision, name), getattr(decision, f"default_{name}")
    if chosen is None or not found:
        return None
    return 0.0 if is_found_limit(decision) else 100 * (chosen / found - 1)


def _milliwatts(limit_w: float | None) -> int | None:
    return None if limit_w is None else round(limit_w * 1000)
