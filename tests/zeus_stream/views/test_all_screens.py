"""All screens of odd worlds: the same figure in each, and none that cannot be."""

import io
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from math import hypot, isfinite
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

from collectors.devices.simulated_spec import parse
from tests.zeus_stream.screens.metrics.test_otel import receiving
from tests.zeus_stream.screens.web.asking import ask
from tests.zeus_stream.views.scenes import SCENES, Answer, Scene, stored
from zeus_stream.integrations.trackers import TrackedPoints
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.questions.asking import answered
from zeus_stream.questions.run_questions import find_run_rows, find_trials
from zeus_stream.screens.html.document import run_report
from zeus_stream.screens.html.hour_panel import find_hour
from zeus_stream.screens.metrics.job_metrics import JobMetrics
from zeus_stream.screens.metrics.metrics import Family, gpu_families, service_families
from zeus_stream.screens.metrics.otel import MAX_SPANS, RUN_ROWS, OtelSender
from zeus_stream.screens.metrics.prometheus import text as prometheus_text
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.once import print_once
from zeus_stream.screens.terminal.panels.run_page import Details, run_page
from zeus_stream.screens.text.run_cost import print_summary, summarize, write_summary
from zeus_stream.screens.web.access.security import LOOPBACK, WebSecurity
from zeus_stream.screens.web.app import build
from zeus_stream.screens.web.now_feed import NowFeed
from zeus_stream.screens.web.now_panels import draw_now, draw_run
from zeus_stream.screens.web.routes.site import Site
from zeus_stream.screens.web.source import QueryRows as Page
from zeus_stream.screens.web.source import Source
from zeus_stream.views.quantity import Quantity, half_of, joules, opposite, with_half
from zeus_stream.views.run_view import RunRows, RunView, run_of_rows
from zeus_stream.views.search import TrialView
from zeus_stream.views.site_view import PowerView, site_of_live

IMPOSSIBLE = {
    "not a number": re.compile(r"(?<![\w-])(?:inf|nan|None|Infinity|NaN)(?![\w-])"),
    "a negative duration": re.compile(r"(?<![\w.])-\d[\d.,]* (?:µs|ms|s|min|h|d)\b"),
    "more than all": re.compile(r"(?<![\d.,])(?!100\.0)\d{3,}\.\d % of the energy"),
    "not one": re.compile(r"(?<![\d.,])(?:1 (?:epoch|step|GPU|rank|limit|command)s|0 GPUs together|0 x )\b"),
    "a sign before words": re.compile(r"[-+](?:under|above)\b"),
    "idle without energy": re.compile(r"(?<![\d.,])0 J\s+[\d.]+ m?s\s+0 %"),
    "0.0 by rounding": re.compile(r"(?<![\w.,])[-+]?0\.0+ (?:[kMm]?J|k?Wh|W|%|m?s)(?!\w)"),
}

AT_LIMIT = """
SELECT step, energy_j FROM steps
WHERE run = 'run' AND abs(highest_limit_w - 175) < 0.5 AND energy_j IS NOT NULL
"""


def words(markup: str) -> str:
    """Return the text of a page: without its style, its data and its SQL."""
    shown = re.sub(r"<style>.*?</style>|<pre.*?</pre>", "", markup, flags=re.DOTALL)
    return re.sub(r"<[^>]*>", " ", shown)


def terminal(scene: Scene) -> str:
    out = io.StringIO()
    print_once(scene.now, out)
    lines = [out.getvalue()]
    for run in site_of_live(scene.now).runs:
        page = run_page(run, History(), 160, Details())
        lines += ["".join(span.text for span in line) for line in page]
    return "\n".join(lines)


def families(scene: Scene) -> list[Family]:
    jobs = JobMetrics(whole=True)
    jobs.take(scene.now.runs)
    return [*gpu_families(scene.now), *jobs.families(scene.now), *service_families(scene.now)]


def otlp(scene: Scene, answer: Answer) -> str:
    """Return the metrics and the spans of the run that a receiver of OpenTelemetry gets."""
    with receiving() as receiver:
        with OtelSender(receiver.url, lambda: families(scene), every_ms=600_000) as sender:
            sender.flush()
            sender.send_run(answer(RUN_ROWS.format(run="'run'", limit=MAX_SPANS)).to_pylist())
        lines = [
            f"{name} in {unit}: {value} {sorted(attributes.items())}"
            for name, points in receiver.metrics().items()
            for attributes, value, unit in points
        ]
        spans = [
            f"{span.name} { {each.key: each.value.double_value for each in span.attributes} }"
            for span in receiver.spans()
        ]
    return "\n".join([*lines, *spans])


def reports(answer: Answer) -> tuple[str, str]:
    """Return the report of the run as text and as JSON."""
    summary = summarize(answer, "run")
    assert summary is not None
    text, in_json = io.StringIO(), io.StringIO()
    print_summary(summary, None, "zeus-stream sql", text)
    write_summary(summary, in_json)
    return text.getvalue(), in_json.getvalue()


def html_report(answer: Answer) -> str:
    report = run_report(answer, "run", "1.0", {})
    assert report is not None
    return words(report.page)


async def _pages(scene: Scene, answer: Answer) -> Mapping[str, str]:
    """Return the text of every page of the web."""

    async def look() -> Snapshot:
        return scene.now

    site = Site(source=Source(lambda sql, *_: Page(answer(sql), truncated=False)), feed=NowFeed(look))
    app = build(site, WebSecurity("token", frozenset(LOOPBACK)))
    paths = ["/", "/runs/run", "/jobs", "/jobs/job", "/waste", "/metrics"]
    paths += ["/api/hour", "/api/runs/run", "/api/now"]
    paths += [f"/gpus/{gpu.gpu}" for gpu in scene.now.gpus[:1]]
    found = {}
    for path in paths:
        answered = await ask(app, path, authorization="Bearer token")
        assert answered.status == 200, (path, answered.text)
        found[path] = words(answered.text)
    return found


def screens(scene: Scene, answer: Answer) -> Mapping[str, str]:
    points = TrackedPoints("run", lambda query: answer(query).to_pylist()).new(last=True)
    in_text, in_json = reports(answer)
    return {
        **anyio.run(_pages, scene, answer),
        "terminal": terminal(scene),
        "web": words(draw_now(scene.now))
        + "".join(words(draw_run(scene.now, run.run)) for run in scene.now.runs),
        "text": in_text,
        "html": html_report(answer),
        "json": in_json,
        "metrics": prometheus_text(families(scene)),
        "OTLP": otlp(scene, answer),
        "trackers": "\n".join(f"{name} {value}" for each in points for name, value in each.values.items()),
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


def check_same_limits(live: Sequence[TrialView], stored_limits: Sequence[TrialView]) -> None:
    """Check that the live state and the archive state the same of each limit of the last round."""
    last = [each for each in stored_limits if not each.old]
    assert [(each.level, each.steps) for each in live] == [(each.level, each.steps) for each in last]
    for one, other in zip(live, last, strict=True):
        for of in ("energy", "time", "energy_change", "time_change"):
            assert is_same(getattr(one, of), getattr(other, of)), (of, one, other)


class Shown(NamedTuple):
    """A scene, what each screen shows of it, and what the archive answers."""

    scene: Scene
    screens: Mapping[str, str]
    rows: RunRows | None
    limits: Sequence[TrialView]
    hour: PowerView | None
    steps_at_limit: Sequence[Mapping[str, Any]]


@cache
def shown_of(name: str) -> Shown:
    scene = SCENES[name]()
    with tempfile.TemporaryDirectory() as folder, stored(scene, Path(folder, "energy.duckdb")) as answer:
        rows = answered(find_run_rows("run"), answer)
        return Shown(
            scene,
            screens(scene, answer),
            rows,
            () if rows is None else answered(find_trials(rows), answer)[1],
            answered(find_hour(scene.now.wall_ns), answer),
            answer(AT_LIMIT).to_pylist(),
        )


@pytest.mark.sweep
@pytest.mark.parametrize("name", SCENES)
def test_every_screen_shows_the_same_figures_and_none_that_cannot_be(name: str) -> None:
    scene, shown, rows, limits, hour, _ = shown_of(name)
    for screen, page in shown.items():
        for what, pattern in IMPOSSIBLE.items():
            found = [page[max(0, at.start() - 60) : at.end() + 20] for at in pattern.finditer(page)]
            assert not found, f"{what} on {screen}: {found[:3]}"
    assert rows is not None
    assert "Energy by job" in shown["/jobs"], "a job is listed while its run is open"
    assert all(isfinite(row["duration_s"] or 0.0) for row in rows.waste)
    view = run_of_rows(rows)
    assert all(part.share.known is not None for part in view.waste if part.energy.known and view.energy.known)
    stored_energy = "-" if view.energy.known is None else joules(view.energy.known)
    for screen in ("text", "html", "/runs/run"):
        live_now = screen == "/runs/run" and not view.ended
        assert live_now or stored_energy in shown[screen], screen
    in_json = json.loads(shown["json"])
    assert in_json["energy_j"] == (view.energy.known if in_json["closed"] else None)
    assert view.headline in shown["html"]
    assert view.headline in shown["/runs/run"] or (scene.now.runs and not view.ended), (
        "its live part is drawn"
    )
    if view.saving is not None and view.saving.applied and not view.saving.kept:
        saved = f"energy/saved_percent {view.saving.energy.known}"
        assert saved in shown["trackers"] or "saved_percent" not in shown["trackers"]
        for screen in ("html", "/runs/run", "/", "/jobs/job"):
            forms = str(view.saving.energy), with_half(view.saving.energy)
            assert any(form in shown[screen] for form in forms), screen
        stated = with_half(opposite(view.saving.energy)), with_half(view.saving.time)
        for screen in ("html", "/runs/run"):
            assert all(form in shown[screen] for form in stated), (
                f"the limits measured say another on {screen}"
            )
    if view.ended and view.energy.known is not None:
        assert f"'zeus_stream.energy': {view.energy.known}" in shown["OTLP"]
    if not scene.now.runs:
        return
    (live,) = site_of_live(scene.now).runs
    check_same(live, view)
    check_same_limits(live.trials, limits)
    assert ("energy so far" in shown["web"]) is not live.ended
    assert ("0 open runs, 1 that ended" in shown["terminal"]) is live.ended
    assert (" so far, until 19" in shown["text"]) is (live.ended is False), "an energy so far has its age"
    if name == "the limit found is kept":
        assert live.headline == "Kept 250 W: none measured is better."
        assert live.saving is not None
        assert live.saving.saved.known == site_of_live(scene.now).saved.known == 0
    if name == "only observed":
        assert "No power limit: Insufficient Permissions." in shown["web"]
    if live.energy.known is not None:
        assert all(joules(live.energy.known) in shown[screen] for screen in ("terminal", "web"))
    if hour is not None and view.saving is not None and view.saving.applied and live.ended:
        last_j = max(hour.saved_w) * hour.bucket_s  # the last second is stored with the reading after it
        assert is_same(hour.saved, view.saving.saved, within=last_j), "hatched is what is saved"
    if name == "the collector is dead":
        assert hour is not None
        empty_s = hour.span_s - len(hour.limit_w) * hour.bucket_s
        assert empty_s == pytest.approx(28, abs=3), "the chart of the hour goes on until now"
        assert "no reading for 2" in shown["terminal"]
        assert "its collector does not answer" in shown["terminal"]
        assert "its collector does not answer" in shown["web"]
        assert "0 s behind" not in shown["/"], "what does not arrive is not counted as late"
        assert live.trouble
        assert live.forecast is None or live.forecast.left.known is None, "nobody sees how far it is"
        assert "What is wrong" in words(draw_run(scene.now, "run")), "its own page has the cure too"
        assert live.state in shown["web"], "the run says that its figures are old"
        assert "The figures are old: no reading for 2" in shown["terminal"]
        assert "zeus_stream_run_info" in shown["metrics"]
        assert "zeus_stream_run_step_energy_joules" not in shown["metrics"], "nothing old is given again"


@pytest.mark.sweep
def test_what_was_saved_before_and_since_a_drift_is_shown_apart_and_true() -> None:
    """Each stretch has the interval of its own measurement; the last decision's stood for all."""
    _, shown, rows, _, _, steps = shown_of("the workload changes, in noise")
    assert rows is not None
    saving = run_of_rows(rows).saving
    assert saving is not None
    before, since = saving.parts
    assert before.first_step < since.first_step == pytest.approx(400, abs=24), "where the change began"
    workload = parse("simulated:v100x1")[0].model.workloads["imagenet"]
    usual, chosen = (workload.power_mw(mw) * workload.slowdown(mw) for mw in (250_000, 175_000))
    for part, first, last in ((before, 0, since.first_step - 1), (since, since.first_step, 800)):
        of = [step["energy_j"] for step in steps if first <= step["step"] <= last]
        assert (part.level, part.steps) == ("175 W", len(of))
        assert part.saved.interval is not None
        assert part.saved.interval[0] < sum(of) * (usual / chosen - 1) < part.saved.interval[1]
    halves = [half_of(each.saved) or 0 for each in saving.parts]
    assert half_of(saving.saved) == pytest.approx(hypot(*halves), rel=0.02), "two measurements"
    for screen in ("text", "html", "/runs/run", "web", "terminal"):
        page = " ".join(shown[screen].split())
        assert saving.parts_words in page, screen
    (json_row,) = [json.loads(shown["json"])["saving"]]
    assert [each["saved_j"] for each in json_row["stretches"]] == [each.saved.known for each in saving.parts]
