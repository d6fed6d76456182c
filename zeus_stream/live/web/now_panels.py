"""What is live as HTML: GPUs as tiles, open runs, what is missing. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from zeus_stream.reports.html.elements import Markup, element
from zeus_stream.reports.html.panels import ABSENT, facts, figure, joules, plain, table, watts
from zeus_stream.reports.html.questions import Row
from zeus_stream.reports.html.site_panels import run_link
from zeus_stream.reports.svg.run_charts import bar

Now = Mapping[str, Sequence[Row]]


def draw_now(now: Now) -> Markup:
    """Return the live part of the overview."""
    gpus, runs = now["gpus"], now["runs"]
    known = [row["power_w"] for row in gpus if row["power_w"] is not None]
    total = watts(sum(known)) if known else ABSENT
    silent = len(gpus) - len(known)
    hosts = len({row["host"] for row in gpus})
    head = facts([
        ("power now", total, f"{silent} GPUs give no reading" if silent else "all GPUs"),
        ("GPUs", str(len(gpus)), f"{hosts} host{'' if hosts == 1 else 's'}"),
        ("open runs", str(len(runs)), ""),
        ("missing items", f"{sum(row['count'] for row in now['gaps']):,}", "in the whole archive"),
    ])  # fmt: skip
    tiles = element("div", [_tile(row) for row in gpus], class_="tiles")
    parts = [element("section", head, class_="panel", aria_label="Site")]
    if gpus:
        parts.append(element("section", element("h2", "GPUs"), tiles, class_="panel"))
    if runs:
        parts.append(element("section", element("h2", "Open runs"), _runs(runs), class_="panel"))
    return Markup("".join(parts))


def _tile(row: Row) -> Markup:
    power_w, limit_w = row["power_w"], row["limit_w"]
    share = power_w / limit_w if power_w is not None and limit_w else None
    of = f"of {watts(limit_w)}" if limit_w is not None else "limit not known"
    if limit_w is not None and row["found_limit_w"] is not None and limit_w < row["found_limit_w"] - 0.5:
        of += f", found {watts(row['found_limit_w'])}"
    notes = [row["gone"] or ""]
    if row["step_j"] is not None:
        notes.append(f"{figure(row['step_j'])} J a step")
    if row["temperature_c"] is not None:
        notes.append(f"{row['temperature_c']} °C")
    if row["utilization_percent"] is not None:
        notes.append(f"{row['utilization_percent']} % busy")
    names = [element("span", f"{row['host']} {row['index']}"), element("span", row["run"] or "no run")]
    return element(
        "a", element("div", names, class_="top"),
        element("div", watts(power_w), " ", element("small", of), class_="value"),
        bar(share) if share is not None else None,
        element("div", ", ".join(filter(None, notes)), class_="note"),
        class_="tile", href=f"gpus/{quote(row['gpu'], safe='')}",
    )  # fmt: skip


def _phase(row: Row) -> str:
    if row["chosen_w"] is not None:
        return f"chosen {watts(row['chosen_w'])}" + ("" if row["applied"] else ", not set")
    if row["reason"]:
        return str(row["reason"])
    return f"trial {row['trials'] + 1}" if row["trials"] else "measuring" if row["steps"] else "starting"


def _runs(runs: Sequence[Row]) -> Markup:
    drawn: list[Mapping[str, Any]] = [
        {**row, "link": run_link(row["run"]), "phase": _phase(row)} for row in runs
    ]
    columns = {
        "link": ("run", lambda value: value), "job": ("job", plain), "phase": ("power limit", plain),
        "steps": ("steps", plain), "steps_per_s": ("steps/s", figure), "energy_j": ("energy", joules),
        "saved_j": ("saved", joules),
    }  # fmt: skip
    return table(drawn, columns, "Open runs")
