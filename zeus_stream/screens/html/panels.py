"""Parts of a page: a drawing, its text alternative and its data as a table. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from zeus_stream.questions.asking import Asking, Row, Rows
from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.svg.bars import bar
from zeus_stream.screens.text.words import WORDS
from zeus_stream.views.quantity import (
    ABSENT,
    Quantity,
    figure,
    in_one_unit,
    joules,
    percent,
    seconds,
    watts,
    with_half,
)

SHOWN = 60
"""Rows of a table on a page; all are in the data of the report and behind the link to SQL."""
CSV_ROWS = 1000
"""Rows of the data of a panel in a file that stands alone."""
OPEN_ROWS = 6
"""Rows of a table that is shown at once, if it is all that a panel has."""
LONG = 42
"""Letters of a text that may be broken into lines."""
Cell = Callable[[Any], str | Markup]
Columns = Mapping[str, tuple[str, Cell]]
"""Heading and format, by the name of a column."""


class PagePanel(Struct, frozen=True, kw_only=True):
    """One part of a page."""

    name: str
    """Its anchor."""
    title: str
    body: Markup
    text: str
    """What the drawing shows, in words."""
    rows: Rows = ()
    """The data of the drawing."""
    columns: Columns | None = None
    """Heading and format by column of ``rows``. None: the table is the body."""
    charts: Mapping[str, Markup] = field(default_factory=dict)
    """Drawings by name, for files of their own."""
    half: bool = False
    """Two of them stand side by side on a wide screen."""


def plain(value: object) -> str:
    """Format any value of the archive: a number without noise, a time to the second."""
    match value:
        case None:
            return ABSENT
        case bool():
            return "yes" if value else "no"
        case float():
            return figure(value, digits=5) if abs(value) < 1e5 else f"{value:,.0f}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case _:
            return str(value)


def quantity(value: Quantity) -> str:
    """Format a figure with its unit."""
    return str(value)


def figures(text: str) -> str:
    """Format a figure that is text already."""
    return text


_OF_QUANTITIES = (figure, figures, joules, percent, quantity, seconds, watts, with_half)
"""What they format is aligned to the right, and so is a column of theirs that has no value yet."""


def _cells(values: Sequence[Any], form: Cell) -> Sequence[str | Markup]:
    """Return the cells of a column. Energies and durations of one column have one unit."""
    if form is joules or form is seconds:
        return in_one_unit(values, "J" if form is joules else "s")
    if form is quantity and {value.unit for value in values} in ({"J"}, {"s"}):
        return in_one_unit([value.known for value in values], values[0].unit)
    return [form(value) for value in values]


def table(rows: Iterable[Row], columns: Columns, caption: str = "", minor: Collection[str] = ()) -> Markup:
    """Return a table; cells of numbers are aligned to the right, rows with a true ``old`` are grey.

    ``caption``: for those who do not see it. ``minor``: columns that a phone leaves out.
    """
    listed = list(rows)
    classes = {
        name: " ".join(filter(None, [
            "n" if form in _OF_QUANTITIES else _class_of([row[name] for row in listed]),
            "minor" if name in minor else "",
        ])) or None
        for name, (_, form) in columns.items()
    }  # fmt: skip
    cells = {name: _cells([row[name] for row in listed], form) for name, (_, form) in columns.items()}
    head = [
        element("th", title, scope="col", class_=classes[name], title=_meaning(title))
        for name, (title, _) in columns.items()
    ]
    body = [
        element(
            "tr",
            [
                element("td", cells[name][at], class_=classes[name], title=_meaning(row[name]))
                for name in columns
            ],
            class_="old" if row.get("old") else None,
        )
        for at, row in enumerate(listed)
    ]
    heading = element("caption", caption, class_="hidden") if caption else None
    inner = element("table", heading, element("thead", element("tr", head)), element("tbody", body))
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption or "table")


def _meaning(word: object) -> str | None:
    """Return what a word of ours means, to be shown over it. None: it is none of `WORDS`."""
    return WORDS.get(word) if isinstance(word, str) else None


def _class_of(values: Sequence[object]) -> str | None:
    """Return the class of a column: ``n`` for numbers, ``long`` for texts that need several lines."""
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return "n"
    texts = [value for value in known if isinstance(value, str) and not isinstance(value, Markup)]
    return "long" if any(len(text) > LONG for text in texts) else None


def bars(rows: Rows, name: str, title: str, more: Columns) -> Markup:
    """Return a table with the energy of each row as a bar and as text."""
    most = max((row["energy_j"] or 0 for row in rows), default=0)
    drawn = [
        {**row, "bar": bar(row["energy_j"] / most) if row["energy_j"] and most else Markup("")}
        for row in rows
    ]
    columns: Columns = {name: (title, _text), "bar": ("", as_is), "energy_j": ("energy", joules), **more}
    return table(drawn, columns, title.capitalize())


def as_is(value: Markup) -> Markup:
    return value


def _text(value: object) -> str | Markup:
    return value if isinstance(value, Markup) else plain(value)


class TablePanel(Struct, frozen=True, kw_only=True):
    """A panel that is one query, drawn as one table."""

    name: str
    """Its anchor."""
    title: str
    sql: str
    columns: Columns
    bars: tuple[str, str] | None = None
    """Column and heading of the names beside bars of ``energy_j``. None: there are no bars."""
    text: str = ""
    made: Mapping[str, Callable[[Row, str], object]] = field(default_factory=dict)
    """Cells that are made of a row and of the way to the root of the site: links."""
    half: bool = False

    def ask(self, up: str | None = "", **given: object) -> Asking[PagePanel | None]:
        """Ask the query with its arguments, and draw the answer. ``up``: to the root; None: without links."""
        rows = yield self.sql.format(limit=SHOWN, **given)
        if not rows:
            return None
        made = {} if up is None else self.made
        drawn = [{**row, **{name: make(row, up or "") for name, make in made.items()}} for row in rows]
        if self.bars is None:
            body = table(drawn, self.columns, self.title)
        else:
            body = bars(drawn, *self.bars, self.columns)
        return PagePanel(
            name=self.name, title=self.title, body=body, text=self.text, rows=rows, half=self.half
        )


def facts(pairs: Iterable[tuple[str, str | Markup, str | Markup]]) -> Markup:
    """Return figures with their names below and a note: the first thing a person reads."""
    items = [
        element(
            "div",
            element("dt", name, title=_meaning(name)),
            element("dd", value, class_="value"),
            element("dd", note, class_="note") if note else None,
        )
        for name, value, note in pairs
    ]
    return element("dl", *items, class_="facts")


def section(panel: PagePanel, sql: Sequence[str] | None = None) -> Markup:
    """Return a panel as a section of a page.

    ``sql``: for a file that stands alone, which has these queries and all rows as CSV. None: for a page.
    """
    parts: list[Markup | None] = [element("h2", panel.title), panel.body]
    if panel.text:
        parts.append(element("p", panel.text, class_="caption"))
    if panel.rows and panel.columns is not None:
        shown = panel.rows[:SHOWN]
        more = f", the first {SHOWN} of {len(panel.rows)} rows" if len(panel.rows) > SHOWN else ""
        whole = not panel.body and len(shown) <= OPEN_ROWS
        drawn = table(shown, panel.columns, panel.title)
        parts.append(element("details", element("summary", f"Table{more}"), drawn, open=whole))
    if panel.rows and sql is not None:
        data = element("pre", csv_text(panel.rows[:CSV_ROWS]), tabindex="0")
        if len(panel.rows) > CSV_ROWS:
            cut = f"The first {CSV_ROWS} of {len(panel.rows)} rows; the SQL gives all of them."
            data = Markup(data + element("p", cut, class_="caption"))
        queries = [element("pre", element("code", query), tabindex="0") for query in sql]
        parts.append(element("details", element("summary", "Data as CSV, and its SQL"), data, queries))
    return element("section", *parts, id=panel.name, class_="panel half" if panel.half else "panel")


def csv_text(rows: Rows) -> str:
    """Return rows as CSV. A missing value is empty."""
    if not rows:
        return ""
    lines = [",".join(rows[0])]
    lines += [",".join(_csv(value) for value in row.values()) for row in rows]
    return "\n".join(lines)


def _csv(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.7g}" if isinstance(value, float) else str(value)
    if isinstance(value, str) and text[:1] in set("=+-@\t\r"):
        text = "'" + text
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n\r') else text
