"""SQL on an archive file, by processes that can do no harm."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.serving.query_worker import QuerySource
from analyzers.serving.sql_service import serve_sql
from tests.analyzers.archives import fill
from tests.directories import short_directory
from tests.empty_archive import archive_at
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.paths import Places, places
from zeus_stream.settings import Settings
from zeus_stream.transport.client import Connection, forget, status

SETTINGS = Settings(memory_mb=128, query_rows=100)
ENDLESS = "SELECT count(*) FROM range(1_000_000) a, range(1_000_000_000) b"
pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "energy.duckdb"
    store = DuckdbFile.open(archive_at(path), SETTINGS)
    fill(store)
    store.close()
    return path


@asynccontextmanager
async def served(file: Path) -> AsyncIterator[tuple[Connection, Places]]:
    """Run a server of SQL on a file; yield its client."""
    with short_directory() as directory:
        environ = os.environ | {"ZEUS_STREAM_DIR": str(directory)}
        running = anyio.Event()

        async def serve() -> None:
            source = QuerySource(SETTINGS, None, file)
            await serve_sql(source, workers=1, environ=environ, started=lambda _: running.set())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            await running.wait()
            yield Connection(places(environ)), places(environ)
            tasks.cancel_scope.cancel()


async def rows(client: Connection, sql: str) -> list[dict[str, Any]]:
    table = await run_sync(partial(client.sql, sql, max_rows=100, timeout_s=20))
    found: list[dict[str, Any]] = table.to_pylist()
    return found


@pytest.mark.sweep
async def test_a_file_is_answered_and_a_query_that_takes_too_much_harms_no_other(archive: Path) -> None:
    async with served(archive) as (client, where):
        assert await rows(client, "SELECT run, power_limit_w FROM decisions") == [
            {"run": "run-1", "power_limit_w": 200.0}
        ]
        for sql, why in (
            ("DELETE FROM runs", "DELETE is not allowed"),
            (f"FROM '{archive}'", "files are not allowed"),
            ("SELECT list(range) FROM range(500_000_000)", "it needs more than memory_mb = 128"),
            ("FROM readings", "there are more than 100 rows"),
        ):
            with pytest.raises(RefusedError, match=why):
                await rows(client, sql)
        with pytest.raises(RefusedError, match=r"it took over 1 s"):
            await run_sync(partial(client.sql, ENDLESS, timeout_s=1))
        assert await rows(client, "SELECT count(*) AS n FROM runs") == [{"n": 1}]
        asked = partial(client.ask, "SELECT run FROM runs", max_rows=9, timeout_s=20)
        assert (await run_sync(partial(asked, jobs=("train",))))[0].num_rows == 1
        assert (await run_sync(partial(asked, jobs=("other*",))))[0].num_rows == 0
        shown = await run_sync(partial(status, where, "analyzer", 20.0))
        assert ("sql server", "data", str(archive)) in shown.rows
        with pytest.raises(RefusedError, match="answers SQL only"):
            await run_sync(forget, where, "train")
        with pytest.raises(RefusedError, match="answers SQL only"):
            await run_sync(client.now)


async def test_a_file_that_is_not_there_or_of_no_archive_is_one_sentence(tmp_path: Path) -> None:
    def started(_: str) -> None:
        raise AssertionError

    for file, why in (
        (tmp_path / "none", "there is no such file"),
        (Path(__file__), "is no DuckDB database"),
    ):
        with pytest.raises(StorageError, match=why):
            await serve_sql(QuerySource(SETTINGS, None, file), workers=1, environ={}, started=started)
