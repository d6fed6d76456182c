"""Arrow tables that SQL reads by name.

A name is registered once for each schema, and then given another table: DuckDB asks a lake's catalog at each
registration, and one within a transaction is rolled back with it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from analyzers.archive.opening import Connection


class _Slot:
    """A table that is another one each time; DuckDB asks for its stream when it reads it."""

    def __init__(self, schema: pa.Schema) -> None:
        self.empty = schema.empty_table()
        self.table = self.empty

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


class IncomingTables:
    """The names of one connection. For the thread that writes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._slots: dict[str, _Slot] = {}

    @contextmanager
    def named(self, tables: Mapping[str, pa.Table]) -> Iterator[None]:
        """Let SQL read tables as ``incoming_NAME``. Not within a transaction: it could be rolled back."""
        try:
            for name, table in tables.items():
                slot = self._slots.get(name)
                if slot is None or slot.empty.schema != table.schema:
                    slot = _Slot(table.schema)
                    self._connection.register(f"incoming_{name}", slot)
                    self._slots[name] = slot
                slot.table = table
            yield
        finally:
            for name in tables.keys() & self._slots.keys():
                self._slots[name].table = self._slots[name].empty
