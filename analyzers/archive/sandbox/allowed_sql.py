"""Check that a text from outside is one SELECT that only reads, before DuckDB plans it.

    text -> one statement? -> SELECT, or EXPLAIN [ANALYZE] of a SELECT -> its parse tree -> text to run

The check is an allow-list of what may stand in the tree: kinds of query nodes and of table references, and
functions that read nothing but their arguments or the catalogue. Whatever a later DuckDB adds is refused
until it is listed here.

For some jobs alone, each table and view with a column ``job`` is replaced by its rows of these jobs, and no
other can be named.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from zeus_stream.errors import RefusedError
from zeus_stream.quoting import quoted

CURE = "Ask one SELECT (FROM, WITH), EXPLAIN, DESCRIBE, SHOW or SUMMARIZE."
PIVOT_CURE = (
    "Name its values, as in PIVOT windows ON kind IN ('step', 'epoch') USING sum(energy_j), or ask for"
    " sum(energy_j) FILTER (WHERE kind = 'step')."
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NODES = _words(
    # Query nodes. A CTE may hold others (COPY_QUERY_NODE, INSERT_QUERY_NODE, ...): they write.
    "SELECT_NODE SET_OPERATION_NODE RECURSIVE_CTE_NODE CTE_NODE"
    # Table references.
    " BASE_TABLE SUBQUERY JOIN TABLE_FUNCTION EXPRESSION_LIST EMPTY CTE PIVOT SHOW_REF"
    # Modifiers of a query node.
    " ORDER_MODIFIER LIMIT_MODIFIER LIMIT_PERCENT_MODIFIER LEGACY_LIMIT_PERCENT_MODIFIER DISTINCT_MODIFIER"
    " ORDER_DEFAULT ASCENDING DESCENDING"
)
_TABLE_FUNCTIONS = _words(
    "range generate_series unnest repeat repeat_row json_each json_tree histogram histogram_values"
    " duckdb_columns duckdb_constraints duckdb_functions duckdb_keywords duckdb_schemas duckdb_tables"
    " duckdb_types duckdb_views pg_timezone_names pragma_table_info pragma_version"
    " whole counted_wholes sessions_of_ranks waste_of waste_of_runs saving_of savings_of saved_steps_of"
    " scatter_of power_swings_of"
)
"""Table functions that read nothing but their arguments or the catalogue, and the archive's own macros."""
_PURE_FUNCTIONS = _words("range generate_series unnest repeat repeat_row json_each json_tree")
"""Of these, those that read their arguments alone."""
_OF_JOBS = """
SELECT lower(table_name) FROM duckdb_columns()
WHERE column_name = 'job' AND database_name = current_database() AND schema_name = current_schema()
"""
_KNOWN = "SELECT lower(table_name) FROM duckdb_tables() UNION SELECT lower(view_name) FROM duckdb_views()"
_QUALIFIERS = """
SELECT lower(unnest(['', 'system', current_database(), 'information_schema', 'pg_catalog']))
UNION SELECT lower(schema_name) FROM duckdb_schemas() WHERE database_name = current_database()
"""
"""Catalogs and schemas that a query may name. DuckLake attaches others, with all that is in PostgreSQL."""
_INTERNAL = re.compile("duckdb_|pg_|pragma_|sqlite_")
"""Beginnings of the names of DuckDB's own views; some have settings, or the address of what is attached."""
_VIEWS = _words(
    "columns constraint_column_usage constraint_table_usage key_column_usage referential_constraints schemata"
    " table_constraints tables views"
    " duckdb_columns duckdb_constraints duckdb_schemas duckdb_tables duckdb_types duckdb_views"
    " pg_attribute pg_class pg_description pg_namespace pg_tables pg_type pg_views"
)
"""Of DuckDB's own views, those that have names and types alone."""
REFUSED_FUNCTIONS = _words(
    # They change something, wait, read the environment, settings or memory, or run text as SQL.
    "current_setting nextval currval setval setseed write_log sleep_ms pg_sleep getenv stats vector_type"
    " query query_table json_execute_serialized_sql json_serialize_plan json_deserialize_sql"
)
VOLATILE_FUNCTIONS = _words(
    "random uuid uuidv4 uuidv7 gen_random_uuid error current_connection_id current_query current_query_id"
    " current_transaction_id"
)
"""Functions that DuckDB calls volatile and that change nothing."""

_SPACE = r"(?:\s|--[^\n]*(?:\n|$)|(?>/\*.*?\*/))*+"
_OPTION = rf"{_SPACE}(?:ANALYZE|FORMAT{_SPACE}\w+){_SPACE}"


@cache
def _explain() -> re.Pattern[str]:
    """Compile the pattern of an EXPLAIN, once one is asked: that takes 30 ms."""
    return re.compile(
        rf"{_SPACE}EXPLAIN\b{_SPACE}(?P<options>\({_OPTION}(?:,{_OPTION})*\)|ANALYZE\b)?{_SPACE}(?P<body>.*)",
        re.IGNORECASE | re.DOTALL,
    )


def checked(connection: Any, sql: str, jobs: Sequence[str] = ()) -> str:
    """Return the text to run in place of ``sql``. It may take much time and memory: limit both.

    ``jobs``: patterns such as ``team-a-*``, whose rows alone are read; none: all. Raises RefusedError: it is
    not one statement that only reads. duckdb.Error: it is not SQL.
    """
    kind = _kind(connection, sql)
    if kind == "SELECT":
        parts = _check_tree(connection, sql)
        return _narrowed(connection, sql, parts, jobs) if jobs else sql
    if jobs:
        raise _refusal(f"{kind} is not allowed to a key of some jobs", "Ask one SELECT.")
    if kind != "EXPLAIN" or (explain := _explain().fullmatch(sql)) is None:
        raise _refusal(f"{kind} is not allowed, the archive is only read here")
    body, options = explain["body"], explain["options"] or ""
    if (explained := _kind(connection, body)) != "SELECT":
        raise _refusal(f"EXPLAIN of {explained} is not allowed, only of a SELECT")
    _check_tree(connection, body)
    # The text is put together again: what is run is what was checked, however the rest was written.
    analyze = "ANALYZE " if re.search(r"\bANALYZE\b", options, re.IGNORECASE) else ""
    return f"EXPLAIN {analyze}{body}"


def _kind(connection: Any, sql: str) -> str:
    try:
        kinds = [str(statement.type.name) for statement in connection.extract_statements(sql)[:2]]
    except ValueError:
        raise _refusal("this statement is not allowed, the archive is only read here") from None
    match kinds:
        case ["MULTI"]:  # DuckDB makes several statements of it, and says of none what stands in its tree
            raise _refusal("a PIVOT whose values are not named creates a type first", PIVOT_CURE)
        case [kind]:
            return kind
        case []:
            raise _refusal("there is no statement in it")
        case _:
            raise _refusal("it has several statements")


def _check_tree(connection: Any, sql: str) -> list[dict[str, Any]]:
    """Refuse what is not allowed. Return what reads: tables, views and table functions."""
    [(text,)] = connection.execute(
        "SELECT json_serialize_sql($1, skip_null := true, skip_empty := true)::VARCHAR", [sql]
    ).fetchall()
    try:
        tree = json.loads(text)
    except RecursionError:
        raise _refusal("it is nested too deeply") from None
    if tree["error"]:
        raise _refusal(str(tree["error_message"]))
    parts: list[Any] = [tree["statements"]]
    qualifiers: frozenset[str] | None = None
    reading: list[dict[str, Any]] = []
    while parts:
        match parts.pop():
            case list(members):
                parts += members
            case dict(part):
                _check_part(part)
                if part.get("type") in ("BASE_TABLE", "SHOW_REF", "TABLE_FUNCTION") and "class" not in part:
                    reading.append(part)
                if part.get("type") in ("BASE_TABLE", "SHOW_REF"):
                    qualifiers = qualifiers or _qualifiers(connection)
                    _check_name(part, qualifiers)
                parts += part.values()
            case _:
                pass  # a name, a figure or a text
    return reading


def _narrowed(connection: Any, sql: str, reading: Sequence[dict[str, Any]], jobs: Sequence[str]) -> str:
    """Return a statement that finds the rows of these jobs alone. Raises RefusedError: it reads others."""
    of_jobs, known = (
        {name for (name,) in connection.execute(query).fetchall()} for query in (_OF_JOBS, _KNOWN)
    )
    named = set[str]()
    for part in reading:
        match part["type"]:
            case "BASE_TABLE" if not any(
                part.get(key) for key in ("catalog_name", "schema_name", "at_clause")
            ):
                name = str(part["table_name"]).lower()
                if name in known and name not in of_jobs:
                    raise _refusal(f"{name} is not of single jobs", _jobs_cure(of_jobs))
                named |= {name} & of_jobs
            case "TABLE_FUNCTION" if part["function"]["function_name"].lower() in _PURE_FUNCTIONS:
                pass
            case _:
                raise _refusal("it reads more than tables of jobs", _jobs_cure(of_jobs))
    if not named:
        return sql
    [(whole,)] = connection.execute("SELECT json_deserialize_sql(json_serialize_sql($1))", [sql]).fetchall()
    these = " OR ".join(f"job GLOB {quoted(job)}" for job in jobs)
    rows = [f"{name} AS (SELECT * FROM {name} WHERE {these})" for name in sorted(named)]  # noqa: S608  (ours)
    return f"WITH {', '.join(rows)} FROM ({whole})"


def _jobs_cure(of_jobs: Iterable[str]) -> str:
    return f"Ask one SELECT on {', '.join(sorted(of_jobs))}, without a schema before the name."


def _check_part(part: dict[str, Any]) -> None:
    kind = part.get("type")
    if isinstance(kind, str) and "class" not in part and kind not in _NODES and not kind.endswith("_INFO"):
        raise _refusal(f"{kind.removesuffix('_QUERY_NODE')} is not allowed, the archive is only read here")
    if isinstance(name := part.get("function_name"), str) and name.lower() in REFUSED_FUNCTIONS:
        raise _refusal(f"{name} is not allowed here")
    if kind == "BASE_TABLE" and re.search(r"[./\\*:]", str(part.get("table_name"))):
        raise _refusal(f"{part['table_name']} is no table, and files are not allowed here")
    if kind == "TABLE_FUNCTION" and "class" not in part:
        name = str(part["function"].get("function_name"))
        if name.lower() not in _TABLE_FUNCTIONS:
            raise _refusal(f"{name} is not allowed here")


def _qualifiers(connection: Any) -> frozenset[str]:
    return frozenset(name for (name,) in connection.execute(_QUALIFIERS).fetchall())


def _check_name(part: dict[str, Any], qualifiers: frozenset[str]) -> None:
    """Refuse what is neither ours nor a listed view of DuckDB's. DuckDB ignores the case of a name."""
    catalog, schema, table = (
        str(part.get(place, "")).lower() for place in ("catalog_name", "schema_name", "table_name")
    )
    if not qualifiers.issuperset((catalog, schema)):
        named = schema if catalog in qualifiers else catalog
        raise _refusal(f"{named} is not allowed here, only the tables of the archive")
    if (schema == "information_schema" or _INTERNAL.match(table)) and table not in _VIEWS:
        raise _refusal(f"{part['table_name']} is not allowed here")


def _refusal(why: str, cure: str = CURE) -> RefusedError:
    return RefusedError(f"query: could not be answered: {why}. {cure}")
