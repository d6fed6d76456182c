"""One run for people: each figure with its interval or age, and each sentence, made once. Pure.

live snapshot      --> run_of_live --+
                                     +--> RunView --> terminal, web, HTML, text, metrics
rows of an archive --> run_of_rows --+
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from zeus_stream.protocol.notes import Pod
from zeus_stream.protocol.snapshots import RunNow
from zeus_stream.views.forecast import ForecastView, forecast_of_live, forecast_of_row
from zeus_stream.views.gpu_view import GpuView, with_places
from zeus_stream.views.pipeline_view import PipelineView
from zeus_stream.views.quantity import Quantity, counted, utc, with_bounds
from zeus_stream.views.saving import Saving, saving_of_row, saving_of_search
from zeus_stream.views.search import PhaseView, TrialView, as_stated, measuring_words, phase_of, trials_of
from zeus_stream.views.undecided import why_no_energy, why_undecided
from zeus_stream.views.waste import WastePart, waste_parts

Row = Mapping[str, Any]
ENDED = "the run has ended"
NO_COUNTER, NO_GPU = "a GPU has no energy counter", "the run uses no GPU"
PIPELINE = "no power limit is searched for: the clocks of a pipeline are planned"
STOPPED = ("ended by SIGINT", "ended by SIGTERM", "ended by SIGHUP", "KeyboardInterrupt")
"""A run that ended so was stopped by somebody: it did not fail."""


class RunView(Struct, frozen=True, kw_only=True):
    """A run. What its source cannot say has the reason in its quantity."""

    run: str
    job: str
    hosts: tuple[str, ...]
    gpus: tuple[str, ...]
    ended: bool
    phase: PhaseView
    epoch: int | None
    step: int | None
    step_energy: Quantity
    step_time: Quantity
    power: Quantity
    energy: Quantity
    """So far, with its age; of a run that has ended, the whole."""
    duration: Quantity
    saving: Saving | None
    forecast: ForecastView | None
    pods: tuple[Pod, ...] = ()
    trouble: str = ""
    """Why nothing new is known of an open run: its figures are old. Empty: they are not."""
    undecided: str = ""
    """Why there is no decision. Empty: there is one, or nothing was searched for."""
    trials: Sequence[TrialView] = ()
    best_within_percent: float | None = None
    """By how much the best limit so far may cost more than the best (95 %). None: not known."""
    searched: str | None = None
    """The limit that is measured now, and how far. Empty: none. None: no limit is searched for."""
    waste: tuple[WastePart, ...] = ()
    pipeline: PipelineView | None = None

    @property
    def headline(self) -> str:
        """Return the result of the run in one sentence."""
        if self.saving is not None:
            return sentence(self.saving.headline)
        if self.pipeline is not None:
            return sentence(self.pipeline.headline)
        return sentence(self.undecided or "no power limit was searched for")

    @property
    def progress(self) -> str:
        """Return the phase of the search, how far it is and the best limit so far, with its bound."""
        best = next((f"best so far {trial.level}" for trial in self.trials if trial.mark == "best"), "")
        if best and self.best_within_percent is not None:
            best += f" (off by {max(0.1, self.best_within_percent):.1f} % at most)"
        return ", ".join(filter(None, (self.phase.text, self.phase.more, best, self.trouble)))

    @property
    def state(self) -> str:
        """Return the same for a cell of a table: without the reason for a limit."""
        if self.trouble:
            return f"{self.phase.text}, {self.trouble}"
        return self.progress if self.phase.tone == "accent" else self.phase.text

    @property
    def reason(self) -> str:
        """Return why the limit was chosen, or why none is."""
        return self.undecided or ("" if self.saving is None else self.saving.reason)

    @property
    def gpus_words(self) -> str:
        """Return the number of its GPUs and where they are."""
        hosts = ", ".join(self.hosts) or "-"
        gpus = f"{counted(len(self.gpus), 'GPU')} on {hosts}"
        return ", ".join([gpus, *dict.fromkeys(f"pod {pod.namespace}/{pod.name}" for pod in self.pods)])

    @property
    def mean_power(self) -> Quantity:
        """Return the mean power of a run that has ended."""
        if not self.energy.known or not self.duration.known or self.energy.as_of_ns is not None:
            return Quantity(None, "W")
        return Quantity(self.energy.known / self.duration.known, "W")

    @property
    def energy_words(self) -> str:
        """Return the energy with its interval and the mean power, or why it is missing."""
        if self.energy.known is None:
            return f"missing: {self.energy.absent}" if self.energy.absent else "missing"
        as_of_ns = self.energy.as_of_ns
        so_far = "" if as_of_ns is None else f" so far, until {utc(as_of_ns)} UTC"
        mean = f", {self.mean_power} on average" if self.mean_power.known is not None else ""
        return f"{with_bounds(self.energy)}{so_far}{mean}"


def end_words(ended_how: str) -> str:
    """Return how a run ended, as ``runs`` has it, in words. Empty: it has not ended."""
    return f"stopped ({ended_how})" if ended_how.startswith(STOPPED) else ended_how or "runs"


def sentence(text: str) -> str:
    """Return a text with a capital at its beginning and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def run_of_live(run: RunNow, wall_ns: int, gpus: Sequence[GpuView] = ()) -> RunView:
    """Return a run of a live snapshot. ``wall_ns``: of the snapshot; ``gpus``: those of the run in it."""
    ended = run.ended_wall_ns is not None
    as_of_ns = None if ended else wall_ns
    until_ns = run.ended_wall_ns or wall_ns
    if run.search is not None:
        reason = with_places(run.search.reason, {gpu.gpu: gpu.place for gpu in gpus})
        run = replace(run, search=replace(run.search, reason=reason))
    trouble = "" if ended or not gpus or not all(gpu.trouble for gpu in gpus) else gpus[0].trouble
    saving, forecast = saving_of_search(run.search), forecast_of_live(run.forecast, run.energy_j)
    no_counter = NO_COUNTER if run.gpus else NO_GPU
    if forecast is not None and trouble:  # steps are not seen, so its end does not come nearer
        forecast = replace(forecast, left=Quantity(None, "s", absent=trouble))
    return RunView(
        run=run.run,
        job=run.job,
        hosts=run.hosts,
        gpus=run.gpus,
        pods=run.pods,
        ended=ended,
        phase=phase_of(run),
        epoch=run.epoch,
        step=run.step,
        step_energy=Quantity(run.step_j, "J/step", absent="no step is measured yet"),
        step_time=Quantity(run.step_ms, "ms", absent="no step is measured yet"),
        power=Quantity(
            run.watts,
            "W",
            as_of_ns=as_of_ns,
            absent="the run has ended" if ended else "a GPU gives no reading",
        ),
        energy=Quantity(run.energy_j, "J", as_of_ns=as_of_ns, absent=run.energy_absent or no_counter),
        duration=Quantity(
            None if run.began_wall_ns is None else max(0, until_ns - run.began_wall_ns) / 1e9,
            "s",
            as_of_ns=as_of_ns,
        ),
        trouble=trouble,
        saving=saving,
        forecast=forecast,
        undecided=_unset(run.search.reason)
        if run.search is not None and run.search.phase == "observing"
        else ("" if run.pipeline is None else PIPELINE),
        trials=() if run.search is None else [as_stated(each, saving) for each in trials_of(run.search)],
        best_within_percent=None if run.search is None else run.search.best_excess_p95_percent,
        searched=None if run.search is None else measuring_words(run.search),
    )


class RunRows(Struct, frozen=True, kw_only=True):
    """The rows of an archive about one run."""

    run: str
    totals: Row
    """Of `TOTALS`."""
    whole: Row
    """Of `WHOLE`."""
    so_far: Row | None = None
    """``energy_j``, ``duration_s`` and ``as_of_ns`` of a run that is open: of `SO_FAR`."""
    saving: Row | None = None
    """Of ``saving_of``. None: nothing was decided."""
    trials: Sequence[Row] = ()
    """``power_limit_w`` and ``step_j``."""
    forecast: Row | None = None
    waste: Sequence[Row] = ()
    pipeline: Row | None = None


def run_of_rows(rows: RunRows) -> RunView:
    """Return a run of an archive."""
    totals = rows.totals
    where = totals["places"] or ()
    places = {gpu["gpu"]: gpu["place"] for gpu in where}
    rows = replace(
        rows,
        whole={**rows.whole, "quality": with_places(rows.whole["quality"] or "", places)},
        saving=rows.saving and {**rows.saving, "reason": with_places(rows.saving["reason"] or "", places)},
    )
    ended = totals["closed"] == totals["sessions"]
    saving, energy = saving_of_row(rows.saving, rows.trials), _energy(rows, ended=ended)
    return RunView(
        run=rows.run,
        job=totals["job"],
        hosts=tuple(dict.fromkeys(gpu["host"] for gpu in where)),
        gpus=tuple(places),
        ended=ended,
        phase=_phase(rows, saving, ended=ended),
        epoch=totals["epochs"] or None,
        step=totals["steps"] or None,
        step_energy=Quantity(None, "J/step", absent="only live"),
        step_time=Quantity(None, "ms", absent="only live"),
        power=Quantity(None, "W", absent=ENDED if ended else "only live"),
        energy=energy,
        duration=_duration(rows, ended=ended),
        saving=saving,
        forecast=None if ended else forecast_of_row(rows.forecast, energy.known),
        undecided=_undecided(rows),
        waste=waste_parts(rows.waste, None if ended else energy.known),
        pipeline=None if rows.pipeline is None else PipelineView.of_row(rows.pipeline),
    )


def _energy(rows: RunRows, *, ended: bool) -> Quantity:
    whole_j: float | None = rows.whole["energy_j"]
    if ended or rows.so_far is None:
        low_j, high_j = rows.whole["energy_p2_5_j"], rows.whole["energy_p97_5_j"]
        return Quantity(whole_j, "J", low_j, high_j, absent=why_no_energy(rows.totals, rows.whole))
    so_far_j, as_of_ns = rows.so_far["energy_j"], rows.so_far["as_of_ns"]
    if so_far_j is None:
        absent = "its energy by second is not in the archive yet" if as_of_ns is None else NO_COUNTER
        return Quantity(None, "J", as_of_ns=as_of_ns, absent=absent if rows.totals["gpus"] else NO_GPU)
    earlier_j = whole_j or 0.0 if rows.totals["closed"] else 0.0
    return Quantity(so_far_j + earlier_j, "J", as_of_ns=as_of_ns)


def _duration(rows: RunRows, *, ended: bool) -> Quantity:
    if ended or rows.so_far is None:
        return Quantity(rows.whole["duration_s"], "s", absent="not known")
    return Quantity(rows.so_far["duration_s"], "s", as_of_ns=rows.so_far["as_of_ns"], absent="not known")


def _undecided(rows: RunRows) -> str:
    if rows.saving is not None and rows.saving["power_limit_w"] is None:
        return _unset(rows.saving["reason"])
    return "" if rows.saving is not None else why_undecided(rows.totals) or ""


def _phase(rows: RunRows, saving: Saving | None, *, ended: bool) -> PhaseView:
    if saving is not None:
        verb = "chosen" if saving.applied else "would be chosen"
        phase = PhaseView(f"{verb} {saving.level}", "good" if saving.applied else "warn", saving.reason)
    elif rows.saving is not None:
        phase = PhaseView("only observed", "warn", rows.saving["reason"])
    elif rows.totals["limits"]:
        phase = PhaseView(f"measuring limit {rows.totals['limits'] + 1}", "accent")
    else:
        phase = PhaseView("only measured" if rows.totals["steps"] else "waiting for steps", "dim")
    return PhaseView(f"{phase.text}, ended", "dim", phase.more) if ended else phase


def _unset(reason: str) -> str:
    return f"no power limit: {reason}"
