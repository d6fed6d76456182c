"""The SQL box: a query in the address, its answer as a table, its downloads."""

from collections.abc import AsyncIterator
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from zeus_stream.errors import ZeusStreamError
from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.html.panels import plain, table
from zeus_stream.screens.text.tables import unique
from zeus_stream.screens.web import page_frame
from zeus_stream.screens.web.routes.site import Site, site_of, streamed

SHOWN = 500
"""Rows of an answer on the page; a download has all of them."""
FORMATS = ("csv", "json", "arrow", "parquet")
EXAMPLES = {
    "steps that took the most energy": (
        "SELECT run, step, duration_s, energy_j, power_limit_w\nFROM steps WHERE energy_j IS NOT NULL\n"
        "ORDER BY energy_j DESC LIMIT 10"
    ),
    "energy of each epoch": (
        "SELECT run, epoch, duration_s, energy_j, energy_j / duration_s AS power_w\n"
        "FROM epochs ORDER BY began_at"
    ),
    "what each run saved": (
        "SELECT run, job, power_limit_w, energy_saved_percent, time_added_percent, saved_j\nFROM savings"
    ),
    "what is missing": "SELECT host, what, reason, sum(count) AS missing\nFROM gaps GROUP BY ALL",
}
TABLES = """
SELECT table_name, string_agg(column_name, ', ' ORDER BY ordinal_position) AS columns
FROM information_schema.columns WHERE table_name NOT IN ('frames', 'meta', 'turns') GROUP BY table_name
ORDER BY table_name
"""


async def sql(request: Request) -> Response:
    """Answer ``/sql?sql=``."""
    site, query = site_of(request), request.query_params.get("sql", "")

    async def parts() -> AsyncIterator[Markup]:
        yield page_frame.head("SQL", "sql", scripts=("sql.js",))
        yield page_frame.heading("SQL", "One statement that reads. The address has the query: share it.")
        yield _box(query)
        if query.strip():
            yield await _answer(site, query)
        yield await _help(site)

    return streamed(parts)


def _box(query: str) -> Markup:
    box = element("textarea", "\n" + query, id="query", name="sql", spellcheck="false", maxlength=100_000,
                  required=True)  # fmt: skip
    run = element("button", "Run", type="submit", class_="first")
    hint = element("span", "Ctrl+Enter runs it")
    links = [element("a", name, href="sql?" + urlencode({"sql": text})) for name, text in EXAMPLES.items()]
    form = element("form", element("label", "Query", for_="query"), box,
                   element("div", run, hint, class_="tools"), method="get", action="sql")  # fmt: skip
    return element("section", form, element("div", "Examples: ", links, class_="tools"), class_="panel")


async def _answer(site: Site, query: str) -> Markup:
    """Return the answer as a table, or the sentence that says why there is none."""
    try:
        answer = await site.source.query(query, "box", SHOWN)
    except ZeusStreamError as wrong:
        return page_frame.error(str(wrong))
    names = unique(answer.table.column_names)
    rows = answer.table.rename_columns(names).to_pylist()
    count = f"The first {SHOWN} rows; there are more." if answer.truncated else f"{len(rows)} rows."
    address = {form: "api/sql?" + urlencode({"sql": query, "format": form}) for form in FORMATS}
    downloads = [element("a", form, href=link, download=f"answer.{form}") for form, link in address.items()]
    drawn = table(rows, {name: (name, plain) for name in names}, "Answer") if rows else None
    tools = element("div", count, " Download: ", downloads, class_="tools")
    return element("section", element("h2", "Answer"), tools, drawn, id="answer", class_="panel")


async def _help(site: Site) -> Markup:
    """Return the tables of the archive with their columns: first those of ``SHOW TABLES``."""
    shown = (await site.source.query("SHOW TABLES", "page")).table["name"].to_pylist()
    rows = (await site.source.query(TABLES, "page")).table.to_pylist()
    listed = {
        row["table_name"]: element(
            "details", element("summary", row["table_name"]), element("p", row["columns"], class_="caption")
        )
        for row in rows
    }
    others = [of for name, of in listed.items() if name not in shown]
    return element(
        "section", element("h2", "Tables"), element("div", [listed[name] for name in shown], class_="tables"),
        element("details", element("summary", "All others"), element("div", others, class_="tables")),
        class_="panel",
    )  # fmt: skip
