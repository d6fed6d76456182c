"""One poll a second for all viewers, none without viewers, and the newest state for the slow."""

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace
from starlette.types import ASGIApp

from tests.zeus_stream.screens.live_snapshots import SNAPSHOT as SITE
from tests.zeus_stream.screens.live_snapshots import a_gpu, a_run
from tests.zeus_stream.screens.web.asking import ask, running
from tests.zeus_stream.screens.web.conftest import TOKEN
from zeus_stream.errors import UnreachableError
from zeus_stream.protocol.snapshots import HostNow, Snapshot
from zeus_stream.screens.web.access.security import LOOPBACK, WebSecurity
from zeus_stream.screens.web.app import build
from zeus_stream.screens.web.now_feed import NowFeed, Update
from zeus_stream.screens.web.now_panels import draw_now
from zeus_stream.screens.web.routes.site import Site
from zeus_stream.screens.web.source import QueryRows, Source

pytestmark = pytest.mark.anyio
HOSTILE = "<img src=x onerror=alert(1)>"
GPU = a_gpu(0, "alpha", gpu="GPU-a", power_mw=162_000, run=HOSTILE)
GONE = replace(GPU, gpu="GPU-b", index=None, power_mw=None, limit_mw=None, state="gone", why="lost")
SNAPSHOT = replace(
    SITE, gpus=(GPU, GONE), runs=(a_run(HOSTILE, gpus=("GPU-a",), energy_j=None),),
    hosts=(HostNow(host="beta", state="silent", trouble="its collector does not answer"),),
)  # fmt: skip


class Analyzer:
    """Answers when it is told to, so that no test depends on time."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = anyio.Semaphore(0)

    async def ask(self) -> Snapshot:
        self.asked += 1
        await self.may_answer.acquire()
        return replace(SNAPSHOT, wall_ns=self.asked)


async def next_of(updates: AsyncIterator[Update]) -> Update:
    with anyio.fail_after(30):
        return await anext(updates)


def number(update: Update) -> int:
    assert update.now is not None
    return update.now.wall_ns


async def test_nobody_is_asked_while_nobody_watches() -> None:
    analyzer = Analyzer()
    feed = NowFeed(analyzer.ask, every_s=0)
    async with running(feed):
        await anyio.wait_all_tasks_blocked()
        assert analyzer.asked == 0
        updates = feed.watch()
        analyzer.may_answer.release()
        assert number(await next_of(updates)) == 1
        await updates.aclose()  # type: ignore[attr-defined]
        assert feed.viewers == 0
        analyzer.may_answer.release()  # of the poll that is under way
        await anyio.wait_all_tasks_blocked()
        assert analyzer.asked <= 2


async def test_one_poll_serves_all_viewers() -> None:
    analyzer = Analyzer()
    feed = NowFeed(analyzer.ask, every_s=0)
    seen: list[int] = []

    async def view() -> None:
        async for update in feed.watch():
            seen.append(number(update))
            return

    async with running(feed), anyio.create_task_group() as viewers:
        for _ in range(20):
            viewers.start_soon(view)
        await anyio.wait_all_tasks_blocked()
        analyzer.may_answer.release()
    assert seen == [1] * 20


async def test_a_slow_viewer_gets_the_newest_state_and_the_number_it_missed() -> None:
    analyzer = Analyzer()
    feed = NowFeed(analyzer.ask, every_s=0)
    async with running(feed):
        updates = feed.watch()
        analyzer.may_answer.release()
        await next_of(updates)
        for _ in range(5):
            analyzer.may_answer.release()
            asked = analyzer.asked
            with anyio.fail_after(30):
                while analyzer.asked == asked:
                    await anyio.lowlevel.checkpoint()
        update = await next_of(updates)
        assert number(update) == 6
        assert update.skipped == 4
        await updates.aclose()  # type: ignore[attr-defined]


async def test_an_analyzer_that_is_gone_is_a_sentence_and_comes_back() -> None:
    answers: list[Snapshot | None] = [None, SNAPSHOT]

    async def ask_now() -> Snapshot:
        if (answer := answers.pop(0) if len(answers) > 1 else answers[0]) is None:
            raise UnreachableError("analyzer: did not answer: none runs there. Start one.")
        return answer

    feed = NowFeed(ask_now, every_s=0)
    async with running(feed):
        updates = feed.watch()
        gone = await next_of(updates)
        assert gone.now is None
        assert gone.trouble == "analyzer: did not answer: none runs there. Start one."
        assert (await next_of(updates)).now == SNAPSHOT
        await updates.aclose()  # type: ignore[attr-defined]


async def test_closing_the_feed_ends_every_stream() -> None:
    feed = NowFeed(Analyzer().ask, every_s=0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(feed.run)
        updates = feed.watch()

        async def end() -> None:
            with pytest.raises(StopAsyncIteration):
                await anext(updates)
            tasks.cancel_scope.cancel()

        tasks.start_soon(end)
        await anyio.wait_all_tasks_blocked()
        feed.close()


def no_sql(sql: str, max_rows: int, seconds: float, jobs: tuple[str, ...] = ()) -> QueryRows:  # noqa: ARG001
    raise UnreachableError("analyzer: did not answer. Start one.")


def live_app(feed: NowFeed) -> ASGIApp:
    return build(Site(source=Source(no_sql), feed=feed), WebSecurity(TOKEN, frozenset(LOOPBACK)))


async def test_events_are_json_for_programs_and_html_for_the_page() -> None:
    async def now() -> Snapshot:
        return SNAPSHOT

    for address, wanted in (("/api/events", '"phase": "measuring"'), ("/api/events?html", "175 W, step ")):
        feed = NowFeed(now, every_s=0)
        async with running(feed):
            with anyio.fail_after(30):
                answer = await ask(live_app(feed), address, most=3, authorization=f"Bearer {TOKEN}")
        assert answer.header("content-type") == "text/event-stream; charset=utf-8"
        assert answer.text.startswith("retry: 2000\n\nevent: now\ndata: ")
        assert wanted in answer.text
        assert HOSTILE not in answer.text or address == "/api/events"


async def test_a_page_without_analyzer_is_a_sentence_in_the_page() -> None:
    app = live_app(NowFeed(Analyzer().ask))
    overview = await ask(app, "/", authorization=f"Bearer {TOKEN}")
    assert overview.status == 200
    assert "analyzer: did not answer. Start one." in overview.text
    assert overview.text.endswith("</main></body></html>\n")
    assert (await ask(app, "/runs/x", authorization=f"Bearer {TOKEN}")).status == 502
    assert (await ask(app, "/-/ready")).status == 503


def test_what_is_not_known_is_never_shown_as_zero() -> None:
    text = draw_now(SNAPSHOT)
    assert "162 W" in text
    assert "of 175 W" in text
    assert "found 250 W" in text
    assert "lost" in text
    assert "limit not known" in text
    assert "beta: its collector does not answer" in text
    assert ">0 W" not in text
    assert " 0 W" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "<img" not in text
