"""Roles of PostgreSQL that may read a lake, and change nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from zeus_stream.errors import RefusedError, StorageError

SCHEMA = sql.Identifier("public")
"""Of DuckLake's tables. Ours, ``zs``, is for those who write."""


def grant(dsn: str, name: str, password: str | None) -> tuple[str, str]:
    """Make a role that may only read, or give an existing one these rights and a password, unless None.

    Return the role's DSN without password, and where the lake's files are. Raises RefusedError: the role may
    do more than read. StorageError: PostgreSQL is away, or the owner may not make roles.
    """
    role = sql.Identifier(name)
    with _working(dsn) as connection, connection.transaction():
        files = _files(connection)
        known = connection.execute(
            "SELECT rolsuper OR rolcreaterole OR rolcreatedb, pg_has_role(rolname, tableowner, 'MEMBER')"
            " FROM pg_roles, pg_tables WHERE rolname = %s AND tablename = 'ducklake_snapshot'",
            (name,),
        ).fetchone()
        if known is not None and any(known):
            raise RefusedError(
                f"role {name}: could not be limited to reading: it owns the lake, or may make roles or"
                " databases. Name another."
            )
        if known is None:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        if password is not None:
            hidden = connection.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256")
            connection.execute(
                sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, sql.Literal(hidden.decode()))
            )
        connection.execute(sql.SQL("ALTER ROLE {} SET default_transaction_read_only = on").format(role))
        connection.execute(
            sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(connection.info.dbname), role)
        )
        connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(SCHEMA, role))
        connection.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}").format(SCHEMA, role))
        # Small commits are rows of tables that DuckLake makes when it needs them.
        connection.execute(
            sql.SQL("ALTER DEFAULT PRIVILEGES FOR ROLE {} IN SCHEMA {} GRANT SELECT ON TABLES TO {}").format(
                sql.Identifier(_owner(connection)), SCHEMA, role
            )
        )
    return make_conninfo(dsn, user=name, password=None), files


def revoke(dsn: str, name: str) -> None:
    """Remove a role, with its rights. Raises RefusedError, StorageError."""
    role = sql.Identifier(name)
    with _working(dsn) as connection, connection.transaction():
        _files(connection)
        if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchone() is None:
            raise RefusedError(f"role {name}: could not be removed: there is no such role. Correct its name.")
        connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


def _files(connection: psycopg.Connection) -> str:
    """Return where the files of the lake are. Raises StorageError: this is no lake."""
    there = connection.execute("SELECT to_regclass('public.ducklake_metadata') IS NOT NULL").fetchone()
    if there != (True,):
        raise StorageError(
            "lake: could not be opened: its catalog has no tables of ours. Run `zeus-stream lake create`."
        )
    row = connection.execute("SELECT value FROM ducklake_metadata WHERE key = 'data_path'").fetchone()
    return str(row[0]) if row else ""


def _owner(connection: psycopg.Connection) -> str:
    row = connection.execute(
        "SELECT tableowner FROM pg_tables WHERE tablename = 'ducklake_snapshot'"
    ).fetchone()
    assert row is not None
    return str(row[0])


@contextmanager
def _working(dsn: str) -> Iterator[psycopg.Connection]:
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as connection:
            yield connection
    except psycopg.Error as wrong:
        says = str(wrong).strip().splitlines()[0] if str(wrong).strip() else type(wrong).__name__
        raise StorageError(
            f"lake: could not change roles: {says}. Name its owner with --database, who may make roles."
        ) from wrong
