"""The page of figures: tables of runs to medians with spread, sections, sentences of README. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_SECTION = re.compile(r"^## `(.+?)`\n", re.MULTILINE)


@dataclass(frozen=True)
class Table:
    """One table that a benchmark printed."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Place:
    """One cell: the row that has all these values, by column, and its column."""

    title: str
    """The title of the table begins so."""
    row: Mapping[str, str]
    column: str


@dataclass(frozen=True)
class Quote:
    """A sentence of README: its fields are cells of the section of one benchmark."""

    benchmark: str
    text: str
    cells: Mapping[str, Place]


def read_tables(printed: str) -> list[Table]:
    """Return the Markdown tables in what a benchmark printed, with the heading before each."""
    found, title, rows = [], "", list[tuple[str, ...]]()
    for line in [*printed.splitlines(), ""]:
        if line.startswith("#"):
            title = line.lstrip("# ").strip()
        if line.startswith("|"):
            rows.append(tuple(cell.strip() for cell in line.strip().strip("|").split("|")))
        elif rows:
            head, _, *body = rows
            found.append(Table(title, head, tuple(body)))
            rows = []
    return found


def merged(runs: Sequence[Sequence[Table]]) -> list[Table]:
    """Return the tables of one run, with medians and the spread over all runs.

    A table that another run did not print in the same form has the figures of the first run alone.
    """
    first, *others = runs
    tables = []
    for at, table in enumerate(first):
        same = [table, *(other[at] for other in others if at < len(other) and _alike(other[at], table))]
        rows = tuple(
            tuple(merged_cell([each.rows[row][column] for each in same]) for column in range(len(table.head)))
            for row in range(len(table.rows))
        )
        tables.append(Table(table.title, table.head, rows))
    return tables


def _alike(one: Table, other: Table) -> bool:
    return one.head == other.head and len(one.rows) == len(other.rows)


def merged_cell(texts: Sequence[str]) -> str:
    """Return the median of a figure over runs, with least and most: ``4.1 us (4.0 to 4.4)``.

    Cells that differ in more than their numbers are shown as the first run has them.
    """
    forms = {_NUMBER.sub("#", text) for text in texts}
    if len(set(texts)) == 1 or len(forms) > 1:
        return texts[0]
    numbers = [_NUMBER.findall(text) for text in texts]
    medians, spreads = [], []
    for place in range(len(numbers[0])):
        of_runs = sorted((each[place] for each in numbers), key=_value)
        medians.append(median_low([(_value(text), text) for text in of_runs])[1])
        spreads.append(of_runs[0] if _same(of_runs) else f"{of_runs[0]} to {of_runs[-1]}")
    parts = iter(medians)
    return f"{_NUMBER.sub(lambda _: next(parts), texts[0])} ({'; '.join(spreads)})"


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def _same(texts: Sequence[str]) -> bool:
    return _value(texts[0]) == _value(texts[-1])


def write_tables(tables: Sequence[Table]) -> str:
    """Return tables as Markdown, each with its title in bold."""
    parts = []
    for table in tables:
        lines = [f"**{table.title}**\n", _line(table.head), "|" + "---|" * len(table.head)]
        parts.append("\n".join([*lines, *map(_line, table.rows)]) + "\n")
    return "\n".join(parts)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def sections(page: str) -> dict[str, str]:
    """Return the sections of a page of figures, by benchmark."""
    parts = _SECTION.split(page)[1:]
    return {name: text.strip() + "\n" for name, text in zip(parts[::2], parts[1::2], strict=True)}


def quoted(quotes: Sequence[Quote], found: Mapping[str, str]) -> list[str]:
    """Return the sentences whose cells are known, in their order. The spread of a figure is left out."""
    sentences = []
    for quote in quotes:
        tables = read_tables(found.get(quote.benchmark, "").replace("**", "# "))
        cells = {name: _cell(tables, place) for name, place in quote.cells.items()}
        if None not in cells.values():
            sentences.append(quote.text.format(**cells))
    return sentences


def _cell(tables: Sequence[Table], place: Place) -> str | None:
    for table in tables:
        if not table.title.startswith(place.title) or place.column not in table.head:
            continue
        for row in table.rows:
            cells = dict(zip(table.head, row, strict=True))
            if all(cells.get(column) == value for column, value in place.row.items()):
                return re.sub(r" \(.*\)$", "", cells[place.column])
    return None


def between(text: str, begin: str, end: str, inner: str) -> str:
    """Return a text with what stands between two marks replaced. Raises ValueError if they are not there."""
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"could not find {begin} ... {end}")
    return f"{before}{begin}{inner}{end}{after}"
