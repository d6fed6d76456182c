"""The swings of the power of a run, or of the site: a spectrum from the readings of two minutes. Pure."""

from zeus_stream.questions.asking import Asking
from zeus_stream.questions.run_questions import PageRun
from zeus_stream.quoting import quoted
from zeus_stream.screens.html.elements import element
from zeus_stream.screens.html.panels import PagePanel
from zeus_stream.screens.svg.axes import Axis
from zeus_stream.screens.svg.series_chart import ChartSeries, series_chart
from zeus_stream.views.site_view import SWINGS, swings_of_rows

MOST_GPUS = 64
"""Of a site; of more, two minutes of readings take longer than a page should. SQL has the answer."""


def run_swings(run: PageRun) -> Asking[PagePanel | None]:
    """Ask how the power of a run's GPUs together swings, at its end or now."""
    return (yield from _swings(quoted(run.run)))


def site_swings() -> Asking[PagePanel | None]:
    """Ask how the power of all GPUs together swings now, on a site of at most `MOST_GPUS`."""
    (known,) = yield "SELECT count(*) AS gpus FROM gpus"
    return (yield from _swings("NULL")) if known["gpus"] <= MOST_GPUS else None


def _swings(run: str) -> Asking[PagePanel | None]:
    rows = yield SWINGS.format(run=run)
    view = swings_of_rows(rows)
    if view is None:
        return None
    axes = Axis("Hz", bend="log"), Axis("W")
    chart = series_chart("", *axes, [ChartSeries("amplitude", view.points, 0)])
    return PagePanel(
        name="swings", title="Swings of power", body=element("figure", chart), text=view.headline, rows=rows,
        charts={"swings": chart}, half=True,
    )  # fmt: skip
