"""The schema of an archive: a table for each row class, and `schema.sql`.

A later version adds a statement list to `MIGRATIONS`, and changes row classes and `schema.sql` alike: a new
archive is made whole, and one of an earlier version is migrated: a file when an analyzer opens it, a lake by
`zeus-stream lake create`. A migration is about tables only: views and macros are then made again.
"""

import re
from importlib.resources import files
from uuid import uuid4

from analyzers.archive.opening import Connection
from zeus_stream.errors import StorageError

APPLICATION = "zeus-stream"
MIGRATIONS: tuple[str, ...] = (
    """
CREATE TABLE allocations (
    session VARCHAR, job_id VARCHAR, array_task VARCHAR, name VARCHAR, uid BIGINT, user_name VARCHAR,
    "partition" VARCHAR, restarts BIGINT, node VARCHAR, host VARCHAR, gpus VARCHAR[], began_wall_ns BIGINT,
    ended_wall_ns BIGINT, began_at TIMESTAMP, ended_at TIMESTAMP, duration_s DOUBLE, energy_j DOUBLE,
    energy_low_j DOUBLE, energy_high_j DOUBLE, energy_p2_5_j DOUBLE, energy_p97_5_j DOUBLE, quality VARCHAR
);
""",
    """
ALTER TABLE sessions ADD COLUMN cgroup VARCHAR;
ALTER TABLE sessions ADD COLUMN namespace VARCHAR;
ALTER TABLE sessions ADD COLUMN pod VARCHAR;
ALTER TABLE sessions ADD COLUMN container VARCHAR;
""",
    """
ALTER TABLE gpus ADD COLUMN power_profile VARCHAR;
ALTER TABLE trials ADD COLUMN power_profile VARCHAR;
""",
    """
CREATE TABLE budget_targets (
    budget VARCHAR, target_ns BIGINT, target_at TIMESTAMP, target_w DOUBLE, most_w DOUBLE
);
""",
    """
ALTER TABLE ended_savings ADD COLUMN stretches STRUCT(
    first_step BIGINT, changed BOOLEAN, power_limit_w DOUBLE, clock_mhz BIGINT, steps BIGINT, saved_j DOUBLE,
    energy_saved_percent DOUBLE, energy_saved_low_percent DOUBLE, energy_saved_high_percent DOUBLE,
    measured_by VARCHAR
)[];
""",
    """
ALTER TABLE trials ADD COLUMN best_w DOUBLE;
ALTER TABLE trials ADD COLUMN best_excess_p95_percent DOUBLE;
""",
    """
ALTER TABLE decisions ADD COLUMN changed_step BIGINT;
""",
)
"""SQL by version: the first text brings a schema of version 1 to version 2."""
META = "CREATE TABLE meta (application VARCHAR, schema_version INTEGER, archive_id VARCHAR, starts BIGINT)"


def newest() -> int:
    return 1 + len(MIGRATIONS)


def make(connection: Connection) -> None:
    """Make the schema in an empty database, within the caller's transaction."""
    from analyzers.archive.rows.tables import KINDS  # noqa: PLC0415  (heavy, and only a new archive needs it)
    from analyzers.results.table import create_table  # noqa: PLC0415

    connection.execute(META)
    connection.execute("INSERT INTO meta VALUES ($1, $2, $3, 0)", [APPLICATION, newest(), str(uuid4())])
    for kind in KINDS:
        connection.execute(create_table(kind))
    connection.execute(_schema_sql())


def _schema_sql() -> str:
    return files("analyzers.archive").joinpath("schema.sql").read_text(encoding="utf-8")


def view_sql(name: str) -> str:
    """Return the statement that makes a view."""
    found = re.search(rf"^CREATE VIEW {name} AS.*?;$", _schema_sql(), re.MULTILINE | re.DOTALL)
    assert found, name
    return found[0]


def migrate(connection: Connection, version: int) -> None:
    """Bring a schema of an earlier version to the newest, within the caller's transaction."""
    for migration in MIGRATIONS[version - 1 :]:
        connection.execute(migration)
    for kind, statement in re.findall(
        r"^CREATE (VIEW|MACRO)(.*?;)$", _schema_sql(), re.MULTILINE | re.DOTALL
    ):
        connection.execute(f"CREATE OR REPLACE {kind}{statement}")
    connection.execute("UPDATE meta SET schema_version = $1", [newest()])


def found_version(connection: Connection, who: object) -> int | None:
    """Return the version of a schema, None for an empty database. Raises StorageError: it is not ours."""
    content = "SELECT 1 FROM duckdb_tables() UNION ALL SELECT 1 FROM duckdb_views() WHERE NOT internal"
    if connection.execute(content).fetchone() is None:
        return None
    columns = "SELECT list(column_name) FROM duckdb_columns() WHERE table_name = 'meta'"  # each view is bound
    [(named,)] = connection.execute(columns).fetchall()
    match (
        connection.execute("SELECT application, schema_version FROM meta").fetchall()
        if {"application", "schema_version"} <= {*(named or ())}
        else []
    ):
        case [(str(application), int(version))] if application == APPLICATION:
            pass
        case _:
            raise StorageError(
                f"{who}: could not be opened: it is another program's database."
                " Name another file with --archive."
            )
    if not 1 <= version <= newest():
        raise StorageError(
            f"{who}: could not be opened: its schema is of version {version}, this zeus-stream reads"
            f" {newest()}. Open it with the zeus-stream that wrote it, or name another file with --archive."
        )
    return version
