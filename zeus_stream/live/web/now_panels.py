"""The live state as HTML: totals, GPUs as tiles, open runs, what is missing. Pure."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from zeus_stream.protocol.snapshots import ForecastNow, GpuNow, RunNow, SearchNow, Snapshot
from zeus_stream.reports.forecast import time_words
from zeus_stream.reports.html.elements import Markup, element
from zeus_stream.reports.html.panels import Columns, facts, percent, plain, table, watts
from zeus_stream.reports.html.quantities import ABSENT, figure, joules, seconds
from zeus_stream.reports.html.site_panels import run_link
from zeus_stream.reports.svg.bars import bar

OLD_MS = 3_000
"""Age of a reading that is named."""


def draw_now(now: Snapshot) -> Markup:
    """Return the live part of the overview."""
    parts = [element("section", _totals(now), class_="panel", aria_label="Site")]
    troubles = [f"{host.host}: {host.trouble or 'silent'}" for host in now.hosts if host.state != "connected"]
    if troubles:
        listed = element("ul", [element("li", trouble) for trouble in troubles])
        parts.append(element("section", element("h2", "Silent hosts"), listed, class_="panel"))
    if now.runs:
        parts.append(element("section", element("h2", "Runs now"), _runs(now.runs), class_="panel"))
    if now.gpus:
        tiles = element("div", [_tile(each) for each in now.gpus], class_="tiles")
        left = f"{now.gpus_left_out} more are in the totals only." if now.gpus_left_out else None
        more = element("p", left, class_="caption") if left else None
        parts.append(element("section", element("h2", "GPUs"), tiles, more, class_="panel"))
    if now.gaps:
        parts.append(element("section", element("h2", "Missing data"), _gaps(now), class_="panel"))
    return Markup("".join(parts))


def draw_job(now: Snapshot, job: str) -> Markup:
    """Return the live part of the page of a job: its open runs, with the phase of their search."""
    runs = tuple(run for run in now.runs if run.job == job)
    body = _runs(runs, "../") if runs else element("p", "No run of this job is open.", class_="under")
    return element("section", element("h2", "Runs now"), body, class_="panel")


def _totals(now: Snapshot) -> Markup:
    totals = now.totals
    silent = totals.gpus - totals.gpus_there
    there = f"{totals.hosts_connected} of {totals.hosts} hosts connected"
    hour_j = None if totals.hour_mj is None else totals.hour_mj / 1000
    span = f"in the last {seconds(totals.hour_s)}" if totals.hour_s < 3600 else "in the last hour"
    saved = percent(totals.saved_percent) if totals.saved_percent is not None else "no limit was set"
    lag = "" if now.lag_ms is None else f"{now.lag_ms / 1000:.1f} s behind"
    return facts([
        ("power now", _mw(totals.power_mw), f"{silent} GPUs without reading" if silent else "all GPUs"),
        ("energy", joules(hour_j), span),
        ("saved", joules(totals.saved_j), saved),
        ("GPUs", f"{totals.gpus:,}", there),
        ("open runs", f"{totals.runs:,}", lag),
        ("missing items", f"{totals.gaps:,}", "since the analyzer started"),
    ])  # fmt: skip


def _mw(power_mw: int | None) -> str:
    return watts(None if power_mw is None else power_mw / 1000)


def _tile(now: GpuNow) -> Markup:
    name = f"{now.host} {'' if now.index is None else now.index}".strip()
    names = [element("span", name), element("span", now.run or "no run")]
    notes = [now.why or now.state] if now.state != "there" else []
    if now.age_ms is not None and now.age_ms > OLD_MS:
        notes.append(f"no reading for {now.age_ms / 1000:.0f} s")
    if now.limit_mw is not None and now.found_mw is not None and now.limit_mw < now.found_mw - 500:
        notes.append(f"found {_mw(now.found_mw)}")
    if now.temperature_c is not None:
        notes.append(f"{now.temperature_c} °C")
    if now.utilization_pct is not None:
        notes.append(f"{now.utilization_pct} % busy")
    if now.energy_mj is not None:
        notes.append(joules(now.energy_mj / 1000))
    known = now.power_mw is not None and now.limit_mw
    share = now.power_mw / now.limit_mw if known and now.power_mw and now.limit_mw else 0.0
    return element(
        "a", element("div", names, class_="top"),
        element("div", _mw(now.power_mw), " ", element("small", _of(now)), class_="value"),
        bar(share) if known else None, element("div", ", ".join(notes), class_="note"),
        class_="tile" if now.state == "there" else "tile old", href=f"gpus/{quote(now.gpu, safe='')}",
    )  # fmt: skip


def _of(now: GpuNow) -> str:
    if now.limit_mw is None:
        return "limit not known"
    return f"of {_mw(now.limit_mw)}"


def phase(search: SearchNow | None) -> str:
    """Describe the state of a search in a few words."""
    if search is None:
        return "no search"
    limit = _mw(search.limit_mw) if search.clock_mhz is None else f"{search.clock_mhz} MHz"
    match search.phase:
        case "measuring":
            planned = f" of {search.trials_planned}" if search.trials_planned else ""
            steps = f", step {search.steps_done} of {search.steps_wanted}" if search.steps_wanted else ""
            return f"measuring {limit}, trial {search.trial}{planned}{steps}"
        case "chosen" | "recalled" | "within a budget":
            return f"{search.phase} {limit}"
        case "observing":
            return f"observing: {search.reason}" if search.reason else "observing"
        case "waiting":
            return "waiting"


def _runs(runs: tuple[RunNow, ...], up: str = "") -> Markup:
    rows: list[Mapping[str, Any]] = [
        {"run": run_link(each.run, up), "job": each.job, "phase": phase(each.search), "epoch": each.epoch,
         "step": each.step, "step_j": each.step_j, "step_ms": each.step_ms, "watts": each.watts,
         "energy_j": each.energy_j,
         "forecast": _forecast(each.forecast),
         "saved": None if each.search is None else each.search.saved_percent,
         "state": "" if each.ended_wall_ns is None else "ended"}
        for each in runs
    ]  # fmt: skip
    columns: Columns = {
        "run": ("run", lambda value: value), "job": ("job", plain), "phase": ("power limit", plain),
        "epoch": ("epoch", plain), "step": ("step", plain), "step_j": ("J a step", figure),
        "step_ms": ("ms a step", figure), "watts": ("power", watts), "energy_j": ("energy", joules),
        "forecast": ("forecast", plain), "saved": ("saved", percent), "state": ("", plain),
    }  # fmt: skip
    return table(rows, columns, "Runs now")


def _forecast(forecast: ForecastNow | None) -> str:
    if forecast is None:
        return ABSENT
    energy = ABSENT if forecast.energy_j is None else f"{joules(forecast.energy_j)} in all"
    return f"{energy}, {time_words(forecast.left_s, forecast.left_low_s, forecast.left_high_s)}"


def _gaps(now: Snapshot) -> Markup:
    rows = [
        {"host": gap.host, "what": gap.what, "count": gap.count, "reason": gap.reason} for gap in now.gaps
    ]
    columns: Columns = {
        "host": ("host", plain), "what": ("what", plain), "count": ("missing", plain),
        "reason": ("why", plain),
    }  # fmt: skip
    return table(rows, columns, "Missing data")
