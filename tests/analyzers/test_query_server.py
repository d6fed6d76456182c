"""The query socket: a query that nobody waits for any more ends, and others are answered."""

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import anyio
import pytest

from analyzers.archive.process.store_client import StoreClient
from analyzers.archive.sandbox.bounded_queries import THREADS, Queries
from analyzers.service.query_server import AnalyzerAnswers, QueryServer, ResultsServer
from tests.empty_archive import archive_at
from zeus_stream.errors import RefusedError, UnreachableError
from zeus_stream.live.answer import encoded
from zeus_stream.protocol import codec
from zeus_stream.protocol.queries import Cancel, No, Query
from zeus_stream.protocol.snapshots import AskNow, Snapshot
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets
from zeus_stream.transport.access import AccessGate
from zeus_stream.transport.async_client import AsyncClient
from zeus_stream.transport.listening.listener import Listener

ENDLESS = "SELECT count(*) AS n FROM range(10_000_000) a, range(10_000_000) b"
SETTINGS = Settings(memory_mb=128, query_seconds=60)
PATIENCE_S = 30.0
"""Less than an endless query takes."""
NOW = Snapshot(process="analyzer", version="1", wall_ns=1)

pytestmark = pytest.mark.anyio


def _now(_asked: AskNow, _now_ns: int) -> bytes:
    return encoded(NOW)


async def _commit() -> None:
    """Store nothing: nothing waits."""


@asynccontextmanager
async def server(directory: Path) -> AsyncIterator[tuple[Path, QueryServer, Counter[str]]]:
    counters: Counter[str] = Counter()
    store = StoreClient.open(archive_at(directory / "energy.duckdb"), SETTINGS)
    context, opened = sockets.context(), ExitStack()
    path = directory / "query"

    def unused(*_: object) -> object:
        raise NotImplementedError

    try:
        channel = opened.enter_context(closing(Listener(path)))
        answers = AnalyzerAnswers(unused, _now, _commit, ResultsServer("test"))  # type: ignore[arg-type]
        answering = QueryServer(Queries(store, SETTINGS), unused, answers, counters)  # type: ignore[arg-type]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answering.run, channel, AccessGate(None, directory, {"query": channel}))
            yield path, answering, counters
            tasks.cancel_scope.cancel()
    finally:
        opened.close()
        context.destroy(linger=0)
        store.close()


async def until_under_way(answering: QueryServer, count: int) -> None:
    with anyio.fail_after(PATIENCE_S):
        while answering.under_way != count:
            await anyio.sleep(0.01)


async def one(client: AsyncClient) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = (await client.sql("SELECT 1 AS n", timeout_s=PATIENCE_S)).to_pylist()
    return rows


async def test_queries_whose_client_has_gone_leave_their_places_to_others(tmp_path: Path) -> None:
    async with server(tmp_path) as (path, answering, counters):
        gone = sockets.context()
        channel = sockets.ask(gone, path)
        payload = codec.encode(Query(ENDLESS, 10, 60_000))
        with anyio.fail_after(PATIENCE_S):
            for number in range(2 * THREADS):
                while not channel.send(number.to_bytes(8, "big"), payload):
                    await anyio.sleep(0.01)
        await until_under_way(answering, 2 * THREADS)
        gone.destroy(linger=0)
        began = time.monotonic()
        async with AsyncClient(path, "analyzer") as client:
            assert await one(client) == [{"n": 1}]
        assert time.monotonic() - began < PATIENCE_S
        await until_under_way(answering, 0)
        assert counters["queries abandoned"] == 2 * THREADS


async def test_a_query_is_cancelled_by_its_sender_and_by_nobody_else(tmp_path: Path) -> None:
    async with server(tmp_path) as (path, answering, _):
        context = sockets.context()
        mine, other = sockets.ask(context, path), sockets.ask(context, path)
        asked, cancel = codec.encode(Query(ENDLESS, 10, 60_000)), codec.encode(Cancel(b"12345678"))
        with anyio.fail_after(PATIENCE_S):
            while not mine.send(b"12345678", asked):
                await anyio.sleep(0.01)
            await until_under_way(answering, 1)
            while not other.send(bytes(8), cancel):
                await anyio.sleep(0.01)
            other.send(bytes(8), codec.encode(Query("SELECT 1", 1, 1_000)))
            await other.receive()  # it was asked later, so the cancellation was read
            assert answering.under_way == 1
            mine.send(bytes(8), cancel)
            (reply,) = await mine.receive()
        assert reply.parts[0] == b"12345678"
        assert "was cancelled" in codec.decode(reply.parts[1], No).reason
        context.destroy(linger=0)


async def test_a_client_that_stops_to_wait_cancels_what_it_asked(tmp_path: Path) -> None:
    async with server(tmp_path) as (path, answering, _), AsyncClient(path, "analyzer") as client:
        for _ in range(THREADS):
            with pytest.raises(UnreachableError, match="did not answer"):
                await client.request(Query(ENDLESS, 10, 60_000), Snapshot, 0.3)
        assert await one(client) == [{"n": 1}]
        await until_under_way(answering, 0)


async def test_the_live_state_is_answered_while_all_places_are_taken(tmp_path: Path) -> None:
    async with server(tmp_path) as (path, answering, _), AsyncClient(path, "analyzer") as client:
        async with anyio.create_task_group() as tasks:
            for _ in range(THREADS + 1):
                tasks.start_soon(_refused, client)
            await until_under_way(answering, THREADS + 1)
            assert await client.ask_now() == NOW
            tasks.cancel_scope.cancel()
        await until_under_way(answering, 0)


async def _refused(client: AsyncClient) -> None:
    with pytest.raises(RefusedError):
        await client.sql(ENDLESS, timeout_s=60)


async def test_a_client_finds_a_service_that_starts_later_and_one_that_starts_again(tmp_path: Path) -> None:
    async with AsyncClient(tmp_path / "query", "analyzer") as client:
        with pytest.raises(UnreachableError, match="zeus-stream analyze"):
            await client.ask_now(timeout_s=0.1)
        for _ in range(2):
            async with server(tmp_path):
                assert await client.ask_now(timeout_s=PATIENCE_S) == NOW
