"""All screens of odd worlds: the same figure in each, and none that cannot be."""

import io
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.zeus_stream.views.scenes import SCENES, Answer, Scene, stored
from zeus_stream.screens.html.document import run_report
from zeus_stream.screens.html.questions import answered
from zeus_stream.screens.html.run_question import find_run_rows
from zeus_stream.screens.metrics.job_metrics import Jobs
from zeus_stream.screens.metrics.metrics import gpu_families, service_families
from zeus_stream.screens.metrics.prometheus import text as prometheus_text
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.once import print_once
from zeus_stream.screens.terminal.panels.run_page import Details, run_page
from zeus_stream.screens.text.run_cost import print_summary, summarize
from zeus_stream.screens.web.now_panels import draw_now
from zeus_stream.views.quantity import Quantity, compact, joules
from zeus_stream.views.run_view import RunView, run_of_live, run_of_rows

IMPOSSIBLE = {
    "not a number": re.compile(r"(?<![\w-])(?:inf|nan|None)(?![\w-])"),
    "a negative duration": re.compile(r"(?<![\w.])-\d[\d.,]* (?:µs|ms|s|min|h|d)\b"),
    "0.0 by rounding": re.compile(r"(?<![\w.,])[-+]?0\.0+ (?:[kMm]?J|k?Wh|W|%|m?s)(?!\w)"),
}


def words(markup: str) -> str:
    """Return the text of a page: without its style, its data and its SQL."""
    shown = re.sub(r"<style>.*?</style>|<pre.*?</pre>", "", markup, flags=re.DOTALL)
    return re.sub(r"<[^>]*>", " ", shown)


def terminal(scene: Scene) -> str:
    out = io.StringIO()
    print_once(scene.now, out)
    lines = [out.getvalue()]
    for run in scene.now.runs:
        page = run_page(run_of_live(run, scene.now.wall_ns), History(), 160, Details())
        lines += ["".join(span.text for span in line) for line in page]
    return "\n".join(lines)


def metrics(scene: Scene) -> str:
    jobs = Jobs()
    jobs.take(scene.now.runs)
    families = [*gpu_families(scene.now), *jobs.families(scene.now), *service_families(scene.now)]
    return prometheus_text(families)


def text_report(answer: Answer) -> str:
    summary = summarize(answer, "run")
    assert summary is not None
    out = io.StringIO()
    print_summary(summary, None, "zeus-stream sql", out)
    return out.getvalue()


def html_report(answer: Answer) -> str:
    report = run_report(answer, "run", "1.0", {})
    assert report is not None
    return words(report.page)


def screens(scene: Scene, answer: Answer) -> Mapping[str, str]:
    return {
        "terminal": terminal(scene),
        "web": words(draw_now(scene.now)),
        "text": text_report(answer),
        "html": html_report(answer),
        "metrics": metrics(scene),
    }


def is_same(one: Quantity, other: Quantity, within: float = 1e-6) -> bool:
    if one.known is None or other.known is None:
        return one.known is other.known
    return one.known == pytest.approx(other.known, rel=1e-6, abs=within)


def check_same(live: RunView, stored_view: RunView) -> None:
    """Check that the live state and the archive say the same of a run."""
    if live.ended:
        assert is_same(live.energy, stored_view.energy)
    else:  # the archive adds up whole seconds, and the last one is under way
        assert is_same(live.energy, stored_view.energy, within=2 * 300 * len(live.gpus))
        assert stored_view.energy.as_of_ns is not None
    if stored_view.saving is not None and stored_view.saving.applied:
        assert live.saving is not None
        for of in ("energy", "time", "saved"):
            assert is_same(getattr(live.saving, of), getattr(stored_view.saving, of)), of
        assert live.saving.headline == stored_view.saving.headline


@pytest.mark.sweep
@pytest.mark.parametrize("name", SCENES)
def test_every_screen_shows_the_same_figures_and_none_that_cannot_be(name: str, tmp_path: Path) -> None:
    scene = SCENES[name]()
    with stored(scene, tmp_path / "energy.duckdb") as answer:
        shown = screens(scene, answer)
        rows = answered(find_run_rows("run"), answer)
    for screen, page in shown.items():
        for what, pattern in IMPOSSIBLE.items():
            found = [page[max(0, at.start() - 60) : at.end() + 20] for at in pattern.finditer(page)]
            assert not found, f"{what} on {screen}: {found[:3]}"
    assert rows is not None
    view = run_of_rows(rows)
    (live,) = [run_of_live(run, scene.now.wall_ns) for run in scene.now.runs]
    check_same(live, view)
    if live.energy.known is not None:
        assert compact(live.energy.known, "J") in shown["terminal"]
        assert joules(live.energy.known) in shown["web"]
    if view.energy.known is not None:
        assert joules(view.energy.known) in shown["text"]
        assert joules(view.energy.known) in shown["html"]
    assert view.headline in shown["html"]
    if name == "the collector is dead":
        assert "no reading for 2" in shown["terminal"]
        assert "its collector does not answer" in shown["terminal"]
        assert "its collector does not answer" in shown["web"]
