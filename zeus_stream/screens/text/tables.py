"""Tables, states and checks as text for people, and as csv, json or arrow for programs."""

import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TextIO

from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from zeus_stream.errors import printable
from zeus_stream.quoting import without_formulas

if TYPE_CHECKING:
    import pyarrow as pa

    from zeus_stream.protocol.queries import Status

Form = Literal["table", "csv", "json", "arrow"]
SHOWN = 1_000
"""Rows that a table for people shows. Programs get all."""
WIDE = 100_000
"""Width, in characters, of output that is not a terminal: a pipe or a file is never folded."""
ABSENT = "-"
DIGITS = 5
"""Significant digits of the largest value of a column."""


class Check(Struct, frozen=True):
    """One check of the doctor. ``cure`` is empty if nothing has to be done."""

    verdict: Literal["works", "warns", "fails"]
    what: str
    says: str
    cure: str = ""


class _Printable(Struct, frozen=True):
    """Something to be printed, without control characters: an archive may be from anywhere."""

    content: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self.content, options):
            yield Segment(text if control else printable(text, keep="\n"), style, control)


class _Clean(RenderHook):
    """Makes all that a console prints printable."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Printable(each) for each in renderables]


def console_of(out: TextIO, *, wide: bool = False) -> Console:
    """Return a console without control characters. ``wide``: it folds nothing for a pipe or a file."""
    console = Console(file=out, highlight=False, width=WIDE if wide and not out.isatty() else None)
    console.push_render_hook(_Clean())
    return console


def print_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    """Print names with their texts beside them."""
    grid = Table.grid(padding=(0, 3))
    for name, text in facts:
        grid.add_row(Text(name, style="bold"), Text(text))
    console.print(grid)


def print_rows(console: Console, heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """Print cells under their heads; columns from number ``left`` on are aligned to the right.

    Where the console is too narrow the last columns are left out: no figure is cut.
    """
    cells, unbounded = list(rows), console.options.update(width=10_000)
    for count in range(len(heads), 0, -1):
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for number, head in enumerate(heads[:count]):
            table.add_column(head, justify="left" if number < left else "right", no_wrap=True)
        for row in cells:
            table.add_row(*map(Text, row[:count]))
        if console.measure(table, options=unbounded).maximum <= console.width:
            break
    console.print(table)


def write_text(text: str, out: TextIO) -> None:
    """Write text for programs; a terminal receives no control character of it."""
    out.write(printable(text, keep="\n") if out.isatty() else text)


def write(table: "pa.Table", form: Form, out: TextIO) -> None:
    """Write a table. ``arrow`` is an IPC stream; csv and json are UTF-8; a missing value is empty or null.

    A terminal receives no control character; a program receives each value as it is, but in csv no formula.
    """
    if form == "table":
        _show(_named(table), console_of(out, wide=True))
    elif form == "arrow":
        out.buffer.write(arrow(table))
    else:
        written = csv(table) if form == "csv" else json_rows(table)
        if out.isatty():
            write_text(written.decode(), out)
        else:
            out.flush()
            out.buffer.write(written)
    out.flush()


def csv(table: "pa.Table") -> bytes:
    """Return a table as CSV, without formulas."""
    import pyarrow as pa  # noqa: PLC0415  (a host that only collects has none)
    import pyarrow.csv  # noqa: PLC0415

    named, out = _named(table), io.BytesIO()
    columns = list(map(_flat, named.columns))
    pa.csv.write_csv(without_formulas(pa.Table.from_arrays(columns, names=named.column_names)), out)
    return out.getvalue()


def json_rows(table: "pa.Table") -> bytes:
    """Return a table as a list of objects in JSON, a line each."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in plain_rows(table))
    return f"[{lines}]\n".encode()


def plain_rows(table: "pa.Table") -> list[dict[str, Any]]:
    """Return the rows of a table as JSON can hold them, each column with a name of its own."""
    return [{name: plain(value) for name, value in row.items()} for row in _named(table).to_pylist()]


def arrow(table: "pa.Table") -> bytes:
    """Return a table as an IPC stream of Arrow."""
    import pyarrow as pa  # noqa: PLC0415  (a host that only collects has none)

    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return out.getvalue()


def _named(table: "pa.Table") -> "pa.Table":
    """Add a number to each repeated column name: JSON needs unique names."""
    return table.rename_columns(unique(table.column_names))


def unique(names: Sequence[str]) -> list[str]:
    """Return column names, repeated ones with a number."""
    again = [sum(earlier == name for earlier in names[:place]) for place, name in enumerate(names)]
    return [f"{name}_{count + 1}" if count else name for name, count in zip(names, again, strict=True)]


def _flat(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Convert a column for csv: lists and structs to JSON, bytes to hexadecimal, durations to text."""
    import pyarrow as pa  # noqa: PLC0415

    kinds = (pa.types.is_nested, pa.types.is_binary, pa.types.is_duration, pa.types.is_interval)
    if any(is_kind(column.type) for is_kind in kinds):
        texts = [None if value is None else _text(plain(value)) for value in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    return column


def plain(value: Any) -> Any:
    """Convert a value for JSON: no NaN, times in ISO 8601, bytes in hexadecimal."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int() | str():
            return value
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case bytes():
            return value.hex()
        case list():
            return [plain(item) for item in value]
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case _ if hasattr(value, "isoformat"):
            return value.isoformat()
        case _:
            return str(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _show(table: "pa.Table", console: Console) -> None:
    """Print one line per row if all columns fit the terminal, else one block per row."""
    columns = [_cells(column[:SHOWN]) for column in table.columns]
    grid = Table(box=SIMPLE_HEAD, show_edge=False)
    for name, (_, justify) in zip(table.column_names, columns, strict=True):
        grid.add_column(Text(name), justify=justify, no_wrap=True)
    rows = list(zip(*(cells for cells, _ in columns), strict=True))
    for row in rows:
        grid.add_row(*map(Text, row))
    if console.measure(grid, options=console.options.update(max_width=WIDE)).maximum <= console.width:
        console.print(grid)
    else:
        _show_records(table.column_names, rows, console)
    if table.num_rows > SHOWN:
        console.print(f"The first {SHOWN} of {table.num_rows} rows. --format csv writes all of them.")
    elif table.num_rows == 0:
        console.print("No rows.")


def _show_records(names: Sequence[str], rows: Iterable[Sequence[str]], console: Console) -> None:
    for number, row in enumerate(rows, 1):
        grid = Table.grid(padding=(0, 2))
        for name, cell in zip(names, row, strict=True):
            grid.add_row(Text(name, style="bold"), Text(cell))
        console.rule(str(number), align="left", style="dim")
        console.print(grid)


def _cells(column: "pa.ChunkedArray") -> tuple[list[str], Literal["left", "right"]]:
    """Format the values of a column, and return the side they align to."""
    import pyarrow as pa  # noqa: PLC0415

    values = column.to_pylist()
    if pa.types.is_floating(column.type):
        places = decimals(values)
        return [figure(value, places) for value in values], "right"
    numeric = pa.types.is_integer(column.type) or pa.types.is_decimal(column.type)
    return [_cell(value) for value in values], "right" if numeric else "left"


def _cell(value: Any) -> str:
    match value:
        case None:
            return ABSENT
        case Decimal():
            return str(value)
        case datetime():
            instant = value if value.tzinfo is None else value.astimezone(UTC)
            return f"{instant:%Y-%m-%d %H:%M:%S}.{instant.microsecond // 1000:03d}"
        case _:
            return _text(plain(value))


def figure(value: float | None, places: int) -> str:
    """Format a number with this many decimals. One that would round to 0 keeps its magnitude."""
    if value is None or math.isnan(value):
        return ABSENT
    return f"{value:.1g}" if 0 < abs(value) < 0.5 * 10**-places else f"{value:.{places}f}"


def decimals(values: Iterable[float | None]) -> int:
    """Return the number of decimals that shows DIGITS significant digits of the largest value."""
    largest = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0)
    return min(max(DIGITS - 1 - math.floor(math.log10(largest)), 0), 9) if largest else 0


def print_status(process: str, status: "Status", out: TextIO) -> None:
    """Print the internal state of one process, one block per section."""
    console = console_of(out)
    console.print(Text(process, style="bold"))
    for section, rows in groupby(status.rows, key=lambda row: row[0]):
        grid = Table.grid(padding=(0, 2))
        for _, name, value in rows:
            grid.add_row("", Text(name), Text(value))
        console.print(Text(f"  {section}", style="cyan"))
        console.print(grid)


def print_checks(checks: Iterable[Check], out: TextIO) -> None:
    """Print the checks of the doctor, each with its cure."""
    console = console_of(out)
    colours = {"works": "green", "warns": "yellow", "fails": "red"}
    grid = Table.grid(padding=(0, 2))
    for check in checks:
        says = Text(check.says)
        if check.cure:
            says.append(f"\n{check.cure}", style="bold")
        grid.add_row(Text(check.verdict, style=colours[check.verdict]), Text(check.what), says)
    console.print(grid)
