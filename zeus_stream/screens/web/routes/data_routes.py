"""Handlers of ``/api``: what the pages draw, and SQL with downloads."""

import io
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from anyio.to_thread import run_sync
from msgspec import to_builtins
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse

from zeus_stream.errors import RefusedError, ZeusStreamError
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.questions.asking import Rows
from zeus_stream.questions.power_question import MAX_PX, Power, find_power
from zeus_stream.questions.run_questions import find_gpus, find_run
from zeus_stream.quoting import quoted, quoted_list
from zeus_stream.screens.html.document import standalone
from zeus_stream.screens.html.elements import Markup
from zeus_stream.screens.html.hour_panel import hour
from zeus_stream.screens.html.panels import section
from zeus_stream.screens.html.run_panels import RUN_PANELS, power_text, result
from zeus_stream.screens.metrics.metrics import service_families, up_family
from zeus_stream.screens.metrics.prometheus import CONTENT_TYPE, text
from zeus_stream.screens.svg.run_charts import power_chart
from zeus_stream.screens.text.tables import arrow, csv, plain, plain_rows, unique
from zeus_stream.screens.web.access.doorway import JOBS
from zeus_stream.screens.web.now_feed import NowFeed
from zeus_stream.screens.web.now_panels import draw_job, draw_now, draw_run
from zeus_stream.screens.web.routes.site import signals_now, site_of
from zeus_stream.screens.web.source import PAGE_S

JSON_ROWS = 10_000
"""Rows of an answer as JSON; the other formats have all."""
MEDIA = {
    "json": "application/json", "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream", "parquet": "application/vnd.apache.parquet",
}  # fmt: skip
_NOTHING_LIVE = RefusedError("now: could not be shown: this page shows a file. Start it without --archive.")
CHUNK = 1 << 20
MAX_STEPS = 200
"""Steps on screen that are drawn one by one."""
_STEPS = """
SELECT epoch_us(min(began_at)) AS began_us, max(duration_s) AS duration_s FROM windows
WHERE run = {run} AND kind = 'step' AND NOT of_host(gpu)
    AND began_at BETWEEN make_timestamp({begin}) AND make_timestamp({end})
GROUP BY index ORDER BY began_us LIMIT {most}
"""
LAG_MS = 10_000
"""An analyzer that is further behind is not ready."""


def refused(wrong: ZeusStreamError) -> Response:
    """Return an error as a sentence: 400 if the question is wrong, 502 if nobody answers."""
    status = 400 if isinstance(wrong, RefusedError) else 502
    return JSONResponse({"error": str(wrong)}, status)


async def sql(request: Request) -> Response:
    """Answer ``/api/sql?sql=&format=``."""
    site, given = site_of(request), request.query_params
    query, form = given.get("sql", ""), given.get("format", "json")
    if not query.strip() or form not in MEDIA:
        return refused(
            RefusedError(f"sql: could not be answered: give `sql`, and `format` as {', '.join(MEDIA)}.")
        )
    rows = JSON_ROWS if form == "json" else site.max_rows
    try:
        answer = await site.source.query(query, "box", rows, PAGE_S, request.scope.get(JOBS, ()))
    except ZeusStreamError as wrong:
        return refused(wrong)
    if form == "json":
        content = await run_sync(_json, answer.table, answer.truncated)
    else:
        content = await run_sync(WRITERS[form], answer.table)
    headers = {"X-Truncated": "true" if answer.truncated else "false"}

    async def chunks() -> AsyncIterator[bytes]:
        for begin in range(0, len(content), CHUNK):
            yield content[begin : begin + CHUNK]

    headers |= {"Content-Length": str(len(content))}
    return StreamingResponse(chunks(), media_type=MEDIA[form], headers=headers)


def _json(table: pa.Table, truncated: bool) -> bytes:  # noqa: FBT001  (of the answer)
    content = {"columns": unique(table.column_names), "rows": plain_rows(table), "truncated": truncated}
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()


def _parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pa.parquet.write_table(table, out)
    return out.getvalue()


WRITERS: dict[str, Callable[[pa.Table], bytes]] = {"csv": csv, "arrow": arrow, "parquet": _parquet}


async def power(request: Request) -> Response:
    """Answer ``/api/power?gpu=&from=&to=&px=``, times in ns since 1970. ``svg``: as a picture."""
    site, given = site_of(request), request.query_params
    try:
        begin, end = _span(given)
        px = min(int(given.get("px", "800")), MAX_PX)
        names = given.getlist("gpu")
        if px < 1 or not names:
            raise ValueError  # noqa: TRY301  (one sentence for all of them)
    except (KeyError, ValueError):
        why = "power: could not be shown: give `gpu`, and `from` before `to` in ns since 1970."
        return refused(RefusedError(why))
    try:
        gpus = await site.source.answered(find_gpus(f"gpu IN ({quoted_list(names)})"))
        found = await site.source.answered(find_power(gpus, begin, end, px))
    except ZeusStreamError as wrong:
        return refused(wrong)
    if "svg" in given:
        chart = standalone(power_chart(found.points, (), power_text(found)))
        return Response(chart, media_type="image/svg+xml")
    return JSONResponse(_columns(found))


def _span(given: QueryParams) -> tuple[int, int]:
    """Return the instants of a question, ns since 1970. Raises KeyError and ValueError."""
    begin, end = int(given["from"]), int(given["to"])
    if not 0 <= begin < end < 2**63:
        raise ValueError
    return begin, end


async def steps(request: Request) -> Response:
    """Answer ``/api/steps?run=&from=&to=``: steps in seconds since ``from``; none if there are too many."""
    site, given = site_of(request), request.query_params
    try:
        (begin, end), run = _span(given), given["run"]
    except (KeyError, ValueError):
        why = "steps: could not be shown: give `run`, and `from` before `to` in ns since 1970."
        return refused(RefusedError(why))
    query = _STEPS.format(run=quoted(run), begin=begin // 1000, end=end // 1000, most=MAX_STEPS + 1)
    try:
        rows = (await site.source.query(query, "page")).table.to_pylist()
    except ZeusStreamError as wrong:
        return refused(wrong)
    spans = [
        [(row["began_us"] * 1000 - begin) / 1e9, (row["began_us"] * 1000 - begin) / 1e9 + row["duration_s"]]
        for row in rows
    ]
    return JSONResponse({"steps": spans if len(spans) <= MAX_STEPS else []})


def _columns(found: Power) -> dict[str, Any]:
    """Return power by column; times in seconds since ``from``. An instant more ends the last bucket."""
    points = found.points
    return {
        "from": str(found.begin_wall_ns), "bucket_s": found.bucket_s, "energy_j": found.energy_j,
        "text": power_text(found),
        "t_s": [round(point.begin_s, 6) for point in points] + [point.end_s for point in points[-1:]],
        **{
            name: [_watts(getattr(point, name)) for point in (*points, *points[-1:])]
            for name in ("mean_w", "least_w", "most_w", "limit_w")
        },
    }  # fmt: skip


def _watts(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


async def run(request: Request) -> Response:
    """Answer ``/api/runs/{run}``: the data of the panels of a run."""
    site, name = site_of(request), request.path_params["run"]
    try:
        found = await site.source.answered(find_run(name))
        if found is None:
            return JSONResponse({"error": f"run {name}: could not be found in the archive."}, 404)
        known: dict[str, Rows] = {}
        await site.source.learn((panel(found) for panel in (result, *RUN_PANELS)), known)
        panels = [await site.source.answered(panel(found), known) for panel in (result, *RUN_PANELS)]
    except ZeusStreamError as wrong:
        return refused(wrong)
    about = {
        "run": found.run, "job": found.job, "ranks": found.ranks, "hosts": list(found.hosts),
        "gpus": [gpu.gpu for gpu in found.gpus], "began_at": found.began_at,
        "from": str(found.began_wall_ns), "to": str(found.last_wall_ns),
        "ended": found.ended_wall_ns is not None,
    }  # fmt: skip
    data = {panel.name: plain(list(panel.rows)) for panel in panels if panel is not None}
    return JSONResponse({**about, **data})


async def now(request: Request) -> Response:
    """Answer ``/api/now``."""
    feed = site_of(request).feed
    if feed is None:
        return refused(_NOTHING_LIVE)
    try:
        state = await feed.ask_once()
    except ZeusStreamError as wrong:
        return refused(wrong)
    return JSONResponse(to_builtins(state))


async def hour_of_site(request: Request) -> Response:
    """Answer ``/api/hour``: the panel of the power of the last hour, for the overview."""
    site = site_of(request)
    try:
        panel = await site.source.answered(hour(site.feed.wall_ns if site.feed is not None else 0))
    except ZeusStreamError as wrong:
        return refused(wrong)
    return HTMLResponse("" if panel is None else section(panel))


async def events(request: Request) -> Response:
    """Answer ``/api/events`` with server-sent events: JSON, or live HTML (``html``, ``job``, ``run``)."""
    site, as_html = site_of(request), "html" in request.query_params
    feed = site.feed
    job, run = request.query_params.get("job"), request.query_params.get("run")

    def draw(now: Snapshot, signals: Rows) -> Markup:
        if run is not None:
            return draw_run(now, run, signals)
        return draw_now(now) if job is None else draw_job(now, job)

    if feed is None:
        return refused(_NOTHING_LIVE)

    async def stream() -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        signals: Rows | None = None
        async for update in feed.watch():
            if update.skipped:
                yield event("lagged", str(update.skipped))
            if update.now is None:
                yield event("trouble", update.trouble or "")
            elif as_html:
                if shown := draw(update.now, signals or ()):  # a run that is shown no longer stays as it was
                    yield event("now", shown)
                if run is not None and signals is None:  # the first state does not wait for a query
                    signals = await signals_now(site)
            else:
                yield event("now", json.dumps(to_builtins(update.now), ensure_ascii=False))

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def event(name: str, data: str) -> str:
    """Return one server-sent event. A line of its own for each line of the data."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {name}\n{lines}\n"


async def healthy(_request: Request) -> Response:
    """Answer ``/-/healthy``: this process works."""
    return PlainTextResponse("ok\n")


async def ready(request: Request) -> Response:
    """Answer ``/-/ready``: the analyzer answers within 2 s, and is less than 10 s behind."""
    site = site_of(request)
    try:
        await site.source.query("SELECT 1", "page", 1, 2.0)
        lag_ms = None if site.feed is None else await _lag_ms(site.feed)
    except ZeusStreamError as wrong:
        return PlainTextResponse(f"{wrong}\n", 503)
    if lag_ms is not None and lag_ms > LAG_MS:
        return PlainTextResponse(f"the analyzer is {lag_ms / 1000:.0f} s behind\n", 503)
    return PlainTextResponse("ok\n")


async def _lag_ms(feed: NowFeed) -> float | None:
    """Return how far the analyzer is behind. None: a server of SQL answers, which has no live state."""
    try:
        return (await feed.ask_once()).lag_ms
    except RefusedError:
        return None


async def metrics(request: Request) -> Response:
    """Answer ``/metrics``: jobs, runs and the analyzer, as Prometheus reads them."""
    site = site_of(request)
    if site.feed is None:
        return refused(_NOTHING_LIVE)
    try:
        state = await site.feed.ask_once()
    except ZeusStreamError:
        found = [up_family({"analyzer": False})]
    else:
        site.jobs.take(state.runs)
        found = [*site.jobs.families(state), *service_families(state), up_family({"analyzer": True})]
    return Response(text(found), media_type=CONTENT_TYPE)
