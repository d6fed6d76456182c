"""The pages and what they draw, over a world whose every figure is known."""

import csv
import gzip
import io
import re
from hashlib import sha256
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.parquet
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp

from tests.analyzers import archives
from tests.zeus_stream.screens.live_snapshots import SNAPSHOT
from tests.zeus_stream.screens.web.asking import Answered, ask
from tests.zeus_stream.screens.web.conftest import HOSTILE, TOKEN
from zeus_stream.cli.screens.archive_source import ArchiveSource
from zeus_stream.errors import RefusedError
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.screens.web.access.security import LOOPBACK, WebSecurity
from zeus_stream.screens.web.app import build
from zeus_stream.screens.web.now_feed import NowFeed
from zeus_stream.screens.web.routes.site import Site
from zeus_stream.screens.web.source import QueryRows, Source
from zeus_stream.screens.web.static_files import static_files
from zeus_stream.settings import Settings

pytestmark = pytest.mark.anyio
UPLOT = {
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""SHA-256 of the files of uPlot 1.6.32, as the npm registry has them."""
VOID = {"meta", "link", "br", "img", "input", "hr"}


async def page(app: ASGIApp, address: str) -> Answered:
    return await ask(app, address, authorization=f"Bearer {TOKEN}")


class Elements(HTMLParser):
    """The elements of a page. Fails on one that is not closed in its place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert self.open == [], "left open"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def sql(query: str, form: str = "json") -> str:
    return "/api/sql?" + urlencode({"sql": query, "format": form})


@pytest.mark.parametrize(
    "address",
    ["/", "/runs/run-1", f"/gpus/{archives.A}", "/sql", "/sql?sql=FROM+epochs", "/runs/none", "/gpus/x"],
)
async def test_every_page_is_whole_and_has_no_inline_script_or_style(app: ASGIApp, address: str) -> None:
    answer = await page(app, address)
    assert answer.status == (404 if address in {"/runs/none", "/gpus/x"} else 200)
    elements = Elements(answer.text)
    for tag, attributes in elements.seen:
        assert tag != "style"
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert tag != "script" or attributes.get("src")
        for name in ("src", "href", "action"):
            link = attributes.get(name) or ""
            assert not link.startswith(("http:", "https:", "//", "/")), "links are relative, and to this site"


async def test_the_run_page_shows_what_the_archive_knows(app: ASGIApp) -> None:
    text = (await page(app, "/runs/run-1")).text
    assert "200 W saves" in text
    assert "12,000 J" in text  # 40 s at 300 W
    assert "validation" in text
    assert "the publisher&#x27;s buffer was full" in text
    assert text.count('role="img"') == 4  # power, frontier, epochs, swings
    assert "95 % intervals" in text


async def test_a_file_is_priced_by_the_signals_of_the_machine_that_shows_it(
    known: ArchiveSource, tmp_path: Path
) -> None:
    (tmp_path / "price.csv").write_text(
        '# name=price unit=EUR/kWh source="a tariff"\nat,value\n1970-01-01T00:00+00:00,0.3\n'
    )
    priced = ArchiveSource(known.path, tmp_path, Settings())
    app = build(Site(source=Source(priced.ask), feed=None), WebSecurity(TOKEN, frozenset(LOOPBACK)))
    assert "at 0.3 EUR/kWh, GPUs only; source: a tariff" in (await page(app, "/runs/run-1")).text
    priced.close()


async def test_panels_of_a_page_share_what_they_ask(known: ArchiveSource) -> None:
    asked: list[str] = []

    def answer(sql: str, max_rows: int, seconds: float, jobs: tuple[str, ...] = ()) -> QueryRows:
        asked.append(sql)
        return known.ask(sql, max_rows, seconds, jobs)

    app = build(Site(source=Source(answer), feed=None), WebSecurity(TOKEN, frozenset(LOOPBACK)))
    for address in ("/runs/run-1", "/api/runs/run-1"):
        asked.clear()
        await page(app, address)
        for macro in ("waste_of(", "saving_of("):
            assert sum(macro in query for query in asked) <= 1, f"{macro} reads all steps of the run"
        assert len(set(asked)) == len(asked)
        assert len(asked) <= 8, "each query is a process"


async def test_a_hostile_name_stays_text(app: ASGIApp) -> None:
    answer = await page(app, f"/runs/{quote(HOSTILE, safe='')}")
    assert answer.status == 200
    tags = Elements(answer.text).seen
    assert not any(tag in {"script", "b"} and "src" not in attributes for tag, attributes in tags)
    assert "DROP TABLE runs" in answer.text
    assert (await page(app, sql("SELECT count(*) AS n FROM runs WHERE run = 'run-1'"))).json()["rows"] == [
        {"n": 1}
    ]
    assert "&lt;script&gt;" in (await page(app, "/")).text


async def test_the_power_of_a_run_is_its_energy(app: ASGIApp) -> None:
    run = (await page(app, "/api/runs/run-1")).json()
    asked = {"from": run["from"], "to": run["to"], "px": 40, "gpu": run["gpus"]}
    power = (await page(app, "/api/power?" + urlencode(asked, doseq=True))).json()
    assert power["energy_j"] == pytest.approx(12_000, rel=1e-6)
    assert power["bucket_s"] == pytest.approx(1.0)
    assert power["mean_w"][:-1] == pytest.approx([300.0] * 40)
    assert power["limit_w"][0] == 600.0
    assert len(power["t_s"]) == 41


async def test_a_browser_without_scripts_gets_the_chart_of_power_as_a_picture(app: ASGIApp) -> None:
    shown = Elements((await page(app, "/runs/run-1")).text).seen
    (source,) = [attributes["src"] for tag, attributes in shown if tag == "img"]
    assert "noscript" in [tag for tag, _ in shown]
    answer = await page(app, str(source).removeprefix(".."))
    assert answer.header("content-type") == "image/svg+xml"
    assert answer.text.startswith("<svg")
    assert 'class="mean" d="M' in answer.text


@pytest.mark.parametrize(
    "given",
    [
        "",
        "gpu=x&from=2&to=1",
        "gpu=x&from=a&to=2",
        "from=1&to=2",
        "gpu=x&from=1&to=2&px=0",
        "gpu=x&from=-5&to=2",
    ],
)
async def test_a_wrong_question_for_power_is_a_sentence(app: ASGIApp, given: str) -> None:
    answer = await page(app, f"/api/power?{given}")
    assert answer.status == 400
    assert "give `gpu`" in answer.json()["error"]


async def test_the_answer_of_sql_is_the_same_in_every_format(app: ASGIApp) -> None:
    query = "SELECT epoch, energy_j, quality FROM epochs WHERE run = 'run-1' ORDER BY epoch"
    rows = (await page(app, sql(query))).json()["rows"]
    assert len(rows) == 4
    text = (await page(app, sql(query, "csv"))).text
    assert [int(row["epoch"]) for row in csv.DictReader(io.StringIO(text))] == [0, 1, 2, 3]
    arrow = pa.ipc.open_stream((await page(app, sql(query, "arrow"))).body).read_all()
    parquet = pa.parquet.read_table(io.BytesIO((await page(app, sql(query, "parquet"))).body))
    assert arrow.to_pylist() == parquet.to_pylist() == rows


async def test_json_is_cut_off_and_says_so(app: ASGIApp) -> None:
    answer = await page(app, sql("SELECT range AS n FROM range(20000)"))
    assert len(answer.json()["rows"]) == 10_000
    assert answer.json()["truncated"] is True
    assert answer.header("x-truncated") == "true"
    whole = await page(app, sql("SELECT range AS n FROM range(20000)", "csv"))
    assert whole.text.count("\n") == 20_001


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE runs",
        "SELECT 1; SELECT 2",
        "COPY runs TO 'x.csv'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "x",
    ],
)
async def test_sql_that_does_not_read_the_archive_is_refused_in_a_sentence(app: ASGIApp, query: str) -> None:
    answer = await page(app, sql(query))
    assert answer.status == 400
    assert answer.json()["error"]
    box = await page(app, "/sql?" + urlencode({"sql": query}))
    assert 'role="alert"' in box.text


async def test_the_sql_box_has_the_query_of_its_address(app: ASGIApp) -> None:
    query = "SELECT '</textarea><script>' AS \"<b>\""
    text = (await page(app, "/sql?" + urlencode({"sql": query}))).text
    assert "&lt;/textarea&gt;&lt;script&gt;" in text
    assert '<th scope="col">&lt;b&gt;</th>' in text
    assert text.count("download=") == 4


async def test_the_sql_box_lists_tables_as_show_tables_does_and_then_the_others(app: ASGIApp) -> None:
    first, others = (await page(app, "/sql")).text.split("All others")
    shown = (await page(app, sql("SHOW TABLES"))).json()["rows"]
    assert re.findall("<summary>([a-z_]+)</summary>", first) == [row["name"] for row in shown]
    assert "<summary>readings</summary>" in others


async def test_static_files_are_named_by_their_content_and_compressed(app: ASGIApp) -> None:
    for file in static_files().values():
        packed = await ask(
            app, f"/static/{file.name}", authorization=f"Bearer {TOKEN}", accept_encoding="gzip"
        )
        assert packed.header("content-encoding") == "gzip"
        assert gzip.decompress(packed.body) == file.content
        assert "immutable" in (packed.header("cache-control") or "")
    assert sum(len(file.compressed) for file in static_files().values()) < 66_000


def test_uplot_is_what_was_published() -> None:
    folder = files("zeus_stream.screens.web").joinpath("static/vendor")
    assert {each.name: sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()} == UPLOT


async def test_probes_need_no_token_and_tell_nothing(app: ASGIApp) -> None:
    assert (await ask(app, "/-/healthy", host="10.0.0.1")).text == "ok\n"
    assert (await ask(app, "/-/ready", host="10.0.0.1")).text == "ok\n"


@pytest.mark.parametrize(
    ("lag_ms", "status", "text"),
    [(9_000, 200, "ok\n"), (12_000, 503, "the analyzer is 12 s behind\n")],
)
async def test_an_analyzer_that_is_far_behind_is_not_ready(
    known: ArchiveSource, lag_ms: int, status: int, text: str
) -> None:
    answered = await ask(live(known, replace(SNAPSHOT, lag_ms=lag_ms)), "/-/ready")
    assert (answered.status, answered.text) == (status, text)


async def test_a_file_that_is_gone_is_not_ready_and_no_fault_of_the_page(tmp_path: Path) -> None:
    """Each probe of a load balancer was an error with a traceback."""
    gone = ArchiveSource(tmp_path / "energy.duckdb", tmp_path, Settings())
    app = build(Site(source=Source(gone.ask), feed=None), WebSecurity(TOKEN, frozenset(LOOPBACK)))
    answered = await ask(app, "/-/ready")
    assert (answered.status, "there is no such file" in answered.text) == (503, True)


async def test_a_server_of_sql_alone_is_ready(known: ArchiveSource) -> None:
    """It was never ready behind a load balancer: it has no live state."""

    async def only_sql() -> Snapshot:
        raise RefusedError("serve-sql: could not answer: it answers SQL only.")

    site = Site(source=Source(known.ask), feed=NowFeed(only_sql))
    app = build(site, WebSecurity(TOKEN, frozenset(LOOPBACK)))
    assert (await ask(app, "/-/ready")).text == "ok\n"


async def test_prometheus_reads_jobs_runs_and_the_analyzer(known: ArchiveSource) -> None:
    answered = await page(live(known, SNAPSHOT), "/metrics")
    names = {family.name for family in text_string_to_metric_families(answered.text)}
    assert {"zeus_stream_job_energy_joules", "zeus_stream_run_info", "zeus_stream_lag_seconds"} <= names
    assert (answered.header("content-type") or "").startswith("text/plain; version=0.0.4")
    assert 'zeus_stream_up{process="analyzer"} 1' in answered.text


def live(known: ArchiveSource, snapshot: Snapshot) -> ASGIApp:
    async def now() -> Snapshot:
        return snapshot

    site = Site(source=Source(known.ask), feed=NowFeed(now))
    return build(site, WebSecurity(TOKEN, frozenset(LOOPBACK)))


async def test_a_gpu_has_its_lease_its_counter_and_its_runs(app: ASGIApp) -> None:
    text = (await page(app, f"/gpus/{archives.A}")).text
    for words in ("lease", "limit found", "counter", "calibration", "Runs on it", "Commands"):
        assert words in text, words
    assert "changes every -" not in text, "the period of a counter that is read anew is not known"


async def test_few_steps_are_answered_one_by_one_and_many_not_at_all(app: ASGIApp) -> None:
    about = (await page(app, "/api/runs/run-1")).json()
    asked = {"run": "run-1", "from": about["from"], "to": about["to"]}
    few = (await page(app, f"/api/steps?{urlencode(asked)}")).json()["steps"]
    assert few == sorted(few)
    assert 0 < len(few) <= 200
    assert all(0 <= begin < end for begin, end in few)
    none = (await page(app, f"/api/steps?{urlencode({**asked, 'run': 'none'})}")).json()
    assert none == {"steps": []}
    wrong = await page(app, "/api/steps?run=run-1&from=9&to=1")
    assert wrong.status == 400
    assert "give `run`, and `from` before `to`" in wrong.json()["error"]


CONTROL = "\x00\x1b[2J\x9b7\x7f"


@pytest.mark.parametrize(
    "address",
    [
        *(
            f"/api/sql?format={form}&sql={quote(query)}"
            for form in ("csv", "json")
            for query in (
                f"SELECT '{CONTROL}' AS a",
                "SELECT '=1+1' || chr(27) || chr(155) || chr(0) AS a",
                f'FROM "{CONTROL}"',
            )
        ),
        "/api/sql?format=" + quote(CONTROL),
        "/api/power?from=1&to=2&gpu=" + quote(CONTROL),
        "/api/steps?from=1&to=2&run=" + quote(CONTROL),
        "/api/runs/" + quote(CONTROL),
        "/runs/" + quote(CONTROL),
        "/gpus/" + quote(CONTROL),
        "/jobs/" + quote(CONTROL),
        "/sql?sql=" + quote(f"SELECT '{CONTROL}'"),
    ],
)
async def test_no_answer_has_a_control_character(app: ASGIApp, address: str) -> None:
    """ESC and NUL of a name or a query came back as they were, and a terminal that shows them runs them."""
    answer = await page(app, address)
    assert answer.status < 500 or answer.status == 502
    assert not [letter for letter in answer.text if letter != "\n" and not letter.isprintable()], answer.text


async def test_a_text_that_a_spreadsheet_would_run_is_no_formula_in_csv(app: ASGIApp) -> None:
    query = "SELECT '=1+1' AS \"=a\", '@x' AS b, -1 AS c, -1.5::DECIMAL(4, 1) AS d, '-' AS e, 'x=1' AS f"
    assert (await page(app, sql(query, "csv"))).text.splitlines() == [
        '"\'=a","b","c","d","e","f"',
        '"\'=1+1","\'@x",-1,-1.5,"\'-","x=1"',
    ]
