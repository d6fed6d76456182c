"""A report as one file: panels, style, data and provenance, without scripts. Pure.

It holds no clock: the same archive gives the same bytes.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from zeus_stream.questions.asking import Asking, answered
from zeus_stream.questions.run_questions import PageRun, find_run
from zeus_stream.quoting import quoted
from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.html.panels import Columns, PagePanel, plain, section, table
from zeus_stream.screens.html.run_panels import RUN_PANELS, DrawPanel, power, result
from zeus_stream.views.quantity import counted
from zeus_stream.views.run_view import end_words

if TYPE_CHECKING:
    import pyarrow as pa

Answer = Callable[[str], "pa.Table"]
_SETTINGS = """
SELECT name, value FROM settings
WHERE start IN (SELECT max(start) FROM sessions WHERE run = {run}) ORDER BY name
"""
_SOURCES = """
SELECT (SELECT any_value(archive_id) FROM meta) AS archive_id,
    (SELECT string_agg(DISTINCT estimator, ', ' ORDER BY estimator) FROM windows WHERE run = {run})
        AS estimators,
    (SELECT string_agg(DISTINCT selector, ', ' ORDER BY selector) FROM decisions WHERE run = {run})
        AS selector
"""
_LITERAL = re.compile(r"(--[\w-]+): (#[0-9a-f]+)")
_NOT_SAID = frozenset({"dir", "archive", "follow", "listen", "host", "group", "trust_uid"})
"""Settings that name places and people: a report is mailed."""


class Report(Struct, frozen=True, kw_only=True):
    """A report: its page, and its drawings by name."""

    page: str
    charts: dict[str, str]


def style() -> str:
    """Return the style sheet of the pages."""
    return files("zeus_stream.screens.html").joinpath("style.css").read_text(encoding="utf-8")


def chart_style() -> str:
    """Return the rules for drawings, with light colours in place of variables: for SVG files."""
    text = style()
    colours = dict(reversed(_LITERAL.findall(text)))
    rules = [line for line in text.splitlines() if line.startswith("svg ")]
    return re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], "\n".join(rules))


def standalone(chart: str) -> str:
    """Return a drawing as a file of its own, on white."""
    begin, _, rest = chart.partition(">")
    back = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f"{begin}><style>{chart_style()}</style>{back}{rest}\n"


def run_report(
    answer: Answer,
    name: str,
    version: str,
    defaults: dict[str, str],
    price: tuple[float, str] | None = None,
) -> Report | None:
    """Return the report of a run, or None if the archive does not have it.

    ``defaults``: values of settings that are not worth a line. ``price``: amount and currency of a kilowatt
    hour, in place of the signals.
    """
    answer = cache(answer)  # panels share questions
    found = answered(find_run(name), answer)
    if found is None:
        return None
    run = replace(found, price=price)
    asked: tuple[DrawPanel, ...] = (result, power, *RUN_PANELS)
    panels = ask_panels(answer, (ask(run) for ask in asked))
    made = answered(_provenance(run, version, defaults), answer)
    return report_of(f"{run.job}, run {run.run}", _under(run), panels, made)


def ask_panels(answer: Answer, asked: Iterable[Asking[Any]]) -> list[tuple[PagePanel, Sequence[str]]]:
    """Return the panels that have an answer, each with its SQL."""
    panels: list[tuple[PagePanel, Sequence[str]]] = []
    for asking in asked:
        queries: list[str] = []
        panel = answered(asking, answer, queries)
        if panel is not None:
            panels.append((panel, queries))
    return panels


def report_of(
    title: str, under: str, panels: Sequence[tuple[PagePanel, Sequence[str]]], provenance: Markup
) -> Report:
    """Return a report whose drawings stand alone."""
    charts = {name: standalone(chart) for panel, _ in panels for name, chart in panel.charts.items()}
    return Report(page=document(title, under, panels, provenance), charts=charts)


def _under(run: PageRun) -> str:
    model = ", ".join(sorted({gpu.model for gpu in run.gpus}))
    hosts = ", ".join(run.hosts) + (f", pod {run.pods}" if run.pods else "")
    ends = end_words(run.ended_how)
    gpus = f"{len(run.gpus)} x {model}" if run.gpus else "no GPU"
    return f"{gpus} on {hosts}, {counted(run.ranks, 'rank')}. Began {run.began_at} UTC, {ends}."


def document(
    title: str, under: str, panels: Sequence[tuple[PagePanel, Sequence[str]]], provenance: Markup
) -> str:
    """Return a page that stands alone."""
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} - zeus-stream"),
        element("style", Markup(style())),
    ]
    heading = element("div", element("h1", title), element("p", under, class_="under"))
    main = element("main", heading, [section(panel, sql) for panel, sql in panels], provenance)
    return f'<!doctype html>\n<html lang="en">{element("head", head)}{element("body", main)}</html>\n'


def _provenance(run: PageRun, version: str, defaults: dict[str, str]) -> Asking[Markup]:
    """Ask where the figures come from."""
    settings = yield _SETTINGS.format(run=quoted(run.run))
    (known,) = yield _SOURCES.format(run=quoted(run.run))
    changed = [
        f"{row['name']} = {row['value']}"
        for row in settings
        if row["name"] not in _NOT_SAID and row["value"] != defaults.get(row["name"], "")
    ]
    drivers = sorted({f"{gpu.model}, driver {gpu.driver}" for gpu in run.gpus})
    return sources([
        ("zeus-stream", version),
        ("archive", known["archive_id"]),
        ("GPUs", "; ".join(drivers)),
        ("UUIDs", ", ".join(gpu.gpu for gpu in run.gpus)),
        ("selector", known["selector"]),
        ("estimator of energies", known["estimators"]),
        ("settings that differ from defaults", ", ".join(changed) or "none"),
    ])  # fmt: skip


def sources(pairs: Sequence[tuple[str, str | None]]) -> Markup:
    """Return the section that says where the figures come from."""
    columns: Columns = {"what": ("what", plain), "value": ("value", plain)}
    shown = table([{"what": what, "value": value} for what, value in pairs], columns, "Provenance")
    return element(
        "section", element("h2", "Where the figures come from"), shown, class_="panel", id="provenance"
    )
