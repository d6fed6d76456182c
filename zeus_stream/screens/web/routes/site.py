"""The state that the handlers of all routes share."""

from collections.abc import AsyncIterator, Callable

from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import StreamingResponse

from zeus_stream.errors import ZeusStreamError
from zeus_stream.questions.asking import Rows
from zeus_stream.screens.html.elements import Markup
from zeus_stream.screens.metrics.job_metrics import JobMetrics
from zeus_stream.screens.site.job_belief import JobBelief
from zeus_stream.screens.web.now_feed import NowFeed
from zeus_stream.screens.web.page_frame import END, error
from zeus_stream.screens.web.source import AskTable, Source
from zeus_stream.views.costs import SIGNALS_NOW


class Site(Struct, frozen=True, kw_only=True):
    """The archive, what is live, and the limits of an answer."""

    source: Source
    feed: NowFeed | None
    """None: a file is shown, and nothing is live."""
    believed: Callable[[AskTable, str], JobBelief | None] | None = None
    """Returns what the policy believes of a recurring job; it blocks. None: the pages leave it out."""
    max_rows: int = 1_000_000
    """Of an answer that is downloaded."""
    jobs: JobMetrics = field(default_factory=JobMetrics)
    """Counters of jobs, for ``/metrics``: since this process started."""


def site_of(request: Request) -> Site:
    """Return the site that a request is for."""
    site: Site = request.app.state.site
    return site


async def signals_now(site: Site) -> Rows:
    """Return rows of `SIGNALS_NOW`: what a kilowatt hour costs; none if the archive does not answer."""
    try:
        rows: Rows = (await site.source.query(SIGNALS_NOW, "page")).table.to_pylist()
    except ZeusStreamError:
        return ()  # the live part goes on without money and carbon
    return rows


def streamed(parts: Callable[[], AsyncIterator[Markup]]) -> StreamingResponse:
    """Return a page that is sent as its parts are known; a part that fails is the sentence that says why."""

    async def body() -> AsyncIterator[bytes]:
        try:
            async for part in parts():
                yield part.encode()
        except ZeusStreamError as wrong:
            yield error(str(wrong)).encode()
        yield END.encode()

    return StreamingResponse(body(), media_type="text/html; charset=utf-8")
