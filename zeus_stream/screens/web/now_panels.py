"""The live state as HTML: totals, GPUs as tiles, open runs, what is missing. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from zeus_stream.protocol.snapshots import GapNow, Snapshot
from zeus_stream.questions.asking import Rows
from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.html.panels import Columns, as_is, facts, plain, quantity, table
from zeus_stream.screens.html.run_panels import draw_trials, saving_items
from zeus_stream.screens.html.site_panels import run_link
from zeus_stream.screens.svg.bars import bar, strip
from zeus_stream.views.costs import cost_words, costs_now
from zeus_stream.views.gaps import cure_of
from zeus_stream.views.gpu_view import GpuStrip, GpuView, strips_of
from zeus_stream.views.quantity import Quantity, bounds, whole
from zeus_stream.views.run_view import RunView, sentence
from zeus_stream.views.site_view import SiteView, site_of_live

MINOR = ("job", "epoch", "step", "step_j", "step_ms", "power", "in_all", "left")
"""Columns of runs that a phone leaves out."""
TILES = 8
"""More GPUs than so many are strips, a line a run."""


def draw_now(now: Snapshot) -> Markup:
    """Return the live part of the overview."""
    site = site_of_live(now)
    parts = [element("section", _totals(site), class_="panel", aria_label="Site")]
    parts.append(_wrong(site.troubles))
    if site.runs:
        parts.append(element("section", element("h2", "Runs now"), _runs(site.runs), class_="panel"))
    if site.gpus:
        tiles = (
            _tiles(site.gpus)
            if len(site.gpus) <= TILES
            else element("div", map(_strip, strips_of(site.gpus)))
        )
        left = element("p", f"{site.left_out} more are in the totals only.", class_="caption")
        more = left if site.left_out else None
        parts.append(element("section", element("h2", "GPUs"), tiles, more, class_="panel"))
    if site.gaps:
        parts.append(element("section", element("h2", "Missing data"), _gaps(site.gaps), class_="panel"))
    return Markup("".join(parts))


def draw_job(now: Snapshot, job: str) -> Markup:
    """Return the live part of the page of a job: its open runs, with the phase of their search."""
    runs = [run for run in site_of_live(now).runs if run.job == job]
    body = _runs(runs, "../") if runs else element("p", "No run of this job is open.", class_="under")
    return element("section", element("h2", "Runs now"), body, class_="panel")


def draw_run(now: Snapshot, name: str, signals: Rows = ()) -> Markup:
    """Return the live part of a run's page, empty if there is none. ``signals``: rows of `SIGNALS_NOW`."""
    site = site_of_live(now)
    run = next((run for run in site.runs if run.run == name), None)
    if run is None:
        return Markup("")
    items: list[tuple[str, str | Markup, str | Markup]] = [
        ("power", str(run.power), run.gpus_words),
        (
            "energy" if run.ended else "energy so far",
            str(run.energy),
            run.energy.absent if run.energy.known is None else "",
        ),
        ("energy of a step", str(run.step_energy), f"step {run.step:,}" if run.step is not None else ""),
        ("time of a step", str(run.step_time), "" if run.epoch is None else f"epoch {run.epoch:,}"),
    ]
    if run.forecast is not None:
        in_all = run.forecast.energy
        sure = f"95 %: {words}" if (words := bounds(in_all)) else ""
        items.append(("energy in all", str(in_all), ", ".join(filter(None, [sure, run.forecast.left_words]))))
    items += [(f"{row['name']} so far", *cost_words(row)) for row in costs_now(run.energy.known, signals)]
    if run.saving is not None:
        items = [*saving_items(run.saving), *items]
    # Below, the limits of a search that is over are whole.
    search = draw_trials(run.trials)[0] if run.searched and run.trials else None
    decided = (run.saving or run.undecided) and not run.trouble
    headline = run.headline if decided else sentence(run.progress)
    parts = [element("p", headline, class_="headline"), facts(items), search]
    shown = element(
        "section", element("h2", "Now"), parts, class_="panel old" if run.trouble else "panel",
        data_wall_ns=str(now.wall_ns), data_ended=run.ended,
    )  # fmt: skip
    hosts = () if run.ended else tuple(f"{host}:" for host in run.hosts)
    return Markup(_wrong([trouble for trouble in site.troubles if trouble.startswith(hosts)]) + shown)


def _wrong(troubles: Sequence[str]) -> Markup:
    """Return what is wrong, each with its cure; empty: nothing."""
    if not troubles:
        return Markup("")
    listed = element("ul", [element("li", trouble) for trouble in troubles])
    return element("section", element("h2", "What is wrong"), listed, class_="panel wrong")


def _totals(site: SiteView) -> Markup:
    silent = (
        f"{site.gpus_silent:,} of {site.gpus_known:,} without reading" if site.gpus_silent else "all GPUs"
    )
    lag = "" if site.lag.known is None else f"{site.lag} behind"
    saved = str(site.saved_share) if site.saved_share.known is not None else site.saved_share.absent
    return facts([
        ("power now", str(site.power), silent),
        ("energy", str(site.energy), site.span),
        ("saved", str(site.saved), saved),
        ("GPUs", f"{site.gpus_known:,}", f"{site.hosts_connected} of {site.hosts} hosts connected"),
        ("open runs", f"{site.open_runs:,}", lag),
        ("missing items", f"{site.gap_count:,}", "since the analyzer started"),
    ])  # fmt: skip


def _strip(strip_of: GpuStrip) -> Markup:
    """Return the GPUs of a run as a line of cells, coloured by their share of the limit; open: as tiles."""
    odd = set(strip_of.odd)
    cells = [
        (
            gpu.share,
            f"{gpu.place}: {gpu.trouble or f'{gpu.power} of {gpu.limit}'}",
            gpu.index if gpu in odd else "",
        )
        for gpu in strip_of.gpus
    ]
    name = strip_of.run or "no run"
    head = element(
        "summary", element("span", name, class_="name"), strip(cells, f"GPUs of {name}: {strip_of.words}"),
        element("span", strip_of.words),
    )  # fmt: skip
    return element("details", head, _tiles(strip_of.gpus), class_="strip")


def _tiles(gpus: Sequence[GpuView]) -> Markup:
    return element("div", map(_tile, gpus), class_="tiles")


def _tile(gpu: GpuView) -> Markup:
    names = [element("span", f"{gpu.host} {gpu.index}"), element("span", gpu.run or "no run")]
    of = f"of {gpu.limit}" if gpu.limit.known is not None else "limit not known"
    notes = [gpu.trouble] if gpu.trouble else []
    notes += [f"found {gpu.found}"] if gpu.lowered else []
    notes += [f"{whole(gpu.temperature)} °C"] if gpu.temperature.known is not None else []
    notes += [f"{whole(gpu.utilization)} % busy"] if gpu.utilization.known is not None else []
    notes += [f"{gpu.energy}"] if gpu.energy.known is not None else []
    return element(
        "a", element("div", names, class_="top"),
        element("div", f"{gpu.power} ", element("small", of), class_="value"),
        bar(gpu.share) if gpu.share is not None else None, element("div", ", ".join(notes), class_="note"),
        class_="tile old" if gpu.trouble else "tile", href=f"gpus/{quote(gpu.gpu, safe='')}",
    )  # fmt: skip


def _runs(runs: Sequence[RunView], up: str = "") -> Markup:
    rows: list[Mapping[str, Any]] = [
        {"run": run_link(run.run, up), "job": run.job, "phase": run.state, "epoch": run.epoch,
         "step": run.step, "step_j": run.step_energy, "step_ms": run.step_time, "power": run.power,
         "energy": run.energy, "in_all": run.forecast.energy if run.forecast else Quantity(None, "J"),
         "left": run.forecast.left if run.forecast else Quantity(None, "s"),
         "saved": run.saving.energy if run.saving else Quantity(None, "%"), "old": run.trouble}
        for run in runs
    ]  # fmt: skip
    columns: Columns = {
        "run": ("run", as_is), "job": ("job", plain), "phase": ("power limit", plain),
        "epoch": ("epoch", plain), "step": ("step", plain), "step_j": ("energy a step", quantity),
        "step_ms": ("time a step", quantity), "power": ("power", quantity), "energy": ("energy", quantity),
        "in_all": ("in all", quantity), "left": ("ends in", quantity), "saved": ("saved", quantity),
    }  # fmt: skip
    return table(rows, columns, "Runs now", MINOR)


def _gaps(gaps: Sequence[GapNow]) -> Markup:
    rows = [
        {"host": gap.host, "what": gap.what, "count": gap.count, "reason": gap.reason, "cure": cure_of(gap)}
        for gap in gaps
    ]
    columns: Columns = {
        "host": ("host", plain), "what": ("what", plain), "count": ("missing", plain),
        "reason": ("why", plain), "cure": ("what to do", plain),
    }  # fmt: skip
    return table(rows, columns, "Missing data")
