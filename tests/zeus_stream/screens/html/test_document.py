"""Reports as files: whole, small, the same twice, and without anything that runs or is fetched."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from analyzers.results.rows import Row
from tests.analyzers import archives
from tests.zeus_stream.screens.asked_archive import Answer, asked_archive
from tests.zeus_stream.screens.web.test_routes import Elements
from zeus_stream.cli.screens.report_files import ReportFiles, picture
from zeus_stream.errors import StorageError
from zeus_stream.screens.html.document import Report, run_report
from zeus_stream.screens.html.panels import SHOWN
from zeus_stream.screens.site.period import Period
from zeus_stream.screens.site.site_report import site_report
from zeus_stream.views.quantity import joules

ALL = Period(0, 2 * archives.BOOTED_NS)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answer]:
    hostile = replace(archives.RUN, session="s2", run="<script>x</script>", job="</style><script>")
    with asked_archive(tmp_path_factory.mktemp("report"), [hostile]) as ask:
        yield ask


@pytest.fixture(scope="module")
def report(answer: Answer) -> Report:
    made = run_report(answer, "run-1", "1.0", {})
    assert made is not None
    return made


def test_the_same_archive_gives_the_same_bytes(answer: Answer, report: Report) -> None:
    assert run_report(answer, "run-1", "1.0", {}) == report
    assert site_report(answer, ALL, "1.0") == site_report(answer, ALL, "1.0")


def test_a_report_stands_alone(report: Report) -> None:
    tags = Elements(report.page).seen
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in tags}
    assert not any({"src", "href"} & attributes.keys() for _, attributes in tags)
    assert "url(" not in report.page
    assert "@import" not in report.page
    assert len(report.page.encode()) < 300_000


def test_a_report_has_figures_their_data_their_sql_and_their_source(report: Report) -> None:
    assert "200 W" in report.page
    assert "12,000 J" in report.page
    assert report.page.count("Data as CSV, and its SQL") >= 5
    assert "epoch,began_wall_ns,duration_s,energy_j" in report.page
    assert "FROM epochs WHERE run = &#x27;run-1&#x27;" in report.page
    assert "cost:0.5" in report.page
    assert archives.A in report.page


def test_hostile_names_stay_text(answer: Answer) -> None:
    made = run_report(answer, "<script>x</script>", "1.0", {})
    assert made is not None
    assert not any(tag == "script" for tag, _ in Elements(made.page).seen)


def test_an_unknown_run_has_no_report(answer: Answer) -> None:
    assert run_report(answer, "none", "1.0", {}) is None


def test_drawings_are_files_of_their_own_with_their_colours(report: Report) -> None:
    assert set(report.charts) == {"power", "frontier", "epochs", "swings"}
    for chart in report.charts.values():
        ET.fromstring(chart)  # noqa: S314  (made here)
        assert "var(" not in chart
        assert re.search(r"#[0-9a-f]{6}", chart)


def test_pngs_are_pictures(report: Report) -> None:
    pytest.importorskip("resvg_py", reason="the extra png (resvg-py) is not installed")
    content = picture(report.charts["frontier"])
    assert content.startswith(b"\x89PNG")
    assert 5_000 < len(content) < 200_000


def test_files_are_written_as_a_whole(report: Report, tmp_path: Path) -> None:
    html = tmp_path / "new" / "report.html"
    written = ReportFiles(html, tmp_path / "svg", None).write(report)
    assert [path.name for path in written] == [
        "report.html",
        "power.svg",
        "frontier.svg",
        "epochs.svg",
        "swings.svg",
    ]
    assert html.read_text(encoding="utf-8") == report.page
    assert not [path for path in html.parent.iterdir() if path.name.startswith(".")]
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="could not be written"):
        ReportFiles(tmp_path / "file" / "report.html", None, None).write(report)


def test_the_sum_of_what_was_saved_has_the_runs_that_are_not_shown(tmp_path: Path) -> None:
    """Each run saved a third of a step of 150 J."""
    rows: list[Row] = []
    for number in range(SHOWN + 15):
        of = {"session": f"s-{number}", "run": f"r-{number}"}
        step = replace(archives.WINDOW, **of, index=30, energy_j=150.0, power_limit_w=200.0)
        rows += [
            replace(archives.RUN, **of, gpus=(archives.A,)), step,
            replace(archives.DECISION, run=of["run"], number=1, trials_run=of["run"]),
        ]  # fmt: skip
    with asked_archive(tmp_path, rows) as ask:
        own = ask("SELECT sum(saved_j) AS saved_j FROM savings")["saved_j"].to_pylist()[0]
        page = site_report(ask, ALL, "1.0").page
    assert f"Saved: {joules(own)}" in page


def test_the_report_of_a_site_has_the_runs_of_its_period(answer: Answer) -> None:
    page = site_report(answer, ALL, "1.0").page
    assert "Energy by job" in page
    assert "12,000 J" in page
    last = answer("SELECT max(began_at) + INTERVAL 1 SECOND AS at FROM seconds")["at"].to_pylist()[0]
    assert f"All GPUs until {last:%Y-%m-%d %H:%M:%S} UTC, with and without runs: " in page
    assert "There are none" in site_report(answer, Period(0, 1), "1.0").page
