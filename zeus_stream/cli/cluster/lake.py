"""The commands ``lake create``, ``lake size``, ``lake keep``, ``lake role``, ``lake sql``; ``serve-sql``."""

import os
import socket
import sys
from typing import TYPE_CHECKING

import click

from zeus_stream.cli.options import RETENTION, Command, CommandGroup, output_options, settings_options
from zeus_stream.cli.service_commands import _serve
from zeus_stream.errors import RefusedError, SettingsError, StorageError
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    from zeus_stream.broker.site_settings import SiteSettings
    from zeus_stream.screens.text.tables import Form


@click.group(cls=CommandGroup)
def lake() -> None:
    """Store the readings of many hosts in a lake: Parquet files, with a catalog in PostgreSQL."""


@lake.command()
@click.option("--data", required=True, help="Directory or URL of the Parquet files.")
@settings_options("memory_mb", "database")
def create(settings: Settings, site: "SiteSettings", data: str) -> None:
    """Make the tables of a lake, and the trigger that lets one process write each part.

    A lake of an earlier version is migrated: its rows stay, and services of that version are refused then.
    """
    from analyzers.lake import catalog

    made = catalog.create(site.dsn("lake"), data, settings)
    click.echo(
        f"The lake is made; its files go to {data}."
        if made
        else "The lake was there; its tables are of this version."
    )


@lake.command()
@click.option("--hosts", type=click.IntRange(1, 1_000_000), required=True, metavar="N", help="Of the site.")
@click.option("--gpus", type=click.IntRange(1, 64), default=8, metavar="N", help="GPUs of a host.  [8]")
@click.option(
    "--outage-hours", "outage_h", type=click.FloatRange(0, 1000), default=24.0, metavar="X",
    help="Time without an archiver that the broker outlasts.  [24]",
)  # fmt: skip
@output_options
@settings_options(*RETENTION)
def size(settings: Settings, hosts: int, gpus: int, outage_h: float, *, form: "Form") -> None:
    """Print the cores, disks and settings that a site needs, from unit costs that were measured.

    GPUs have 10 readings a second and half of them a run; each service is planned at half load.
    """
    import pyarrow as pa

    from analyzers.lake.sizing import SiteSize, rows
    from zeus_stream.screens.text.tables import write

    days = settings.keep_readings_days, settings.keep_seconds_days, settings.keep_minutes_days
    names = ("what", "figure", "unit")
    found = rows(SiteSize(hosts=hosts, gpus=gpus, outage_h=outage_h), days)
    write(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in found]), form, sys.stdout)


@lake.command()
@settings_options("memory_mb", "database", *RETENTION)
def keep(settings: Settings, site: "SiteSettings") -> None:
    """Remove old rows, add up hours, merge small files. Run it once an hour, on one machine."""
    from analyzers.lake.keeper import keep as keep_once
    from analyzers.service.commits import words
    from zeus_stream.clock import anchor

    holder = f"{socket.gethostname()}/{os.getpid()}"
    removed = keep_once(site.dsn("lake"), settings, holder=holder, wall_ns=anchor().wall_ns)
    click.echo(f"Removed {words(removed)}.")


@lake.command()
@click.argument("name")
@click.option("--password", is_flag=True, help="Ask for its password; from a pipe, the first line is it.")
@click.option("--remove", is_flag=True, help="Remove the role.")
@settings_options("database")
def role(settings: Settings, site: "SiteSettings", name: str, *, password: bool, remove: bool) -> None:  # noqa: ARG001
    """Make a role NAME that may read a lake with any DuckDB, and change nothing."""
    from analyzers.lake import object_store, roles

    if remove:
        roles.revoke(site.dsn("lake"), name)
        click.echo(f"Role {name} is removed.")
        return
    theirs, files = roles.grant(site.dsn("lake"), name, _password() if password else None)
    click.echo(f"Role {name} may read this lake, and change nothing. In any DuckDB with these extensions:\n")
    click.echo("INSTALL ducklake; INSTALL postgres;" + _bucket(files, object_store.is_bucket(files)))
    click.echo(f"ATTACH 'ducklake:postgres:{theirs}' AS lake (READ_ONLY); USE lake;\n")
    if object_store.is_bucket(files):
        click.echo(f"Give it a key that may only read {files}: s3:GetObject and s3:ListBucket.")
    else:
        click.echo(f"Let its user read the files below {files}, and not write them.")


def _password() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    return sys.stdin.readline().rstrip("\n")


def _bucket(files: str, is_bucket: bool) -> str:  # noqa: FBT001  (of our own module)
    if not is_bucket:
        return ""
    return (
        " INSTALL httpfs;\n"
        f"CREATE SECRET (TYPE s3, SCOPE '{files}', KEY_ID '...', SECRET '...', ENDPOINT '...',"
        " URL_STYLE 'path');"
    )


@lake.command()
@click.argument("query")
@output_options
@settings_options("memory_mb", "database")
def sql(settings: Settings, site: "SiteSettings", query: str, *, form: "Form") -> None:
    """Answer one SQL QUERY over a lake. Any number of readers may ask at the same time.

    What the role of --database may not do in PostgreSQL, a query cannot do either.
    """
    from analyzers.archive.opening import Reader
    from analyzers.lake import catalog, object_store
    from zeus_stream.screens.text.tables import write

    connection = catalog.attach(site.dsn("lake"), settings, read_only=True)
    try:
        catalog.check(connection)
        schema, batches = Reader(connection).batches(query, 10_000)
        import pyarrow as pa

        write(pa.Table.from_batches(list(batches), schema), form, sys.stdout)
    except RefusedError as wrong:
        if (why := object_store.trouble(str(wrong))) is None:
            raise
        raise StorageError(f"lake: could not be read: {why}") from wrong
    finally:
        connection.close()


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
    _serve(lambda started: service(source, workers=workers, environ=os.environ, started=started), "serve-sql")
