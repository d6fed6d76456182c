"""The command ``web``: the page of an analyzer or of an archive file."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from anyio.to_thread import run_sync

from zeus_stream.cli.options import Command, settings_options
from zeus_stream.own_files import open_own
from zeus_stream.paths import Places, holder, places
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    from zeus_stream.screens.site.job_belief import JobBelief
    from zeus_stream.screens.web.server import Listening
    from zeus_stream.screens.web.source import AskTable

TOKEN_FILE = "web.token"  # noqa: S105  (its name)
ADDRESS_FILE = "web.address"


@click.command(cls=Command)
@click.option(
    "--listen",
    "address",
    default="127.0.0.1:8466",
    metavar="TEXT",
    help="HOST:PORT, or unix:PATH.  [127.0.0.1:8466]",
)
@click.option(
    "--host-name",
    "host_names",
    multiple=True,
    metavar="NAME",
    help="Another name of this server, as a browser gives it. May be repeated.",
)
@click.option("--root-path", default="", metavar="PATH", help="Where a proxy has the page, such as /zeus.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate, PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its key, PEM.")
@click.option("--behind-proxy", is_flag=True, help="A proxy with TLS is in front: allow any address.")
@click.option("--no-token", is_flag=True, help="Ask for no token. Only with unix:PATH.")
@click.option(
    "--keys", "keys_file", metavar="FILE", type=click.Path(path_type=Path),
    help="Tokens that may ask SQL over HTTP, each about some jobs.",
)  # fmt: skip
@click.option("--url", "show_url", is_flag=True, help="Print the address of the page that runs, and end.")
@click.option("--parent-pid", type=int, hidden=True)
@settings_options("archive", "analyzer", "query_seconds", "memory_mb")
def web(
    settings: Settings,
    *,
    address: str,
    show_url: bool,
    no_token: bool,
    parent_pid: int | None,
    keys_file: Path | None,
    **more: Any,
) -> None:
    """Show GPUs, runs, jobs and SQL in a browser, live.

    The address that it prints has a secret token: with it, anybody can read the archive. The page only reads;
    it changes no limit and no setting.

    \b
    zeus-stream web
    zeus-stream web --archive energy.duckdb
    zeus-stream web --url
    """
    from zeus_stream.cli.service_commands import _end_with, _print_line, _serve
    from zeus_stream.errors import UnreachableError
    from zeus_stream.screens.web.access.token_file import read_job_keys, read_token
    from zeus_stream.screens.web.server import Listening

    where = places(os.environ)
    noted = where.state / ADDRESS_FILE
    if show_url:
        if not noted.exists():
            raise UnreachableError("web: could not find a page that runs. Start one with `zeus-stream web`.")
        click.echo(noted.read_text(encoding="utf-8").strip())
        return
    _end_with(parent_pid)
    token = None if no_token else read_token(where.state / TOKEN_FILE)
    keys = () if keys_file is None else read_job_keys(keys_file)
    listening = Listening(token=token, address=address, keys=keys, **more)

    with ExitStack() as held:

        def started(say: Callable[[str], None], opened: str) -> None:
            note_address(noted, opened)
            held.callback(noted.unlink, missing_ok=True)
            if settings.archive is None and settings.analyzer is None and not _runs(where):
                there = where.archive.exists()
                shown = f"{where.archive} is shown" if there else "nothing is shown"
                _print_line(f"web: no analyzer runs: {shown}, until `zeus-stream run` starts one.")
            say(f"open {opened}")

        _serve(lambda say: show(settings, where, listening, partial(started, say)), "web")


def _runs(where: Places) -> bool:
    return holder(where.run / "analyzer.lock") is not None


def note_address(path: Path, address: str) -> None:
    """Keep the address of the page, token included, for this user alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123  (a descriptor)
        file.write(address + "\n")


async def show(
    settings: Settings, where: Places, listening: "Listening", started: Callable[[str], None]
) -> None:
    """Serve until cancelled: a file if it is named, or while no analyzer runs; else the analyzer."""
    from zeus_stream.cli.screens.archive_source import ArchiveSource, is_file_shown
    from zeus_stream.protocol.queries import Query, QueryDone
    from zeus_stream.screens.web.now_feed import NowFeed
    from zeus_stream.screens.web.routes.site import Site
    from zeus_stream.screens.web.server import serve
    from zeus_stream.screens.web.source import QueryRows, Source
    from zeus_stream.transport.async_client import AsyncClient
    from zeus_stream.transport.client import Connection, analyzer, table_of

    file = ArchiveSource(settings.archive or where.archive, where.signals, settings)
    if settings.archive is not None:
        await run_sync(file.ask, "SELECT 1", 1, settings.query_seconds)  # is it an archive?
        site = Site(source=Source(file.ask), feed=None, believed=_believed, max_rows=settings.query_rows)
        await serve(site, listening, started)
        return
    there = analyzer(os.environ, settings.analyzer)
    connection = Connection(there)

    def ask(sql: str, max_rows: int, seconds: float, jobs: tuple[str, ...] = ()) -> QueryRows:
        if is_file_shown(settings, where):
            return file.ask(sql, max_rows, seconds, jobs)
        return QueryRows(*connection.ask(sql, max_rows=max_rows, timeout_s=seconds, jobs=jobs))

    async with AsyncClient(there.query, "analyzer") as client:

        async def ask_page(sql: str, max_rows: int, seconds: float) -> QueryRows:
            if is_file_shown(settings, where):
                return await run_sync(file.ask, sql, max_rows, seconds)
            query = Query(sql, max_rows, round(seconds * 1000))
            done, parts = await client.request(query, QueryDone, seconds + 2)
            return QueryRows(table_of(parts), done.truncated)

        site = Site(
            source=Source(ask, ask_page),
            feed=NowFeed(client.ask_now),
            believed=_believed,
            max_rows=settings.query_rows,
        )
        await serve(site, listening, started)


def _believed(ask: "AskTable", job: str) -> "JobBelief | None":
    from zeus_stream.cli.screens.recurring_jobs import job_belief  # it computes: NumPy, as the analyzer does

    return job_belief(ask, job)
