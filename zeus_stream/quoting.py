"""Texts as SQL has them, and as CSV files do: there a spreadsheet runs none as a formula."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

FORMULA = r"^[=+\-@\t\r\n]"
"""A spreadsheet takes a text that begins so for a formula."""


def quoted(text: object) -> str:
    """Return a text, or a path, in single quotes."""
    return "'" + str(text).replace("'", "''") + "'"


def quoted_list(texts: Iterable[str]) -> str:
    """Return texts as a list, without brackets."""
    return ", ".join(map(quoted, texts)) or "NULL"


def without_formulas(table: "pa.Table") -> "pa.Table":
    """Return a table with a ``'`` before each text that is a formula."""
    import pyarrow as pa  # noqa: PLC0415  (a host that only collects has none)
    import pyarrow.compute as pc  # noqa: PLC0415

    def guarded(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
        if pa.types.is_dictionary(column.type):
            column = column.cast(pa.string())
        if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
            return column
        texts = column.cast(pa.string())
        return pc.if_else(
            pc.match_substring_regex(texts, FORMULA), pc.binary_join_element_wise("'", texts, ""), texts
        )

    names = guarded(pa.chunked_array([pa.array(table.column_names, pa.string())])).to_pylist()
    return pa.Table.from_arrays(list(map(guarded, table.columns)), names=names)
