"""Metric families of jobs and runs, with counters that last longer than a snapshot. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from zeus_stream.protocol.snapshots import JobSteps, RunNow, Snapshot
from zeus_stream.screens.metrics.metrics import (
    Family,
    Labels,
    MetricSample,
    family,
    gpu_families,
    pod_labels,
    service_families,
    up_family,
)
from zeus_stream.views.quantity import Quantity
from zeus_stream.views.run_view import RunView
from zeus_stream.views.saving import saving_of_search
from zeus_stream.views.site_view import site_of_live

MAX_SERIES = 5_000
"""Of runs, and of ended runs that are remembered."""
MAX_JOBS = 500
"""Jobs with series of their own; further jobs are added up as the job ``other``."""
OTHER = "other"


@dataclass(slots=True, kw_only=True)
class JobMetrics:
    """Counters of jobs over many snapshots. A run that has left the snapshot keeps what it had."""

    whole: bool = False
    """Runs of the first snapshot are counted from their begin on, and not from that snapshot on."""
    energy_j: dict[str, float] = field(default_factory=dict)
    saved_j: dict[str, float] = field(default_factory=dict)
    waste_j: dict[tuple[str, str], float] = field(default_factory=dict)
    folded: int = 0
    """Runs whose job is counted as ``other``."""
    _runs: dict[str, tuple[float, float]] = field(default_factory=dict)
    _closed: dict[str, None] = field(default_factory=dict)

    def take(self, runs: Iterable[RunNow]) -> list[RunNow]:
        """Add what runs have used since the last snapshot. Return the runs that have ended since."""
        ended: list[RunNow] = []
        if not self.whole:
            runs = tuple(runs)
            self._leave_out(runs)
            self.whole = True
        for run in runs:
            job = self._job(run.job)
            energy_j, saved_j = self._runs.get(run.run, (0.0, 0.0))
            if run.energy_j is not None:
                self.energy_j[job] = self.energy_j.get(job, 0.0) + max(0.0, run.energy_j - energy_j)
                energy_j = max(energy_j, run.energy_j)
            saving = saving_of_search(run.search)
            if saving is not None and saving.saved.known is not None:
                self.saved_j[job] = self.saved_j.get(job, 0.0) + saving.saved.known - saved_j
                saved_j = saving.saved.known
            self._runs.pop(run.run, None)
            self._runs[run.run] = energy_j, saved_j
            if run.ended_wall_ns is not None and run.run not in self._closed:
                self._closed[run.run] = None
                ended.append(run)
        while len(self._runs) > MAX_SERIES:
            del self._runs[next(iter(self._runs))]
        while len(self._closed) > MAX_SERIES:
            del self._closed[next(iter(self._closed))]
        return ended

    def _leave_out(self, runs: Iterable[RunNow]) -> None:
        """Leave out what runs used before."""
        for run in runs:
            self._runs[run.run] = run.energy_j or 0.0, 0.0
            if run.ended_wall_ns is not None:
                self._closed[run.run] = None

    def add_waste(self, job: str, causes: Mapping[str, float]) -> None:
        """Add the parts of a closed run that are waste, joules by cause."""
        for cause, joules in causes.items():
            key = self._job(job), cause
            self.waste_j[key] = self.waste_j.get(key, 0.0) + joules

    def _job(self, job: str) -> str:
        if job in self.energy_j or len(self.energy_j) < MAX_JOBS:
            self.energy_j.setdefault(job, 0.0)
            return job
        self.folded += 1
        return OTHER

    def families(self, snapshot: Snapshot) -> list[Family]:
        """Return the families of jobs, of the open runs and of the services."""
        waste = (
            MetricSample((("training_job", job), ("cause", cause)), joules)
            for (job, cause), joules in sorted(self.waste_j.items())
        )
        return [
            family("zeus_stream_job_energy_joules_total",
                   "Energy of the GPUs of a job's runs, since this exporter started.",
                   _by("training_job", self.energy_j), "zeus_stream.job.energy", "J"),
            family("zeus_stream_job_saved_joules",
                   "Energy saved by chosen power limits, against the limits found; it may be negative.",
                   _by("training_job", self.saved_j), "zeus_stream.job.saved", "J"),
            family("zeus_stream_waste_joules_total",
                   "Energy of closed runs that no useful step took, by cause: the view waste.",
                   waste, "zeus_stream.waste.energy", "J"),
            *_run_families(snapshot),
            *step_families(snapshot.jobs),
            family("zeus_stream_folded_runs_total",
                   "Times that a run was counted as the job other, because too many jobs are known.",
                   (MetricSample((), self.folded),), "zeus_stream.folded_runs"),
        ]  # fmt: skip


def step_families(jobs: Iterable[JobSteps]) -> list[Family]:
    """Return histograms of the steps of jobs, since the analyzer started. Bounds are powers of two."""
    joules: list[MetricSample] = []
    seconds: list[MetricSample] = []
    for each in jobs:
        labels = (("training_job", each.job),)
        joules += [MetricSample(labels, each.sum_j, each.joules)] if each.joules else []
        seconds += [MetricSample(labels, each.sum_s, each.seconds)] if each.seconds else []
    return [
        family("zeus_stream_step_energy_joules",
               "Energy of a step, all GPUs of its run, since the analyzer started.",
               joules, "zeus_stream.step.energy", "J", "histogram"),
        family("zeus_stream_step_duration_seconds",
               "Duration of a step, of the slowest rank, since the analyzer started.",
               seconds, "zeus_stream.step.duration", "s", "histogram"),
    ]  # fmt: skip


def _run_families(snapshot: Snapshot) -> list[Family]:
    """Return the families of open runs. Steps of a run whose GPUs give no readings are old, and left out."""
    views = [run for run in site_of_live(snapshot).runs if not run.ended][:MAX_SERIES]
    phases = {run.run: run.search.phase if run.search else "" for run in snapshot.runs}

    def labels(run: RunView) -> Labels:
        named = (("training_job", run.job), ("run", run.run), ("host", ",".join(run.hosts)))
        return (*named, *pod_labels(run.pods))

    def samples(figure: Callable[[RunView], Quantity | None], scale: float) -> Iterator[MetricSample]:
        for run in views:
            if (value := figure(run)) is not None and value.known is not None:
                yield MetricSample(labels(run), value.known * scale)

    infos = (MetricSample((*labels(run), ("phase", phases[run.run])), 1) for run in views)
    joules = samples(lambda run: None if run.trouble else run.step_energy, 1)
    seconds = samples(lambda run: None if run.trouble else run.step_time, 1e-3)
    saved = samples(lambda run: None if run.saving is None else run.saving.energy, 1e-2)
    return [
        family("zeus_stream_run_info", "1 for each open run, with the phase of its search.", infos),
        family("zeus_stream_run_step_energy_joules",
               "Mean energy of the last steps of an open run (at most 40), all its GPUs.", joules),
        family("zeus_stream_run_step_duration_seconds", "Mean duration of the same steps.", seconds),
        family("zeus_stream_run_saved_ratio",
               "Share of the energy of a step that the limit chosen saves, against the limit found.", saved),
    ]  # fmt: skip


_NOTHING = Snapshot(process="analyzer", version="", wall_ns=0)


def catalogue() -> list[Family]:
    """Return every family that there may be, without the samples of GPUs, runs and hosts."""
    return [
        *gpu_families(_NOTHING),
        *JobMetrics().families(_NOTHING),
        *service_families(_NOTHING),
        up_family({}),
    ]


def _by(label: str, values: Mapping[str, float]) -> tuple[MetricSample, ...]:
    return tuple(MetricSample(((label, name),), value) for name, value in sorted(values.items()))
