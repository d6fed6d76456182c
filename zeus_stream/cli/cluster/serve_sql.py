"""The command ``serve-sql``: SQL on a lake or on an archive file, for many users."""

import os
from typing import TYPE_CHECKING

import click

from zeus_stream.cli.options import Command, settings_options
from zeus_stream.cli.service_commands import _serve as serve
from zeus_stream.errors import SettingsError
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    from zeus_stream.broker.site_settings import SiteSettings


@click.command("serve-sql", cls=Command)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=2, metavar="N", help="Queries answered at once.  [2]"
)
@settings_options("archive", "database", "query_seconds", "memory_mb", "group", "listen")
def serve_sql(settings: Settings, site: "SiteSettings", *, workers: int) -> None:
    """Answer SQL of many users on a lake, or on an archive file. Start as many as are needed.

    Queries are bounded as those of an analyzer: they only read, and each has at most query_rows,
    query_seconds and memory_mb. `zeus-stream sql` asks it: on this host as it is, from other hosts with a key
    and --analyzer.
    """
    from analyzers.serving.query_worker import QuerySource
    from analyzers.serving.sql_service import serve_sql as service

    if (site.database is None) == (settings.archive is None):
        raise SettingsError(
            "serve-sql: could not start: it has no source, or two. Name either --database or --archive."
        )
    source = QuerySource(settings, site.database, settings.archive)
    serve(lambda started: service(source, workers=workers, environ=os.environ, started=started), "serve-sql")
