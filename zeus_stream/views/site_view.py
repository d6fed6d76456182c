"""A site for people: its totals, GPUs, runs and services, and what is missing. Pure."""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, Literal

from msgspec import Struct

from zeus_stream.protocol.snapshots import GapNow, Snapshot
from zeus_stream.views.gaps import host_trouble
from zeus_stream.views.gpu_view import GpuView, ProcessView, gpu_of_live, processes_of_live, shared_words
from zeus_stream.views.quantity import Quantity, counted, figure, seconds, thousandth
from zeus_stream.views.run_view import RunView, run_of_live
from zeus_stream.views.saving import Saving

LATE_MS = 2_000
"""An analyzer that is so far behind says so."""
HOUR_S = 3540


class SiteView(Struct, frozen=True, kw_only=True):
    """A site, or one host where only a collector answers."""

    process: Literal["analyzer", "collector"]
    as_of_ns: int
    power: Quantity
    energy: Quantity
    span: str
    """The time that the energy is of."""
    saved: Quantity
    """Joules, of the open runs and of those that ended since the analyzer started."""
    saved_share: Quantity
    hosts: int
    hosts_connected: int
    gpus_known: int
    gpus_silent: int
    open_runs: int
    lag: Quantity
    late: bool
    gap_count: int
    gaps: tuple[GapNow, ...]
    gpus: tuple[GpuView, ...]
    processes: tuple[ProcessView, ...]
    processes_age: Quantity
    """Of the oldest look at the memory of the processes."""
    runs: tuple[RunView, ...]
    troubles: tuple[str, ...]
    """Of hosts and GPUs, each a sentence with the cure."""
    left_out: str
    """Rows that the snapshot has no room for. Empty: none."""


def site_of_live(now: Snapshot) -> SiteView:
    """Return the site that a live snapshot is of."""
    totals, as_of_ns = now.totals, now.wall_ns
    silent = totals.gpus - totals.gpus_there
    gpus = tuple(gpu_of_live(gpu, as_of_ns) for gpu in now.gpus)
    known = {gpu.gpu: gpu for gpu in gpus}
    searching = any(run.search is not None and run.search.phase == "measuring" for run in now.runs)
    cut_off = totals.hosts > 0 and not totals.hosts_connected
    unsaved = "no limit is chosen yet" if searching else "no limit was chosen"
    return SiteView(
        process=now.process,
        as_of_ns=as_of_ns,
        power=Quantity(
            thousandth(totals.power_mw), "W", as_of_ns=as_of_ns, absent="no GPU gives readings"
        ),
        energy=Quantity(
            thousandth(totals.hour_mj), "J", as_of_ns=as_of_ns, absent="no energy counter was read yet"
        ),
        span=f"in the last {'hour' if totals.hour_s >= HOUR_S else seconds(max(totals.hour_s, 1), 2)}",
        saved=Quantity(totals.saved_j, "J", as_of_ns=as_of_ns, absent=unsaved),
        saved_share=Quantity(totals.saved_percent, "%", as_of_ns=as_of_ns, absent=unsaved),
        hosts=totals.hosts,
        hosts_connected=totals.hosts_connected,
        gpus_known=totals.gpus,
        gpus_silent=silent,
        open_runs=totals.runs,
        lag=Quantity(None if cut_off else thousandth(now.lag_ms), "s", absent="no data arrives"),
        late=now.lag_ms is not None and now.lag_ms >= LATE_MS,
        gap_count=totals.gaps,
        gaps=now.gaps,
        gpus=gpus,
        processes=tuple(each for gpu in now.gpus for each in processes_of_live(gpu)),
        processes_age=Quantity(
            max((gpu.use_age_ms / 1000 for gpu in now.gpus if gpu.processes and gpu.use_age_ms is not None),
                default=None),
            "s",
        ),
        runs=tuple(
            run_of_live(run, as_of_ns, [known[gpu] for gpu in run.gpus if gpu in known]) for run in now.runs
        ),
        troubles=(*filter(None, map(host_trouble, now.hosts)), *filter(None, map(shared_words, now.gpus))),
        left_out=_left_out(now),
    )  # fmt: skip


def _left_out(now: Snapshot) -> str:
    left_out = ((now.gpus_left_out, "GPU"), (now.runs_left_out, "run"))
    return " and ".join(counted(count, what) for count, what in left_out if count)


class ServiceView(Struct, frozen=True, kw_only=True):
    """A collector or an analyzer, or a collector that the analyzer follows."""

    name: str
    state: str
    behind: Quantity


def services_of(answers: Mapping[str, Snapshot], silent: Iterable[str]) -> tuple[ServiceView, ...]:
    """Return a line for each service, with its live answer or silent."""
    lines = []
    for process, snapshot in answers.items():
        if process == "collector":
            state = ", ".join(filter(None, ["answers", *(host.trouble for host in snapshot.hosts)]))
            lines.append(ServiceView(name=process, state=state, behind=Quantity(None, "s")))
            continue
        behind = Quantity(thousandth(snapshot.lag_ms), "s")
        lines.append(ServiceView(name=process, state="answers", behind=behind))
        lines += [
            ServiceView(
                name=f"follows {host.host}",
                state=host_trouble(host).removeprefix(f"{host.host}: ") or "connected",
                behind=Quantity(None, "s"),
            )
            for host in snapshot.hosts
        ]
    nothing = Quantity(None, "s")
    return (*lines, *(ServiceView(name=each, state="does not answer", behind=nothing) for each in silent))


class RunPower(Struct, frozen=True, kw_only=True):
    """The power of one run over the time of a `PowerView`."""

    run: str
    """Empty: GPUs that no run had, or the runs that have no layer of their own."""
    job: str
    watts: tuple[float, ...]
    """By bucket; 0 where it did not run."""
    energy: Quantity
    """In this time."""
    power: Quantity
    """The mean while it ran."""
    saving: Saving | None


class PowerView(Struct, frozen=True, kw_only=True):
    """The power of a site over time: a layer a run."""

    begin_ns: int
    """Of the first bucket, UTC."""
    bucket_s: float
    layers: tuple[RunPower, ...]
    """The run that took the most energy first; what no run had is the last."""
    limit_w: tuple[float | None, ...]
    """The sum of the limits of all GPUs, by bucket. None: one is not known."""
    span_s: float
    """To its end, which may be later than the last bucket: no reading came since."""
    saved_w: tuple[float, ...]
    """Power that the steps would have drawn more at the limits found, by bucket: in all, the joules saved."""

    @property
    def saved(self) -> Quantity:
        """Return the joules saved in this time."""
        return Quantity(sum(self.saved_w) * self.bucket_s, "J")


HELD_S = 10
"""A GPU that rests is read every 5 s, and keeps its limit. That of one not read for longer is not known."""


def power_of_rows(
    rows: Iterable[Mapping[str, Any]], runs: Iterable[Mapping[str, Any]], begin_ns: int, bucket_s: float,
    buckets: int, savings: Mapping[str, Saving], saved_j: Mapping[int, float],
) -> PowerView:  # fmt: skip
    """Return the power of all GPUs by run.

    ``rows``: energy by GPU, bucket and run, with its own time, the time covered, and the limit of the GPU in
    that bucket.
    ``runs``: those with layers, in order. ``begin_ns``: of the first bucket, UTC. ``saved_j``: by bucket.
    """
    jobs = {run["run"]: run["job"] for run in runs}
    watts = {name: [0.0] * buckets for name in (*jobs, "")}
    limit_w: list[float | None] = [0.0] * buckets
    last_w: dict[str, tuple[float, float | None]] = {}
    added: set[tuple[str, int]] = set()
    lasted_s: dict[str, dict[str, float]] = {name: {} for name in watts}
    for row in sorted(rows, key=itemgetter("bucket")):
        at, gpu = row["bucket"], row["gpu"]
        if not 0 <= at < buckets or not row["covered_s"] or row["energy_j"] is None:
            continue
        watts[row["run"]][at] += row["energy_j"] / row["covered_s"]
        of_run = lasted_s[row["run"]]
        of_run[gpu] = of_run.get(gpu, 0.0) + row["own_s"]
        if (gpu, at) in added:  # two runs were on it
            continue
        added.add((gpu, at))
        read, known_w = last_w.get(gpu, (at, None)) if row["limit_w"] is None else (at, row["limit_w"])
        if (at - read) * bucket_s > HELD_S + bucket_s:
            known_w = None
        last_w[gpu] = read, known_w
        before = limit_w[at]
        limit_w[at] = None if before is None or known_w is None else before + known_w
    layers = [
        RunPower(
            run=name, job=jobs.get(name, ""), watts=tuple(each), energy=Quantity(sum(each) * bucket_s, "J"),
            power=Quantity(sum(each) * bucket_s / max(lasted_s[name].values()), "W"),
            saving=savings.get(name),
        )
        for name, each in watts.items()
        if any(each)
    ]  # fmt: skip
    layers.sort(key=lambda layer: (not layer.run, -(layer.energy.known or 0.0)))
    return PowerView(
        begin_ns=begin_ns, bucket_s=bucket_s, layers=tuple(layers),
        limit_w=tuple(value or None for value in limit_w), span_s=buckets * bucket_s,
        saved_w=tuple(saved_j.get(at, 0.0) / bucket_s for at in range(buckets)),
    )  # fmt: skip


# ---- swings of power -------------------------------------------------------------------------------------

SWINGS = "FROM power_swings_of({run})"
LEAST_SWING = 0.01
"""Share of the mean power, below which nothing swings."""


class SwingsView(Struct, frozen=True, kw_only=True):
    """The swings of the power of some GPUs together."""

    points: tuple[tuple[float, float], ...]
    """Frequency, Hz, and amplitude, W, ascending."""
    headline: str


def swings_of_rows(rows: Iterable[Mapping[str, Any]]) -> SwingsView | None:
    """Return the swings of power that rows of `SWINGS` are about. None: there are too few readings."""
    listed = list(rows)
    if not listed:
        return None
    most = max(listed, key=itemgetter("amplitude_w"))
    frequency, amplitude = figure(most["frequency_hz"], digits=2), Quantity(most["amplitude_w"], "W")
    share = most["amplitude_w"] / max(most["mean_w"], 1e-9)
    what = (
        f"It swings most at {frequency} Hz, by {amplitude} to each side: {100 * share:.1f} % of its mean."
        if share >= LEAST_SWING
        else f"No swing is above {100 * LEAST_SWING:g} % of its mean."
    )
    seen = f"Readings every {seconds(most['period_s'])} show up to {listed[-1]['frequency_hz']:g} Hz."
    return SwingsView(
        points=tuple((row["frequency_hz"], row["amplitude_w"]) for row in listed),
        headline=f"{what} {seen}",
    )
