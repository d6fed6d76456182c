"""The runs of a `Snapshot`: rows of the interpreter, and progress of searches, to what screens show. Pure.

Savings are those of the view ``savings``: all steps at the limit chosen, against as many at the limit found.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from analyzers.live.job_steps import StepsByJob
from analyzers.power_limit.search_progress import SearchProgress
from analyzers.results.rows import DecisionRow, ForecastRow, RunRow, TrialRow, WindowRow
from analyzers.results.windows.step_columns import StepColumns
from zeus_stream.protocol.events import EpochBegan, StepBoundary
from zeus_stream.protocol.fields import MOST_WALL_NS, of_host
from zeus_stream.protocol.frames import Events
from zeus_stream.protocol.snapshots import MAX_TRIAL_ROWS, ForecastNow, RunNow, SearchNow, TrialNow

RECENT_STEPS = 40
MAX_OPEN_STEPS = 64
"""Steps of a run of which rows of some ranks are awaited."""
MAX_LIMITS = 64
MAX_RUNS = 10_000
KEPT_NS = 120_000_000_000
"""A run that ended is shown for so long."""
SAME_W = 0.5
"""Limits that differ by less are the same."""


@dataclass(slots=True)
class _Step:
    """One step of all ranks, as its rows come in."""

    rows: int = 0
    wanted: int = 0
    """Rows that are to come, as of ``changes`` of the run's ranks."""
    changes: int = -1
    energy_j: float | None = 0.0
    duration_s: float = 0.0
    highest_w: float | None = 0.0

    def add(self, row: WindowRow) -> None:
        known = self.energy_j is not None and row.energy_j is not None
        self.energy_j = self.energy_j + row.energy_j if known else None  # type: ignore[operator]
        self.duration_s = max(self.duration_s, row.duration_s)
        limited = self.highest_w is not None and row.power_limit_w is not None
        self.highest_w = max(self.highest_w, row.power_limit_w) if limited else None  # type: ignore[type-var]
        self.rows += 1


@dataclass(slots=True)
class _AtLimit:
    """The measured steps of a run under one power limit."""

    limit_w: float
    steps: int = 0
    energy_j: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Run:
    run: str
    job: str
    began_wall_ns: int
    ranks: dict[str, RunRow] = field(default_factory=dict)
    """By session."""
    changes: int = 0
    """Of its ranks, and of when they joined."""
    ended_ns: int | None = None
    """On the clock of this process."""
    epoch: int | None = None
    step: int | None = None
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By session, its first and its last step that began."""
    gpu_steps_j: dict[str, deque[float]] = field(default_factory=dict)
    """By GPU, the energy of its last steps."""
    open_steps: dict[int, _Step] = field(default_factory=dict)
    recent: deque[tuple[float | None, float]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Energy (J) and duration (s) of the last closed steps."""
    at_limits: dict[float, _AtLimit] = field(default_factory=dict)
    trials: dict[tuple[int, float, bool], TrialRow] = field(default_factory=dict)
    decision: DecisionRow | None = None
    forecast: ForecastRow | None = None
    begin_mj: dict[str, int] = field(default_factory=dict)
    """Energy of its GPUs when it began."""

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(gpu for rank in self.ranks.values() for gpu in rank.gpus))[:256]

    def rows_of(self, step: int) -> int:
        """Return how many rows of a step are to come: a rank may have joined late, or ended early."""
        rows = 0
        for rank in self.ranks.values():
            first, last = self.steps.get(rank.session, (0, -1))
            if first <= step and (rank.ended_ns is None or step <= last):
                rows += len(rank.gpus) or 1
        return rows

    def add_at_limit(self, steps: int, energy_j: float, limit_w: float) -> None:
        """Take in measured steps under a power limit, and their energy."""
        at = self.at_limits.setdefault(limit_w, _AtLimit(limit_w))
        at.steps, at.energy_j = at.steps + steps, at.energy_j + energy_j
        if len(self.at_limits) > MAX_LIMITS:
            del self.at_limits[next(iter(self.at_limits))]

    @property
    def saved(self) -> tuple[float, float] | None:
        """Return the joules saved, and those that its steps would have taken at the limit found."""
        decision = self.decision
        if decision is None or decision.power_limit_w is None or not decision.applied:
            return None
        default_j = decision.default_energy_per_step_j
        at: Iterable[_AtLimit] = self.at_limits.values()
        if decision.clock_mhz is None:
            at = [each for each in at if abs(each.limit_w - decision.power_limit_w) < SAME_W]
        steps = sum(each.steps for each in at)
        if default_j is None or not steps:
            return 0.0, 0.0
        return steps * default_j - sum(each.energy_j for each in at), steps * default_j


class LiveRuns:
    """The runs that are open, and those that ended a short time ago."""

    def __init__(self, energy_mj: Callable[[str], int | None]) -> None:
        """Begin with none. ``energy_mj`` returns the energy of a GPU since it was first seen."""
        self._energy_mj = energy_mj
        self._runs: dict[str, _Run] = {}
        self._of_session: dict[str, str] = {}
        self._ended_saved = [0.0, 0.0]
        self.steps_by_job = StepsByJob()

    def restart(self, now_ns: int) -> None:
        """Take in that this process was restarted: runs that have ended are shown no longer."""
        for run in self._runs.values():
            run.ended_ns = None if run.ended_ns is None else now_ns - KEPT_NS

    def take_events(self, body: Events) -> None:
        """Take in how far a rank is."""
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
        """Take in rows of the interpreter, in their order.

        Args:
            rows: of the archive, among other outputs.
            now_ns: on the clock of this process.
            live: False: they come from the archive. A run that ended there is not shown.
        """
        for row in rows:
            match row:
                case StepColumns():
                    if (run := self._runs.get(row.run)) is not None:
                        self._steps(run, row)
                case WindowRow(kind="step"):
                    if (run := self._runs.get(row.run)) is not None:
                        self._step(run, row)
                case RunRow():
                    self._rank(row, now_ns if live else now_ns - KEPT_NS)
                case TrialRow():
                    if (run := self._runs.get(row.run)) is not None:
                        run.trials.pop((row.round, row.power_limit_w, row.confirms), None)
                        run.trials[row.round, row.power_limit_w, row.confirms] = row
                        if len(run.trials) > MAX_LIMITS:
                            del run.trials[next(iter(run.trials))]
                case ForecastRow():
                    if (run := self._runs.get(row.run)) is not None:
                        run.forecast = row
                case DecisionRow():
                    run = self._runs.get(row.run)
                    if run is not None and (row.power_limit_w is not None or run.decision is None):
                        run.decision = row
                        if row.clock_mhz is not None:
                            run.at_limits.clear()  # steps from now on are at the clock
                case _:
                    pass  # not shown

    def _rank(self, row: RunRow, now_ns: int) -> None:
        if row.world_size == 0:
            return  # it only watches GPUs
        run = self._runs.get(row.run)
        if run is None or (
            run.ended_ns is not None and row.ended_ns is None and row.session not in run.ranks
        ):
            self._forget_ended(now_ns)
            run = self._runs[row.run] = _Run(run=row.run, job=row.job, began_wall_ns=row.began_wall_ns)
        run.ranks[row.session] = row
        run.changes += 1
        self._of_session[row.session] = row.run
        for gpu in row.gpus:
            if gpu not in run.begin_mj and (energy_mj := self._energy_mj(gpu)) is not None:
                run.begin_mj[gpu] = energy_mj
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

    def _steps(self, run: _Run, steps: StepColumns) -> None:
        """Take in steps; those of a run with one GPU at once."""
        rank = run.ranks.get(steps.session)
        first = run.steps.get(steps.session, (0, -1))[0]
        late = run.open_steps or int(steps.index.min()) < first
        if rank is None or len(run.ranks) > 1 or rank.gpus != (steps.gpu,) or rank.ended_ns or late:
            for row in steps.rows():
                self._step(run, row)
            return
        energies, seconds = steps.values("energy_j"), steps.values("duration_s")
        known = [energy_j for energy_j in energies if energy_j is not None]
        run.gpu_steps_j.setdefault(steps.gpu, deque(maxlen=RECENT_STEPS)).extend(known)
        run.recent.extend(zip(energies[-RECENT_STEPS:], seconds[-RECENT_STEPS:], strict=True))
        self.steps_by_job.add_many(run.job, known, seconds)
        for limit_w in dict.fromkeys(filter(None, steps.values("power_limit_w"))):
            at_limit = steps.energy_j[(steps.power_limit_w == limit_w) & (steps.energy_j >= 0)]
            run.add_at_limit(len(at_limit), float(at_limit.sum()), limit_w)

    def _step(self, run: _Run, row: WindowRow) -> None:
        if row.gpu is not None:
            if of_host(row.gpu):
                return
            if row.energy_j is not None:
                if (steps_j := run.gpu_steps_j.get(row.gpu)) is None:
                    steps_j = run.gpu_steps_j[row.gpu] = deque(maxlen=RECENT_STEPS)
                steps_j.append(row.energy_j)
        if (step := run.open_steps.get(row.index)) is None:
            step = run.open_steps[row.index] = _Step()
        step.add(row)
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
        run.add_at_limit(1, step.energy_j, step.highest_w)

    # ---- the answer

    def now(self, searches: Mapping[str, SearchProgress], now_ns: int, wall_ns: int) -> list[RunNow]:
        """Return the runs: open ones first, the latest first. ``wall_ns``: UTC, now."""
        self._forget_ended(now_ns)
        runs = sorted(self._runs.values(), key=lambda run: (run.ended_ns is not None, -run.began_wall_ns))
        return [self._run(run, searches.get(run.run), wall_ns) for run in runs]

    def steps_j(self) -> dict[str, float]:
        """Return, by GPU, the mean energy of the last steps of the run that began last on it."""
        runs = sorted(self._runs.values(), key=lambda run: run.began_wall_ns)
        return {gpu: sum(j) / len(j) for run in runs for gpu, j in run.gpu_steps_j.items() if j}

    def saved(self) -> tuple[float | None, float | None]:
        """Return joules and percent that all runs have saved since the start. None: no limit was set."""
        each = [saved for run in self._runs.values() if (saved := run.saved) is not None]
        saved_j = self._ended_saved[0] + sum(saved for saved, _ in each)
        usual_j = self._ended_saved[1] + sum(usual for _, usual in each)
        return (saved_j, 100 * saved_j / usual_j) if usual_j > 0 else (None, None)

    def _run(self, run: _Run, progress: SearchProgress | None, wall_ns: int) -> RunNow:
        gpus = run.gpus
        energies = [joules for joules, _ in run.recent if joules is not None]
        used = [self._used_mj(run, gpu) for gpu in gpus]
        known = [used_mj for used_mj in used if used_mj is not None]
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
            watts=None,
            energy_j=sum(known) / 1000 if known and len(known) == len(used) else None,
            search=_search(run, progress),
            forecast=None if ended else _forecast(run.forecast, wall_ns),
        )

    def _used_mj(self, run: _Run, gpu: str) -> int | None:
        energy_mj = self._energy_mj(gpu)
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


def _ended_wall_ns(rank: RunRow) -> int:
    ended_ns = max(rank.began_ns, rank.ended_ns or 0)  # as a script says: any time
    return min(rank.began_wall_ns + ended_ns - rank.began_ns, MOST_WALL_NS)


def _search(run: _Run, progress: SearchProgress | None) -> SearchNow | None:
    """Return the search of a run; of one that has ended, what was chosen. None: nothing is searched."""
    decision = run.decision
    if progress is None:
        if decision is None:
            return None
        chosen = decision.applied and decision.power_limit_w is not None
        progress = SearchProgress(
            phase="chosen" if chosen else "observing",
            limit_mw=_milliwatts(decision.power_limit_w),
            clock_mhz=decision.clock_mhz,
            found_mw=_milliwatts(decision.default_limit_w),
        )
    trials = [
        row for row in run.trials.values() if row.round == max(each.round for each in run.trials.values())
    ]
    best = min((row for row in trials if row.steps), key=lambda row: row.energy_j / row.steps, default=None)
    saved = run.saved
    return SearchNow(
        phase=progress.phase,
        limit_mw=progress.limit_mw,
        clock_mhz=progress.clock_mhz,
        found_mw=progress.found_mw,
        trial=progress.trial,
        trials_planned=progress.trials_planned,
        steps_done=progress.steps_done,
        steps_wanted=progress.steps_wanted,
        best_mw=_milliwatts(best.power_limit_w) if best else None,
        best_step_j=best.energy_j / best.steps if best else None,
        saved_j=saved[0] if saved else None,
        saved_percent=_saved_percent(decision),
        saved_low_percent=None,
        saved_high_percent=None,
        time_added_percent=_time_added_percent(decision),
        reason=(progress.reason or (decision.reason if decision else ""))[:2000],
        trials=tuple(_trial(row) for row in trials[-MAX_TRIAL_ROWS:]),
    )


def _trial(row: TrialRow) -> TrialNow:
    return TrialNow(
        limit_mw=round(row.power_limit_w * 1000),
        steps=row.steps,
        step_j=row.energy_j / row.steps if row.steps else None,
        step_ms=1000 * row.duration_s / row.steps if row.steps else None,
        confirms=row.confirms,
        clock_mhz=row.clock_mhz,
    )


def _saved_percent(decision: DecisionRow | None) -> float | None:
    if decision is None or decision.energy_per_step_j is None or not decision.default_energy_per_step_j:
        return None
    return 100 * (1 - decision.energy_per_step_j / decision.default_energy_per_step_j)


def _time_added_percent(decision: DecisionRow | None) -> float | None:
    if decision is None or decision.step_s is None or not decision.default_step_s:
        return None
    return 100 * (decision.step_s / decision.default_step_s - 1)


def _milliwatts(limit_w: float | None) -> int | None:
    return None if limit_w is None else round(limit_w * 1000)
