"""The panel of a pipeline: an iteration before and under the plan, and the frontier. Pure."""

from collections.abc import Sequence

from msgspec import convert
from msgspec.structs import asdict

from zeus_stream.questions.asking import Asking, Row, Rows
from zeus_stream.questions.run_questions import PageRun
from zeus_stream.quoting import quoted
from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.html.panels import Columns, PagePanel, table
from zeus_stream.screens.svg.frontier_chart import ChartedChoice, frontier_chart
from zeus_stream.screens.svg.pipeline_charts import Bar, bubble_chart
from zeus_stream.views.costs import SIGNALS_NOW
from zeus_stream.views.pipeline_view import PIPELINE, POINTS, PRICED, PipelineChoice, PipelineView, choices_of
from zeus_stream.views.quantity import Quantity, figure, percent

AXES = ("time of an iteration, s", "energy of an iteration, J")
_SPANS = """
SELECT plan, iteration, stage, kind, micro_batch, clock_mhz, begin_s, duration_s FROM instruction_spans
WHERE run = {run} AND (plan = 0 OR plan = (SELECT max(plan) FROM instruction_spans WHERE run = {run}))
ORDER BY plan, stage, position
"""


def pipeline(run: PageRun) -> Asking[PagePanel | None]:
    """Ask for the pipeline of a run, and draw an iteration and the frontier."""
    found = yield PIPELINE.format(run=quoted(run.run))
    if not found:
        return None
    (row,) = found
    points = yield POINTS.format(run=quoted(run.run))
    choices = choices_of(points, row, (yield SIGNALS_NOW) if points else ())
    spans = yield _SPANS.format(run=quoted(run.run))
    charts: dict[str, Markup] = {}
    parts: list[Markup] = []
    for number in sorted({span["plan"] for span in spans}):
        name, words = ("iteration", "At the highest clocks") if number == 0 else ("plan", f"Plan {number}")
        charts[f"pipeline-{name}"] = _iteration(spans, number)
        parts += [element("h3", words), element("figure", charts[f"pipeline-{name}"], class_="wide")]
    if points:
        charts["pipeline-frontier"] = frontier_chart(
            _points(choices, row), AXES, "Energy of an iteration by its time."
        )
        rows = [{**asdict(each), "name": each.name} for each in choices]
        parts.append(
            element(
                "div", element("figure", charts["pipeline-frontier"]),
                table(rows, COLUMNS, "Points of the frontier"), class_="two",
            )
        )  # fmt: skip
    view = PipelineView.of_row(row)
    text = " ".join(f"{name.capitalize()}: {words}." for name, words in view.facts)
    if points:
        text += (
            " Each point of the frontier is a choice: start the analyzer with --slowdown and its number."
            f" Hours, energy and cost are of {PRICED:,} iterations of all replicas, by the profile."
        )
    if spans:
        text += " Each bar is an instruction; forwards have a frame; between bars a stage waits."
    return PagePanel(
        name="pipeline", title="Pipeline", body=element("div", *parts), text=text,
        rows=spans or points or found, charts=charts,
    )  # fmt: skip


def _iteration(spans: Rows, number: int) -> Markup:
    end_s = max(span["begin_s"] + span["duration_s"] for span in spans)
    clocks = [span["clock_mhz"] for span in spans]
    bars = convert([span for span in spans if span["plan"] == number], list[Bar])
    lengths = [bar.begin_s + bar.duration_s for bar in bars]
    stages = len({bar.stage for bar in bars})
    words = f"An iteration of {max(lengths):.4g} s on {stages} stages, {len(bars)} instructions as bars."
    return bubble_chart(bars, end_s, (min(clocks), max(clocks)), words)


COLUMNS: Columns = {
    "name": ("--slowdown", str), "time_s": ("s", figure), "energy_j": ("J", figure),
    "saved_percent": ("saved", percent), "hours": ("h", figure), "kwh": ("kWh", figure),
    "cost": ("cost", str),
}  # fmt: skip


def _points(choices: Sequence[PipelineChoice], row: Row) -> list[ChartedChoice]:
    at_top, *others = choices
    found = [_point(f"x {each.slowdown:g}", each.time_s, each.energy_j) for each in others]
    found.append(_point(at_top.name, at_top.time_s, at_top.energy_j, "found"))
    if row["number"] is not None:
        found.append(_point("plan", row["promised_s"], row["promised_j"], "chosen"))
    return found


def _point(name: str, time_s: float, energy_j: float, role: str = "") -> ChartedChoice:
    return ChartedChoice(name=name, time=Quantity(time_s, "s"), energy=Quantity(energy_j, "J"), role=role)
