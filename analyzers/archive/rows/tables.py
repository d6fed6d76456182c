"""The tables of derived rows. The registry is `Row`: a class that is part of it has a table.

A new table is a row class with ``TABLE`` in `analyzers/results`, and its name in `Row`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, get_args

from analyzers.results.rows import Row, RunRow
from analyzers.results.table import Table

KINDS: tuple[type[Row], ...] = tuple(sorted(get_args(Row), key=lambda kind: kind is not RunRow))
"""Row classes. Runs come first: windows take their UTC from them."""
TABLES: Mapping[type[Row], Table] = {kind: kind.TABLE for kind in KINDS}
"""The table of each row class."""
COLUMNS: Mapping[type[Row], tuple[str, ...]] = {kind: kind.__struct_fields__ for kind in KINDS}
"""The columns of each row class that its rows have."""


_VALUES_OF = {kind: attrgetter(*names) for kind, names in COLUMNS.items()}
Values = dict[type[Row], list[tuple[Any, ...]]]
"""By row class, the values of its rows in the order of `COLUMNS`."""


def values_of(rows: Iterable[Row]) -> Values:
    values: Values = defaultdict(list)
    for row in rows:
        values[type(row)].append(_VALUES_OF[type(row)](row))
    return values


_SOURCES = {
    "sessions": "(SELECT * REPLACE (coalesce(start, (SELECT starts FROM meta)) AS start)"
    " FROM incoming_sessions) AS incoming",
    "windows": "incoming_windows AS incoming"
    " LEFT JOIN (SELECT session, began_wall_ns, began_ns FROM sessions) USING (session)",
}


def insertion(table: Table) -> str:
    """Return SQL that inserts ``incoming_NAME`` into a table, with the columns that the archive computes."""
    source = _SOURCES.get(table.name, f"incoming_{table.name} AS incoming")
    computed = [f", make_timestamp(({each.of}) // 1000) AS {each.name}" for each in table.computed if each.of]
    return f"INSERT INTO {table.name} BY NAME SELECT incoming.*{''.join(computed)} FROM {source}"  # noqa: S608  (ours)
