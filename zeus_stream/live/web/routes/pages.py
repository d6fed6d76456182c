"""Handlers of the pages."""

from collections.abc import AsyncIterator
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from zeus_stream.errors import ZeusStreamError
from zeus_stream.live.web import page_frame
from zeus_stream.live.web.routes.site import site_of, streamed
from zeus_stream.reports.html.elements import Markup, element
from zeus_stream.reports.html.panels import section
from zeus_stream.reports.html.questions import Run, find_gpus, find_run
from zeus_stream.reports.html.run_panels import POWER_KEY, RUN_PANELS, result
from zeus_stream.reports.html.site_panels import RECENT_RUNS, SITE_PANELS, gpu_panels

CHART_STYLES = ("web.css", "uPlot.min.css")


async def overview(request: Request) -> Response:
    """Answer ``/``: GPUs and runs as they are, then the latest runs."""
    site = site_of(request)

    async def parts() -> AsyncIterator[Markup]:
        yield page_frame.head("Overview", "", scripts=("overview.js",) if site.feed is not None else ())
        yield _now() if site.feed is not None else page_frame.heading("Archive", "A file; nothing is live.")
        for panel in (RECENT_RUNS, *SITE_PANELS):
            drawn = await site.source.answered(panel())
            if drawn is not None:
                yield section(drawn)

    return streamed(parts)


def _now() -> Markup:
    """Return the place of the live part. It is filled by server-sent events."""
    waits = element("section", element("p", "Waiting for the analyzer ...", class_="under"), class_="panel")
    return Markup(element("h1", "Now") + element("div", waits, id="now", data_src="api/events?html"))


async def run(request: Request) -> Response:
    """Answer ``/runs/{run}``."""
    site, name = site_of(request), request.path_params["run"]
    try:
        found = await site.source.answered(find_run(name))
    except ZeusStreamError as wrong:
        return _sentence(str(wrong), 502)
    if found is None:
        return _sentence(
            f"run {name}: could not be found in the archive. The overview lists the latest runs.", 404
        )

    async def parts() -> AsyncIterator[Markup]:
        yield page_frame.head(found.job, "", "../", styles=CHART_STYLES)
        yield page_frame.heading(found.job, _about(found))
        yield section(await site.source.answered(result(found)))
        yield _power(found)
        for panel in RUN_PANELS:
            drawn = await site.source.answered(panel(found))
            if drawn is not None:
                yield section(drawn)

    return streamed(parts)


def _about(found: Run) -> list[Markup | str]:
    gpus = [element("a", gpu.title, href=f"../gpus/{quote(gpu.gpu, safe='')}") for gpu in found.gpus[:16]]
    between: list[Markup | str] = []
    for gpu in gpus:
        between += [", " if between else "", gpu]
    size = f", batch size {found.batch_size}" if found.batch_size else ""
    model = found.gpus[0].model if found.gpus else "no GPU"
    ends = found.ended_how or "runs"
    return [
        f"run {found.run}, {found.ranks} rank{'' if found.ranks == 1 else 's'}{size}, {ends}. {model}: ",
        *between,
    ]


def _power(found: Run) -> Markup:
    """Return the chart of power over time, drawn by the browser."""
    choices = [element("option", gpu.title, value=gpu.gpu) for gpu in found.gpus]
    if len(found.gpus) > 1:
        choices = [element("option", f"all {len(found.gpus)} GPUs together", value=""), *choices]
    tools = element(
        "div", element("label", "GPU ", element("select", choices, id="gpu")) if len(choices) > 1 else None,
        [element("button", text, type="button", data_do=do, aria_label=label) for text, do, label in (
            ("+", "in", "Zoom in"), ("−", "out", "Zoom out"), ("←", "left", "Move left"),  # noqa: RUF001
            ("→", "right", "Move right"), ("all", "all", "Show all"))],
        element("output", id="reading"), class_="tools",
    )  # fmt: skip
    plot = element(
        "div", class_="plot", id="plot", tabindex="0", role="img", aria_label="Power over time",
        aria_describedby="power-text", data_gpus=" ".join(gpu.gpu for gpu in found.gpus),
        data_from=str(found.began_wall_ns), data_to=str(found.last_wall_ns), data_run=found.run,
    )  # fmt: skip
    text = element("p", "The chart is being drawn.", class_="caption", id="power-text", aria_live="polite")
    table = element("details", element("summary", "Table"), element("div", id="power-table"))
    body = [element("h2", "Power"), tools, plot, POWER_KEY, text, table]
    # Here and not in the head: the chart is drawn while the rest of the page is still on its way.
    scripts = (
        page_frame.script("../", "uPlot.iife.min.js"),
        page_frame.script("../", "power.js", at_once=True),
    )
    return element("section", *body, *scripts, id="power", class_="panel")


async def gpu(request: Request) -> Response:
    """Answer ``/gpus/{gpu}``."""
    site, name = site_of(request), request.path_params["gpu"]
    which = "gpu = '" + name.replace("'", "''") + "'"
    try:
        found = await site.source.answered(find_gpus(which))
    except ZeusStreamError as wrong:
        return _sentence(str(wrong), 502)
    if not found:
        return _sentence(f"GPU {name}: could not be found in the archive. The overview lists all GPUs.", 404)

    async def parts() -> AsyncIterator[Markup]:
        yield page_frame.head(found[0].title, "", "../", styles=CHART_STYLES)
        yield page_frame.heading(
            found[0].title, f"{found[0].model}, {found[0].gpu}, driver {found[0].driver}"
        )
        for panel in gpu_panels(found[0]):
            drawn = await site.source.answered(panel)
            if drawn is not None:
                yield section(drawn)

    return streamed(parts)


def _sentence(text: str, status: int) -> Response:
    body = page_frame.head("Not found", "", "../") + page_frame.error(text) + page_frame.END
    return HTMLResponse(body, status)
