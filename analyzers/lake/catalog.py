"""Open a lake with DuckDB: load what reads it, attach its catalog, make its tables, check its version.

Every DuckDB with the same two extensions reads the lake as well: ATTACH 'ducklake:postgres:...' AS lake.
"""

import os
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import duckdb
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from analyzers.archive import schema
from analyzers.archive.opening import Connection, first_line, storing
from analyzers.lake import object_store
from analyzers.leases.site_leases import SiteLeases
from zeus_stream.errors import StorageError
from zeus_stream.quoting import quoted
from zeus_stream.service_packages import install_command
from zeus_stream.settings import Settings

LAKE = "lake"
"""Name of the attached database."""
INLINED_ROWS = 500
"""A commit puts fewer rows of a table than these into the catalog, and others into a Parquet file."""
INLINED_FRAMES = 10
"""The same for frames: a large one takes seconds as a row of the catalog, and milliseconds in a file."""
RETRIES = {"max_retry_count": 100, "retry_wait_ms": 200, "retry_backoff": 1.0}
"""Of a commit that another writer's came before: 20 s, for it is tried again from outside after that."""
CAUSE_LETTERS = 400
"""Of the words of DuckDB in a sentence of ours."""
AWAY = "Unable to connect to Postgres"
"""Begin of the words of PostgreSQL in those of DuckDB."""
EXTENSIONS = ("ducklake", "postgres_scanner")
SIGNED_ONLY = "SET allow_unsigned_extensions = false"
"""Cannot be undone. To check the signatures of two files from wheels took 0.30 s of a core, of 0.45 s in all;
pip has compared the wheels with their hashes, as that of DuckDB itself."""
NEEDS_HTTPFS = "extension httpfs"
"""DuckLake says so of a lake whose files are in a bucket."""
OPTIONS = {
    "parquet_compression": "zstd",
    "parquet_version": "2",
    "sort_on_insert": "false",
}
"""Version 2 stores differences of times and counters. Archivers insert rows that are sorted already."""
LAYOUT = """
ALTER TABLE readings SET PARTITIONED BY (year(read_at), month(read_at), day(read_at));
ALTER TABLE readings SET SORTED BY (gpu, t_hi_ns);
ALTER TABLE seconds SET PARTITIONED BY (year(began_at), month(began_at), day(began_at));
ALTER TABLE minutes SET PARTITIONED BY (year(began_at), month(began_at))
"""


def attach(
    dsn: str,
    settings: Settings,
    *,
    data: str | None = None,
    read_only: bool = False,
    threads: int | None = None,
) -> Connection:
    """Connect to a lake; its tables are those of the default database.

    ``data``: directory or URL of the Parquet files, needed only by who makes the lake. ``threads``: of
    DuckDB; None: one a core. Raises StorageError: an extension is missing, or the catalog is away.
    """
    address = _without_password(dsn)
    connection = duckdb.connect(
        config={
            "memory_limit": f"{settings.memory_mb}MiB",
            "asof_loop_join_threshold": 0,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_unsigned_extensions": True,
            "python_enable_replacements": False,
            **({} if threads is None else {"threads": threads}),
        }
    )
    try:
        for name in EXTENSIONS:
            _load(connection, name)
        connection.execute(SIGNED_ONLY)
        options = [f"DATA_INLINING_ROW_LIMIT {INLINED_ROWS}"]
        options += [f"DATA_PATH {quoted(data)}"] if data else []
        options += ["READ_ONLY"] if read_only else []
        if data is not None and object_store.is_bucket(data):
            _open_bucket(connection)
        attaching = f"ATTACH {quoted(f'ducklake:postgres:{address}')} AS {LAKE} ({', '.join(options)})"
        try:
            for option, value in RETRIES.items():
                connection.execute(f"SET ducklake_{option} = {value}")
            try:
                connection.execute(attaching)
            except duckdb.Error as wrong:
                if NEEDS_HTTPFS not in str(wrong):
                    raise
                _open_bucket(connection)
                connection.execute(attaching)
            connection.execute(f"USE {LAKE}")
        except duckdb.Error as wrong:
            cure = "Check --database and the rights of its role; `zeus-stream lake create` makes a lake."
            raise StorageError(f"lake: could not be opened: {why(str(wrong), cure)}") from wrong
    except BaseException:
        connection.close()
        raise
    return connection


def _without_password(dsn: str) -> str:
    """Return a DSN without its password, which libpq takes from the environment of this process instead.

    DuckDB shows what is attached, in its views and in its errors. Raises StorageError.
    """
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as wrong:
        raise StorageError(
            f"lake: could not read its address: {first_line(str(wrong))}. Write keywords or a URI of libpq."
        ) from wrong
    if "sslpassword" in given:
        raise StorageError(
            "lake: could not be opened: DuckDB would show sslpassword. Name a key without a password"
            " in sslkey, in a file that only this user can read."
        )
    if (password := given.pop("password", None)) is not None:
        os.environ["PGPASSWORD"] = str(password)
    return make_conninfo(**{name: str(value) for name, value in given.items()})


def data_path(connection: Connection) -> str:
    """Return the directory or URL of the Parquet files. Raises duckdb.Error."""
    [(path,)] = connection.execute(
        f"SELECT value FROM __ducklake_metadata_{LAKE}.ducklake_metadata WHERE key = 'data_path'"  # noqa: S608 (ours)
    ).fetchall()
    return str(path)


def _open_bucket(connection: Connection) -> None:
    """Load what speaks S3, and give it the credentials of the environment. Raises StorageError."""
    _load(connection, "httpfs")
    fields = object_store.secret(os.environ)
    words = [
        f"{name} {value}" if isinstance(value, bool) else f"{name} {quoted(value)}"
        for name, value in fields.items()
    ]
    connection.execute(f"CREATE SECRET lake_files (TYPE s3, {', '.join(words)})")


def _check_writable(connection: Connection, data: str) -> None:
    """Write a small file into a bucket; the keeper removes it after a day. Raises StorageError."""
    try:
        target = quoted(f"{data.rstrip('/')}/probe.parquet")
        connection.execute(f"COPY (SELECT 1 AS probe) TO {target}")
    except duckdb.Error as wrong:
        raise StorageError(f"lake: could not write to {data}: {why(str(wrong))}") from wrong


def why(says: str, cure: str = "Look at the servers of the lake.") -> str:
    """Return what went wrong by the words of DuckDB, and what to do about it. ``cure``: of another cause."""
    cause = " ".join(says.split())[:CAUSE_LETTERS].rstrip(".")  # DuckLake has it in a later line
    if (away := says.find(AWAY)) >= 0:
        return (
            f"{first_line(says[away:])}. Start PostgreSQL, or correct --database, its role or its password."
        )
    return object_store.trouble(says) or f"{cause}. {cure}"


def create(dsn: str, data: str, settings: Settings) -> bool:
    """Make or migrate a lake: tables, views, the trigger that fences commits. Return False if it was there.

    A migration is whole or nothing. Raises StorageError: it cannot be made, or is of a later version.
    """
    connection = attach(dsn, settings, data=data)
    try:
        there = version(connection)
        if there is not None and there < schema.newest():
            with storing(connection, "lake: could not be migrated", why):
                schema.migrate(connection, there)
        elif there is not None:
            check(connection)
        else:
            if object_store.is_bucket(data):
                _check_writable(connection, data)
            with storing(connection, "lake: could not be made", why):
                schema.make(connection)
                for statement in LAYOUT.split(";"):
                    connection.execute(statement)
            connection.execute(
                "USE memory"
            )  # with the lake as default database, the next call ends the process
            for option, value in OPTIONS.items():
                connection.execute(f"CALL ducklake_set_option('{LAKE}', '{option}', '{value}')")
            connection.execute(
                f"CALL ducklake_set_option('{LAKE}', 'data_inlining_row_limit', {INLINED_FRAMES},"
                " table_name => 'frames')"
            )
    finally:
        connection.close()
    leases = SiteLeases(dsn, "", "")
    try:
        leases.create()
        leases.run(files("analyzers.lake").joinpath("fencing.sql").read_bytes())
    finally:
        leases.close()
    return there is None


def version(connection: Connection) -> int | None:
    """Return the version of the lake's tables. None: there are none."""
    tables = connection.execute(
        f"SELECT 1 FROM duckdb_tables() WHERE database_name = '{LAKE}' AND table_name = 'meta'"  # noqa: S608 (ours)
    ).fetchall()
    if not tables:
        return None
    [(number,)] = connection.execute("SELECT schema_version FROM meta").fetchall()
    return int(number)


def check(connection: Connection) -> None:
    """Raise StorageError unless the lake's tables are those of this version."""
    found = version(connection)
    if found is None:
        raise StorageError(
            "lake: could not be opened: its catalog has no tables of ours. Run `zeus-stream lake create`."
        )
    if found != schema.newest():
        cure = (
            "Run `zeus-stream lake create`, which migrates it"
            if found < schema.newest()
            else "Install the zeus-stream that made them"
        )
        raise StorageError(
            f"lake: could not be opened: its tables are of version {found}, not {schema.newest()}. {cure}."
        )


def _load(connection: Connection, name: str) -> None:
    """Load an extension from its wheel, or from where DuckDB has installed it."""
    spec = find_spec(f"duckdb_extension_{name}")
    found = (
        []
        if spec is None or spec.origin is None
        else Path(spec.origin).parent.rglob(f"{name}.duckdb_extension")
    )
    file = next(iter(found), None)
    try:
        if file is None:
            connection.execute(SIGNED_ONLY)
        connection.execute(f"LOAD {name}" if file is None else f"LOAD {quoted(file)}")
    except duckdb.Error as wrong:
        raise StorageError(
            f"lake: could not load DuckDB's extension {name}: {first_line(str(wrong))}. Run"
            f" `{install_command('scale')}`: it replaces DuckDB {duckdb.__version__} by one that has them."
        ) from wrong
