"""A server of SQL on a lake, or on an archive file: the query socket of an analyzer, without an analyzer.

    query socket, keys -> QueryServer -> Queries: bounds -> QueryWorkers: confined processes -> lake, or file

Start as many as users need: they share nothing.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import anyio

from analyzers.archive.sandbox.bounded_queries import Queries
from analyzers.service.query_server import QueryServer
from analyzers.serving.query_worker import QuerySource, open_source
from analyzers.serving.query_workers import QueryWorkers
from zeus_stream import own_cost
from zeus_stream.paths import claim, places, prepare
from zeus_stream.protocol.queries import Status
from zeus_stream.transport.access import AccessGate
from zeus_stream.transport.listening.listener import Listener

ONLY_SQL = "serve-sql: could not answer: it answers SQL only. Ask the analyzer for its state and its jobs."
_log = logging.getLogger(__name__)


async def serve_sql(
    source: QuerySource, *, workers: int, environ: Mapping[str, str], started: Callable[[str], None]
) -> None:
    """Answer SQL until cancelled, ``workers`` queries at once, each in a process.

    ``started``: called once, with a sentence. Raises StorageError, SettingsError, RefusedError: it cannot
    start.
    """
    connection, _ = open_source(source)
    connection.close()
    settings, where = source.settings, places(environ)
    prepare(where, settings.group)
    name = "the lake" if source.file is None else str(source.file)
    with claim(where.run / "analyzer.lock", "analyzer or SQL server"):
        opened = ExitStack()
        pool = QueryWorkers(source, workers)
        try:
            server, channel, gate = _server(pool, source, workers, environ, name)
            started(f"answers SQL on {name} at {where.query}")
            opened.callback(channel.close)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gate.run)
                tasks.start_soon(own_cost.return_free_memory)
                tasks.start_soon(server.run, channel, gate)
        finally:
            pool.close()
            opened.close()


def _server(
    pool: QueryWorkers,
    source: QuerySource,
    workers: int,
    environ: Mapping[str, str],
    name: str,
) -> tuple[QueryServer, Listener, AccessGate]:
    settings, where = source.settings, places(environ)
    counters: Counter[str] = Counter()
    channel = Listener(where.query, group=settings.group)
    gate = AccessGate(settings.listen, where.keys, {"query": channel})

    def status(gate: AccessGate) -> Status:
        rows = [
            ("sql server", "data", name),
            ("sql server", "own processor time", own_cost.words()),
            ("sql server", "processes that were replaced", str(pool.replaced)),
            *server.status_rows(),
            *(("counters", each, str(count)) for each, count in sorted(counters.items())),
            *gate.status(),
        ]
        return Status(tuple(rows))

    server = QueryServer(Queries(pool, settings), status, ONLY_SQL, counters, readers=workers)
    return server, channel, gate
