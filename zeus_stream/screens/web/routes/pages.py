"""Handlers of the pages."""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from urllib.parse import quote, urlencode

import anyio
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from zeus_stream.errors import RefusedError, SettingsError, ZeusStreamError
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.questions.asking import Asking, Rows
from zeus_stream.questions.run_questions import PageGpu, PageRun, find_first, find_gpus, find_last, find_run
from zeus_stream.quoting import quoted
from zeus_stream.screens.html import site_panels
from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.html.hour_panel import hour
from zeus_stream.screens.html.panels import PagePanel, section
from zeus_stream.screens.html.run_panels import RUN_PANELS, power_key, result
from zeus_stream.screens.html.site_panels import EARLIER, LATEST, NO_RUN, gpu_panels, recent_runs
from zeus_stream.screens.html.swings_panel import site_swings
from zeus_stream.screens.site.job_belief import JobBelief, belief_panel
from zeus_stream.screens.web import page_frame
from zeus_stream.screens.web.now_feed import NowFeed
from zeus_stream.screens.web.now_panels import draw_job, draw_now, draw_run
from zeus_stream.screens.web.routes.site import Site, signals_now, site_of, streamed
from zeus_stream.screens.web.source import AskTable
from zeus_stream.screens.web.static_files import address
from zeus_stream.views.quantity import counted
from zeus_stream.views.run_view import end_words

FIRST_S = 0.3
"""A page waits so long for the live state; then it comes later."""
GPU_SPAN_NS = 3600 * 10**9
BANDS = "every other epoch, or step if they are few"
CHART_STYLES = ("web.css", "uPlot.min.css")


async def overview(request: Request) -> Response:
    """Answer ``/``: GPUs and runs as they are, then the latest runs."""
    site = site_of(request)

    async def parts() -> AsyncIterator[Markup]:
        yield page_frame.head("Overview", "", scripts=("overview.js",) if site.feed is not None else ())
        if site.feed is not None:
            yield Markup(element("h1", "Now") + _now("api/events?html", await _first(site.feed, draw_now)))
            shown = await drawn(site, hour(site.feed.wall_ns))
            yield element("div", shown, id="hour", data_src="api/hour")
            yield await drawn(site, site_swings())
            yield await drawn(site, recent_runs(EARLIER, "Earlier runs"))
        else:
            yield page_frame.heading("Archive", "A file; nothing is live.")
            yield await drawn(site, hour())
            yield await drawn(site, recent_runs(none=NO_RUN))

    return streamed(parts)


def _now(source: str, first: Markup | None = None) -> Markup:
    """Return the place of the live part, as it is first; the server-sent events of an address change it."""
    waits = element("section", element("p", "Waiting for the analyzer ...", class_="under"), class_="panel")
    up = "../" * source.count("../")
    return element("div", first or waits, id="now", data_src=source, data_worker=up + address("stream.js"))


async def _first(feed: NowFeed, draw: Callable[[Snapshot], Markup]) -> Markup | None:
    """Return the live part of a page as it is now: a page without scripts has it as well."""
    with anyio.move_on_after(FIRST_S):
        try:
            return draw(await feed.ask_once())
        except ZeusStreamError:
            pass  # the page says that it waits
    return None


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
        live = site.feed is not None and found.ended_wall_ns is None
        scripts = ("overview.js",) if live else ()
        yield page_frame.head(found.job, "", "../", styles=CHART_STYLES, scripts=scripts)
        yield page_frame.heading(found.job, _about(found))
        signals = await signals_now(site) if live else ()
        draw = partial(draw_run, name=name, signals=signals)
        first = await _first(site.feed, draw) if site.feed and live else None
        known: dict[str, Rows] = {}
        if first is None:
            await site.source.learn((panel(found) for panel in (result, *RUN_PANELS)), known)
        shown = first or section(await site.source.answered(result(found), known))
        yield _now(f"../api/events?html&run={quote(name, safe='')}", shown) if live else shown
        if found.gpus:
            yield _power(found.gpus, found.began_wall_ns, found.last_wall_ns, run=found.run)
        if first is not None:  # it does not wait for queries
            await site.source.learn((panel(found) for panel in RUN_PANELS), known)
        for panel in RUN_PANELS:
            yield await drawn(site, panel(found), known)

    return streamed(parts)


def _about(found: PageRun) -> list[Markup | str]:
    size = f", batch size {found.batch_size}" if found.batch_size else ""
    models = ", ".join(dict.fromkeys(gpu.model for gpu in found.gpus)) or "no GPU"
    ends = end_words(found.ended_how)
    about: list[Markup | str] = [f"run {found.run}, {counted(found.ranks, 'rank')}{size}, {ends}. {models}"]
    for host in dict.fromkeys(gpu.host for gpu in found.gpus):
        about.append(f"; {host} GPU" if len(about) > 1 else f": {host} GPU")
        for gpu in (gpu for gpu in found.gpus if gpu.host == host):
            link = f"../gpus/{quote(gpu.gpu, safe='')}"
            about += [" ", element("a", str(gpu.index), href=link, title=gpu.title)]
    return about


def _power(
    gpus: Sequence[PageGpu],
    begin_wall_ns: int,
    end_wall_ns: int,
    title: str = "Power",
    run: str | None = None,
) -> Markup:
    """Return the chart of power over time, drawn by the browser. ``run``: its steps are shown as well."""
    choices = [element("option", gpu.title, value=gpu.gpu) for gpu in gpus]
    if len(gpus) > 1:
        choices = [element("option", f"all {len(gpus)} GPUs together", value=""), *choices]
    tools = element(
        "div", element("label", "GPU ", element("select", choices, id="gpu")) if len(choices) > 1 else None,
        [element("button", text, type="button", data_do=do, aria_label=label) for text, do, label in (
            ("+", "in", "Zoom in"), ("−", "out", "Zoom out"), ("←", "left", "Move left"),  # noqa: RUF001
            ("→", "right", "Move right"), ("all", "all", "Show all"))],
        element("output", id="reading"), class_="tools",
    )  # fmt: skip
    asked = [("gpu", gpu.gpu) for gpu in gpus]
    asked += [("from", str(begin_wall_ns)), ("to", str(end_wall_ns)), ("svg", "")]
    picture = element("img", src=f"../api/power?{urlencode(asked)}", alt="Power over time")
    plot = element(
        "div", element("noscript", picture), class_="plot", id="plot", tabindex="0", role="img",
        aria_label="Power over time", aria_describedby="power-text",
        data_gpus=" ".join(gpu.gpu for gpu in gpus), data_from=str(begin_wall_ns),
        data_to=str(end_wall_ns), data_run=run,
    )  # fmt: skip
    text = element("p", "The chart is being drawn.", class_="caption", id="power-text", aria_live="polite")
    table = element("details", element("summary", "Table"), element("div", id="power-table"))
    body = [element("h2", title), tools, plot, power_key(BANDS if run else None), text, table]
    # Here and not in the head: the chart is drawn while the rest of the page is still on its way.
    scripts = (
        page_frame.script("../", "uPlot.iife.min.js"),
        page_frame.script("../", "power.js", at_once=True),
    )
    return element("section", *body, *scripts, id="power", class_="panel")


async def drawn(site: Site, asking: Asking[PagePanel | None], known: dict[str, Rows] | None = None) -> Markup:
    """Return a panel of a page; empty if there is nothing to show. A panel that fails says why.

    ``known``: answers that the page has by their SQL.
    """
    try:
        panel = await site.source.answered(asking, known)
    except RefusedError as wrong:
        return page_frame.error(str(wrong))
    return section(panel) if panel is not None else Markup("")


async def gpu(request: Request) -> Response:
    """Answer ``/gpus/{gpu}``: power of its last hour, and the runs on it."""
    site, name = site_of(request), request.path_params["gpu"]
    try:
        (found,) = await site.source.answered(find_gpus(f"gpu = {quoted(name)}")) or (None,)
        last_ns = 0 if found is None else await site.source.answered(find_last(found.host))
        first_ns = 0 if found is None else await site.source.answered(find_first(found.host))
    except ZeusStreamError as wrong:
        return _sentence(str(wrong), 502)
    if found is None:
        return _sentence(f"GPU {name}: could not be found in the archive. The overview lists all GPUs.", 404)

    async def parts() -> AsyncIterator[Markup]:
        yield page_frame.head(found.title, "", "../", styles=CHART_STYLES)
        yield page_frame.heading(found.title, f"{found.model}, {found.gpu}, driver {found.driver}")
        if last_ns:
            yield _power((found,), max(last_ns - GPU_SPAN_NS, first_ns), last_ns, "Power of the last hour")
        for panel in gpu_panels(found):
            yield await drawn(site, panel)

    return streamed(parts)


async def jobs(request: Request) -> Response:
    """Answer ``/jobs``."""
    site = site_of(request)

    async def parts() -> AsyncIterator[Markup]:
        yield page_frame.head("Jobs", "jobs")
        yield page_frame.heading("Jobs", "The latest 200 runs, by job.")
        yield await drawn(site, site_panels.JOBS_PANEL.ask(runs=LATEST))
        yield await drawn(site, site_panels.RECURRING.ask(which=""))

    return streamed(parts)


async def job(request: Request) -> Response:
    """Answer ``/jobs/{job}``."""
    site, name = site_of(request), request.path_params["job"]

    async def parts() -> AsyncIterator[Markup]:
        live = site.feed is not None
        yield page_frame.head(name, "jobs", "../", scripts=("overview.js",) if live else ())
        yield page_frame.heading(name, "A job: its runs, and its tries if it recurs.")
        if live:
            first = await _first(site.feed, partial(draw_job, job=name)) if site.feed else None
            yield _now(f"../api/events?html&job={quote(name, safe='')}", first)
        yield await _belief(site, name)
        for panel in (
            site_panels.RECURRING.ask("../", which=f"WHERE job = {quoted(name)}"),
            site_panels.SIZES.ask(job=quoted(name)),
            recent_runs(f"job = {quoted(name)} AND {EARLIER}", "Earlier runs", "../")
            if live
            else recent_runs(f"job = {quoted(name)}", up="../"),
        ):
            yield await drawn(site, panel)
        yield await drawn(site, site_panels.TRIES.ask("../", job=quoted(name)))

    return streamed(parts)


async def _belief(site: Site, name: str) -> Markup:
    """Return what the policy believes of a job; empty if it does not recur. A failure says why."""
    if site.believed is None:
        return Markup("")
    try:
        belief = await site.source.computed(partial(_believed, site.believed, name))
    except (RefusedError, SettingsError) as wrong:
        return page_frame.error(str(wrong))
    return section(belief_panel(belief)) if belief is not None else Markup("")


def _believed(
    believed: Callable[[AskTable, str], JobBelief | None], name: str, answer: AskTable
) -> JobBelief | None:
    return believed(answer, name)


async def waste(request: Request) -> Response:
    """Answer ``/waste``."""
    site = site_of(request)

    async def parts() -> AsyncIterator[Markup]:
        yield page_frame.head("Waste", "waste")
        yield page_frame.heading("Waste", "The latest 200 runs: what energy was spent for besides steps.")
        for panel in (
            site_panels.causes(),
            site_panels.JOBS_WASTE.ask(runs=LATEST),
            site_panels.IDLE.ask(),
        ):
            yield await drawn(site, panel)

    return streamed(parts)


def _sentence(text: str, status: int) -> Response:
    body = page_frame.head("Not found", "", "../") + page_frame.error(text) + page_frame.END
    return HTMLResponse(body, status)
