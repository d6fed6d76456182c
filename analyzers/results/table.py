"""The table of a row class: its name, its key, and columns that the archive computes. Pure.

A row class is a keyword-only struct with ``TABLE``. Its fields are the columns. A string after a field
describes the field, and those after it that have no string of their own.
"""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Struct

_TYPES: dict[Any, str] = {int: "BIGINT", float: "DOUBLE", str: "VARCHAR", bool: "BOOLEAN", bytes: "BLOB"}


class Computed(Struct, frozen=True):
    """A column that no row has: the archive computes it."""

    name: str
    after: str
    """The column before it."""
    of: str = ""
    """SQL for ns since 1970, of which it is the time. Empty: it comes in another way."""
    help: str = ""
    """Empty: the description before it is of this column too."""
    sql_type: str = "TIMESTAMP"


class Table(Struct, frozen=True):
    """The table of a row class."""

    name: str
    key: tuple[str, ...]
    replaces: bool = True
    """A later row of the same key may come at any time and replaces the earlier one. False: only when the
    stream is interpreted again, so that storing a row is faster."""
    computed: tuple[Computed, ...] = ()


def columns(kind: Any) -> Iterator[tuple[str, str]]:
    """Yield name and SQL type of each column of a row class, in order."""
    table: Table = kind.TABLE
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        yield name, sql_type(hints[name])
        yield from _computed(table, name)


def _computed(table: Table, after: str) -> Iterator[tuple[str, str]]:
    for each in table.computed:
        if each.after == after:
            yield each.name, each.sql_type
            yield from _computed(table, each.name)


def sql_type(hint: Any) -> str:
    """Return the SQL type of a field's type. `Annotated` may name another, such as ``INTEGER``."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return str(args[1])
    if origin is Literal:
        return "VARCHAR"
    if origin is types.UnionType:
        [part] = [arg for arg in args if arg is not types.NoneType]
        return sql_type(part)
    if origin is tuple:
        return f"{sql_type(args[0])}[]"
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        parts = ", ".join(f"{name} {sql_type(part)}" for name, part in get_type_hints(hint).items())
        return f"STRUCT({parts})"
    return _TYPES[hint]


def create_table(kind: Any) -> str:
    parts = ",\n".join(f"    {quoted(name)} {type_}" for name, type_ in columns(kind))
    return f"CREATE TABLE {kind.TABLE.name} (\n{parts}\n);\n"


def quoted(name: str) -> str:
    return f'"{name}"'
