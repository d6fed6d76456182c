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


COMPUTED = {
    "tries": "SELECT *, make_timestamp(began_wall_ns // 1000) AS began_at,"
    " make_timestamp(ended_wall_ns // 1000) AS ended_at FROM incoming_tries",
    "sessions": "SELECT * REPLACE (coalesce(start, (SELECT starts FROM meta)) AS start),"
    " utc(began_wall_ns, began_ns, began_ns) AS began_at, utc(began_wall_ns, began_ns, ended_ns) AS ended_at"
    " FROM incoming_sessions",
    "budgets": "SELECT *, make_timestamp(set_ns // 1000) AS set_at,"
    " make_timestamp(begin_ns // 1000) AS began_at, make_timestamp(end_ns // 1000) AS ended_at"
    " FROM incoming_budgets",
    "budget_targets": "SELECT *, make_timestamp(target_ns // 1000) AS target_at FROM incoming_budget_targets",
    "signals": "SELECT *, make_timestamp(begin_ns // 1000) AS begins_at,"
    " make_timestamp(end_ns // 1000) AS ends_at FROM incoming_signals",
    "allocations": "SELECT *, make_timestamp(began_wall_ns // 1000) AS began_at,"
    " make_timestamp(ended_wall_ns // 1000) AS ended_at FROM incoming_allocations",
    "own_use": "SELECT *, make_timestamp(began_wall_ns // 1000) AS began_at,"
    " make_timestamp(ended_wall_ns // 1000) AS ended_at FROM incoming_own_use",
    "windows": "SELECT incoming.*, utc(runs.began_wall_ns, runs.began_ns, incoming.begin_ns) AS began_at"
    " FROM incoming_windows AS incoming LEFT JOIN sessions AS runs USING (session)",
}
"""How the archive computes columns that no row has, by table."""
