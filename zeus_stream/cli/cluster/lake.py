"""The commands ``lake create``, ``lake status``, ``lake keep``, ``lake role`` and ``lake sql``."""

import os
import socket
import sys
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from zeus_stream.cli.options import RETENTION, Group, output_options, settings_options
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.settings import Settings, refuse_password

if TYPE_CHECKING:
    from zeus_stream.screens.text.tables import Form


def check_dsn(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Return the DSN of an option. Raises SettingsError: it was typed with a password."""
    source = None if option.name is None else context.get_parameter_source(option.name)
    if value is not None and source is ParameterSource.COMMANDLINE:
        refuse_password("--lake", value, "ZEUS_STREAM_LAKE")
    return value


lake_option = click.option(
    "--lake",
    "dsn",
    required=True,
    callback=check_dsn,
    envvar="ZEUS_STREAM_LAKE",
    metavar="DSN",
    help="PostgreSQL of the catalog, such as 'host=/run/postgresql dbname=lake'.",
)


@click.group(cls=Group)
def lake() -> None:
    """Store the readings of many hosts in a lake: Parquet files, with a catalog in PostgreSQL."""


@lake.command()
@lake_option
@click.option("--data", required=True, help="Directory or URL of the Parquet files.")
@settings_options("memory_mb")
def create(settings: Settings, dsn: str, data: str) -> None:
    """Make the tables of a lake, and the trigger that lets one process write each part."""
    from analyzers.lake import catalog

    made = catalog.create(dsn, data, settings)
    click.echo(f"The lake is made; its files go to {data}." if made else "The lake was there already.")


@lake.command()
@lake_option
@output_options
@settings_options("broker", "site", "broker_credentials")
def status(settings: Settings, dsn: str, *, form: "Form") -> None:
    """Show who holds each part of a lake, and with --broker how far it is behind."""
    import pyarrow as pa

    from analyzers.shards.site_status import parts_status
    from zeus_stream.screens.text.tables import write

    rows = [
        {"part" if name == "name" else name: value for name, value in line.items() if name != "behind_s"}
        for line in parts_status(settings, dsn)
    ]
    if not rows:
        click.echo("No process has written to the lake yet.", err=True)
        return
    write(pa.Table.from_pylist(rows), form, sys.stdout)


@lake.command()
@lake_option
@settings_options("memory_mb", *RETENTION)
def keep(settings: Settings, dsn: str) -> None:
    """Remove old rows, add up hours, merge small files. Run it once an hour, on one machine."""
    from analyzers.lake.keeper import keep as keep_once
    from analyzers.pruning import words
    from zeus_stream.clock import anchor

    holder = f"{socket.gethostname()}/{os.getpid()}"
    removed = keep_once(dsn, settings, holder=holder, wall_ns=anchor().wall_ns)
    click.echo(f"Removed {words(removed)}." if removed else "Nothing is older than it is kept.")


@lake.command()
@click.argument("name")
@lake_option
@click.option("--password", is_flag=True, help="Ask for its password; from a pipe, the first line is it.")
@click.option("--remove", is_flag=True, help="Remove the role.")
def role(name: str, dsn: str, *, password: bool, remove: bool) -> None:
    """Make a role NAME that may read a lake with any DuckDB, and change nothing."""
    from analyzers.lake import object_store, roles

    if remove:
        roles.revoke(dsn, name)
        click.echo(f"Role {name} is removed.")
        return
    theirs, files = roles.grant(dsn, name, _password() if password else None)
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
@lake_option
@output_options
@settings_options("memory_mb")
def sql(settings: Settings, query: str, dsn: str, *, form: "Form") -> None:
    """Answer one SQL QUERY over a lake. Any number of readers may ask at the same time.

    What the role of --lake may not do in PostgreSQL, a query cannot do either.
    """
    from analyzers.archive.opening import Reader
    from analyzers.lake import catalog, object_store
    from zeus_stream.screens.text.tables import write

    connection = catalog.attach(dsn, settings, read_only=True)
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
