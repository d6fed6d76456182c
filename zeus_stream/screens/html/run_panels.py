"""Panels of a run: each asks its question and draws the answer. Pure.

A new panel is one function and one entry of `RUN_PANELS`.
"""

from collections.abc import Callable, Iterator, Sequence

from zeus_stream.questions.asking import Asking, Rows
from zeus_stream.questions.power_question import Power, find_power
from zeus_stream.questions.run_questions import PageRun, find_costs, find_run_rows, find_trials
from zeus_stream.quoting import quoted
from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.html.panels import Columns, PagePanel, TablePanel, facts, figures, plain, table
from zeus_stream.screens.html.pipeline_panels import pipeline
from zeus_stream.screens.html.site_panels import waste_panel
from zeus_stream.screens.html.swings_panel import run_swings
from zeus_stream.screens.svg.frontier_chart import frontier_chart, trial_points
from zeus_stream.screens.svg.run_charts import epochs_chart, power_chart
from zeus_stream.views.costs import OWN_USE, cost_words, own_use_parts
from zeus_stream.views.forecast import COSTS as FORECAST_COSTS
from zeus_stream.views.forecast import ForecastView
from zeus_stream.views.quantity import (
    Quantity,
    bounds,
    counted,
    figure,
    joules,
    percent,
    seconds,
    sure_words,
    utc,
    watts,
)
from zeus_stream.views.run_view import RunView, run_of_rows
from zeus_stream.views.saving import Saving
from zeus_stream.views.search import TrialView, trial_table
from zeus_stream.views.waste import FASTER

COMMANDS_SHOWN = 200
EPOCHS_SHOWN = 60
REPORT_POINTS = 800
"""Buckets of power in a report."""
SPANS = 1000
"""Epochs that the chart of power shows as bands."""
EPOCHS = """
SELECT epoch, epoch_us(began_at) * 1000 AS began_wall_ns, duration_s, energy_j, energy_p2_5_j, energy_p97_5_j,
    power_limit_w, quality
FROM epochs WHERE run = {run} ORDER BY epoch
"""
_PARTS = """
SELECT name, count(*) AS times, sum(duration_s) AS duration_s,
    CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j,
    count(*) - count(energy_j) AS unmeasured
FROM named WHERE run = {run} GROUP BY name ORDER BY energy_j DESC NULLS LAST, name LIMIT {limit}
"""
_COMMANDS = """
SELECT (commands.asked_ns - began_ns) / 1e9 AS at_s, gpu, limit_w, outcome, reason, outcome_limit_w
FROM commands, (SELECT min(began_ns) AS began_ns FROM sessions WHERE run = {run})
WHERE commands.run = {run} ORDER BY commands.asked_ns, gpu LIMIT {limit}
"""
_GAPS = (
    "SELECT host, what, reason, sum(count)::BIGINT AS missing FROM gaps GROUP BY ALL ORDER BY missing DESC"
)
_PHASES = """
WITH of_run AS (
    SELECT phase, sum(times)::BIGINT AS times, sum(duration_s) AS duration_s,
        CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j,
        CASE WHEN count(energy_j) = count(*)
            THEN sqrt(sum(((energy_p97_5_j - energy_p2_5_j) / 2) ** 2)) END AS error_j,
        max(quality) FILTER (quality <> 'ok') AS why
    FROM phases WHERE run = {run} AND epoch IS NULL GROUP BY phase
)
SELECT *, 100 * energy_j / sum(energy_j) OVER () AS percent
FROM of_run ORDER BY energy_j DESC NULLS LAST, duration_s DESC LIMIT {limit}
"""
DrawPanel = Callable[[PageRun], Asking[PagePanel | None]]


def result(run: PageRun) -> Asking[PagePanel]:
    """Ask for the result of a run: its energy, the chosen limit and what that saves, money and carbon."""
    rows = yield from find_run_rows(run.run)
    if rows is None:
        return PagePanel(name="result", title="Result", body=Markup(""), text="")
    view = run_of_rows(rows)
    costs = yield from find_costs(run.run, run.price, view.energy.known)
    own_use = yield OWN_USE.format(run=quoted(run.run))
    items = [
        ("energy", str(view.energy), _energy_note(view)),
        ("time", str(view.duration), f"began {run.began_at} UTC{'' if view.ended else ', runs'}"),
        *((row["name"], *cost_words(row)) for row in costs),
    ]
    if view.forecast is not None:
        forecast_costs = yield FORECAST_COSTS.format(run=quoted(run.run))
        items += _forecast(view.forecast, forecast_costs)
    items += [(name, share, f"of a core: {parts}; {of}") for name, share, parts, of in own_use_parts(own_use)]
    if view.saving is not None:
        items = [*saving_items(view.saving), *items]
    body = element("div", element("p", view.headline, class_="headline"), facts(items))
    row = {
        "run": run.run, "job": run.job, **rows.whole,
        **({f"saving_{k}": v for k, v in (rows.saving or {}).items() if k != "stretches"}),
    }  # fmt: skip
    return PagePanel(name="result", title="Result", body=body, text="", rows=[row])


def _forecast(forecast: ForecastView, costs: Rows) -> Iterator[tuple[str, str, str]]:
    """Yield the latest forecast of a run that is open."""
    for name, quantity in (("energy", forecast.energy), ("time", forecast.duration)):
        yield f"forecast: {name}", str(quantity), f"{sure_words(quantity)}; after {forecast.made_after}"
    for cost in costs:
        yield f"forecast: {cost['name']}", *cost_words(cost)


def _energy_note(view: RunView) -> str:
    if view.energy.known is None:
        return view.energy.absent
    if view.energy.as_of_ns is not None:
        return f"so far, until {utc(view.energy.as_of_ns)} UTC"
    mean = (
        f"; {Quantity(view.energy.known / view.duration.known, 'W')} on average"
        if view.duration.known
        else ""
    )
    return sure_words(view.energy) + mean


def saving_items(saving: Saving) -> list[tuple[str, str, str]]:
    what = "limit" if saving.level.endswith("W") else "clock"
    items = [(f"chosen {what}", saving.level, saving.found)]
    if saving.kept:
        return items
    verb = "" if saving.applied else "would be "

    items.append((f"energy {verb}saved", str(saving.energy), sure_words(saving.energy)))
    time = "no measurable change" if saving.time.covers_zero else str(saving.time)
    items.append((f"time {verb}added", time, sure_words(saving.time)))
    if saving.saved.known is not None:
        sure = bounds(saving.saved)
        steps = saving.parts_words or (f"in {saving.steps:,} steps" if saving.steps else "")
        items.append((f"{verb}saved".capitalize() if verb else "saved", str(saving.saved),
                      "; ".join(filter(None, [f"95 %: {sure}" if sure else "", steps]))))  # fmt: skip
    return items


def power(run: PageRun) -> Asking[PagePanel | None]:
    """Ask for the power of all GPUs of a run together, and draw it: for a file that stands alone."""
    if not run.gpus:
        return None
    epochs = yield EPOCHS.format(run=quoted(run.run))
    found = yield from find_power(run.gpus, run.began_wall_ns, run.last_wall_ns, REPORT_POINTS)
    text = power_text(found)
    spans = [
        (begin_s := (row["began_wall_ns"] - found.begin_wall_ns) / 1e9, begin_s + row["duration_s"])
        for row in epochs
        if row["began_wall_ns"] is not None and row["duration_s"] is not None
    ]
    rows = [
        {"begin_s": point.begin_s, "mean_w": point.mean_w, "least_w": point.least_w, "most_w": point.most_w,
         "limit_w": point.limit_w}
        for point in found.points
    ]  # fmt: skip
    chart = power_chart(found.points, spans, text)
    body = element("figure", chart, power_key("every other epoch"), class_="wide")
    title = "Power" if len(run.gpus) == 1 else f"Power of {len(run.gpus)} GPUs together"
    return PagePanel(name="power", title=title, body=body, text=text, rows=rows, charts={"power": chart})


def power_key(bands: str | None) -> Markup:
    """Return the legend of power over time. ``bands``: what is shaded. None: nothing is."""
    kinds = [
        ("mean", "mean, from the energy counter"), ("shade", "least and most of the sensor"),
        ("limit", "power limit"), *([("band", bands)] if bands else []),
    ]  # fmt: skip
    keys = [element("span", text, class_=f"key {kind}") for kind, text in kinds]
    return element("p", keys, class_="legend", aria_hidden="true")


def power_text(power: Power) -> str:
    """Describe power over time in words."""
    means = [point.mean_w for point in power.points if point.mean_w is not None]
    if not means:
        return "There are no readings in this range."
    source = (
        "from the energy counter" if power.counted else "from the power sensor: there is no energy counter"
    )
    limits = [point.limit_w for point in power.points if point.limit_w is not None]
    area = f" The area is {joules(power.energy_j)}." if power.energy_j is not None else ""
    which = "The power limit was" if power.gpus == 1 else f"The limits of all {power.gpus} GPUs were"
    under = f" {which} {_span(limits)}." if limits else ""
    return f"Power was {_span(means)}, means of {power.bucket_s:.3g} s {source}.{area}{under}"


def _span(values: list[float]) -> str:
    low, high = min(values), max(values)
    return watts(high) if round(low) == round(high) else f"{low:,.0f} to {watts(high)}"


def limits(run: PageRun) -> Asking[PagePanel | None]:
    """Ask for the limits that were measured, and draw the frontier."""
    of_run = yield from find_run_rows(run.run)  # as the result asks it
    if of_run is None:
        return None
    rows, trials = yield from find_trials(of_run)
    if not rows:
        return None
    body, chart = draw_trials(trials)
    what = "clock" if trials[0].clock_mhz is not None else "power limit"
    text = (
        f"Energy and time are against the {what} found, with 95 % intervals, as the search knows them:"
        " without what delayed single steps. The cost decides."
    )
    if any(each.old for each in trials):
        text += (
            " Grey points are of earlier rounds: before the workload changed, or before the search went on."
        )
    return PagePanel(
        name="limits", title=f"{what.capitalize()}s measured", body=body, text=text, rows=rows,
        charts={"frontier": chart} if chart else {},
    )  # fmt: skip


def draw_trials(trials: Sequence[TrialView]) -> tuple[Markup, Markup | None]:
    """Return the limits that were measured, table and frontier, and the frontier alone if there is one."""
    points = trial_points(trials)
    what = "clock" if trials[0].clock_mhz is not None else "limit"
    chart = None
    if len({each.name for each in points}) > 1:
        words = f"Each point is a {what}; further left is faster, lower needs less energy."
        chart = frontier_chart(points, ("time of a step, ms", "energy of a step, J"), words)
    heads, cells = trial_table(trials)
    rows = [
        {**dict(zip(heads, row, strict=True)), "old": each.old}
        for each, row in zip(trials, cells, strict=True)
    ]
    columns: Columns = {head: (head, plain if at < 2 else figures) for at, head in enumerate(heads)}
    drawn = table(rows, columns, "Limits measured, by round", heads[4:])
    return (element("div", element("figure", chart), drawn, class_="two") if chart else drawn), chart


def epochs(run: PageRun) -> Asking[PagePanel | None]:
    """Ask for the epochs, and draw the energy of each."""
    rows = yield EPOCHS.format(run=quoted(run.run))
    measured = [row for row in rows if row["energy_j"] is not None]
    if not rows:
        return None
    columns: Columns = {
        "epoch": ("epoch", plain), "duration_s": ("time, s", figure), "energy_j": ("energy, J", figure),
        "energy_p2_5_j": ("2.5 %", figure), "energy_p97_5_j": ("97.5 %", figure),
        "power_limit_w": ("limit", watts), "quality": ("quality", plain),
    }  # fmt: skip
    text = f"Energy of {counted(len(measured), 'epoch')} with 95 % intervals. The axis does not begin at 0."
    if len(measured) < len(rows):
        text += f" Not measured: {counted(len(rows) - len(measured), 'epoch')}; the table says why."
    shown = measured[-EPOCHS_SHOWN:]
    spans = " ".join(
        f"{row['began_wall_ns'] - run.began_wall_ns}:{row['duration_s']:.3f}"
        for row in rows[:SPANS]
        if row["began_wall_ns"] is not None and row["duration_s"] is not None
    )
    drawn = epochs_chart(shown, text) if shown else None
    body = element("figure", drawn, data_spans=spans)
    charts = {"epochs": drawn} if drawn else {}
    return PagePanel(
        name="epochs",
        title="Energy per epoch",
        body=body,
        text=text,
        rows=rows,
        columns=columns,
        half=True,
        charts=charts,
    )


_PARTS_PANEL = TablePanel(
    name="parts", title="Parts of the training", sql=_PARTS, bars=("name", "part"),
    text="Energy of the windows that the training script named. A window may lie within another.",
    columns={"times": ("times", plain), "duration_s": ("time", seconds)},
)  # fmt: skip
_PHASES_PANEL = TablePanel(
    name="phases", title="Phases of the steps", sql=_PHASES, bars=("phase", "phase"),
    text="Energy of the phases of all steps, by least squares over many refreshes of the counter (95 %).",
    columns={
        "error_j": ("give or take", joules), "percent": ("share", percent), "duration_s": ("time", seconds),
        "times": ("times", plain), "why": ("", plain),
    },
)  # fmt: skip
_GAPS_PANEL = TablePanel(
    name="gaps", title="Missing data", sql=_GAPS,
    text="Data that the archive is known to lack, over its whole time.",
    columns={
        "host": ("host", plain), "what": ("what", plain), "missing": ("missing", plain),
        "reason": ("why", plain),
    },
)  # fmt: skip


def _asks(panel: TablePanel) -> DrawPanel:
    """Return the question of a panel about one run."""
    return lambda run: panel.ask(run=quoted(run.run))


def waste(run: PageRun) -> Asking[PagePanel | None]:
    """Ask what of the energy of the run did not go into its steps, and what regains it."""
    of_run = yield from find_run_rows(run.run)  # as the result asks it
    if of_run is None:
        return None
    parts = run_of_rows(of_run).waste
    prices = yield from find_costs(run.run, run.price)
    more = FASTER if any(part.duration.absent == FASTER for part in parts) else ""
    return waste_panel("waste", parts, prices, more)


def commands(run: PageRun) -> Asking[PagePanel | None]:
    """Ask for the commands that the run gave to GPUs."""
    rows = yield _COMMANDS.format(run=quoted(run.run), limit=COMMANDS_SHOWN)
    if not rows:
        return None
    names = {gpu.gpu: gpu.title for gpu in run.gpus}
    columns: Columns = {
        "at_s": ("after", seconds), "gpu": ("GPU", lambda gpu: names.get(gpu) or str(gpu)),
        "limit_w": ("limit asked", _release),
        "outcome": ("outcome", lambda value: value or "under way"), "outcome_limit_w": ("limit then", watts),
        "reason": ("reason", plain),
    }  # fmt: skip
    text = f"{counted(len(rows), 'command')} to GPUs, in the order of time."
    return PagePanel(
        name="commands", title="Commands", body=Markup(""), text=text, rows=rows, columns=columns
    )


def _release(limit_w: float | None) -> str:
    return "release" if limit_w is None else watts(limit_w)


RUN_PANELS: tuple[DrawPanel, ...] = (
    limits, pipeline, epochs, waste, _asks(_PHASES_PANEL), _asks(_PARTS_PANEL), run_swings, commands,
    _asks(_GAPS_PANEL),
)  # fmt: skip
"""Panels of a run below its power, in this order."""
