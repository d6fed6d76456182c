"""The report of a run that is a pipeline, from the rows that its machine gives."""

import io
import re
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from analyzers.power_limit.run_settings import PipelineSettings
from analyzers.results.pipeline_rows import InstructionSpanRow, PlanRow
from tests.analyzers import archives
from tests.analyzers.pipeline.stages import CLOCKS_MHZ, Stages
from tests.zeus_stream.screens.asked_archive import Answer, asked_archive
from zeus_stream.screens.html.document import run_report
from zeus_stream.screens.svg.pipeline_charts import clock_colour
from zeus_stream.screens.text.run_cost import print_summary, summarize, write_summary
from zeus_stream.views.pipeline_view import choices_of


@pytest.fixture(scope="module")
def world() -> Stages:
    return Stages(PipelineSettings(iterations=4, slowdown=1.05)).follow(20)


@pytest.fixture(scope="module")
def answer(world: Stages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answer]:
    started = replace(archives.RUN, session="s", run="run", job="job")
    with asked_archive(tmp_path_factory.mktemp("report"), [started, *world.rows], filled=False) as ask:
        yield ask


def test_an_iteration_before_and_under_the_plan_is_kept(world: Stages) -> None:
    rows = [row for row in world.rows if isinstance(row, InstructionSpanRow)]
    assert {row.plan for row in rows} == {0, 1}
    for number in (0, 1):
        of = [row for row in rows if row.plan == number]
        assert len(of) == 4 * 2 * 8
        assert len({(row.stage, row.position) for row in of}) == len(of)
        assert min(row.begin_s for row in of) == 0.0
    assert {row.clock_mhz for row in rows if row.plan == 0} == {CLOCKS_MHZ[0]}
    planned = {(row.stage, row.kind): row for row in rows if row.plan == 1}
    for (stage, kind), row in planned.items():
        time_s, _ = world.time_and_power(stage, kind, row.clock_mhz)
        assert row.duration_s == pytest.approx(time_s, rel=0.001)


def test_the_report_says_what_the_plan_saves(answer: Answer, world: Stages) -> None:
    summary = summarize(answer, "run")
    assert summary is not None
    assert summary.view.pipeline is not None
    facts = dict(summary.view.pipeline.facts)
    plan = [row for row in world.rows if isinstance(row, PlanRow)][-1]
    assert plan.saved is not None
    assert plan.saved_low is not None
    assert plan.saved_high is not None
    assert plan.saved_low <= plan.saved <= plan.saved_high
    assert plan.saved == pytest.approx(1 - world.spent_j[-1] / world.spent_j[3], abs=0.005)
    assert facts["pipeline"].startswith("4 stages, 8 micro-batches (1f1b): following plan 1")
    assert facts["plan of clocks"].startswith(f"{100 * plan.saved:.1f} % (95 %: ")
    assert "promised were" in facts["plan of clocks"]
    out = io.StringIO()
    write_summary(summary, out)
    assert '"promised_j"' in out.getvalue()


def test_the_page_draws_every_instruction_and_the_frontier(answer: Answer) -> None:
    report = run_report(answer, "run", "1.0", {})
    assert report is not None
    for name in ("pipeline-iteration", "pipeline-plan", "pipeline-frontier"):
        assert name in report.charts
        assert report.charts[name].count("<svg") == report.charts[name].count("</svg>") == 1
    titles = re.findall("<title>(.*?)</title>", report.charts["pipeline-plan"])
    assert len(titles) == 64
    assert any(title.startswith("backward 7 on stage 3: ") for title in titles)
    assert "highest clocks" in report.charts["pipeline-frontier"]
    assert len(report.page.encode()) < 300_000


def test_each_choice_of_slowdown_says_what_it_costs(answer: Answer) -> None:
    summary = summarize(answer, "run", (0.25, "EUR"))
    assert summary is not None
    at_top, *choices = summary.choices
    assert (at_top.slowdown, at_top.saved_percent, at_top.chosen) == (None, 0.0, False)
    assert [each.slowdown for each in choices if each.chosen] == [1.05]
    energies_j = [each.energy_j for each in summary.choices]
    assert energies_j == sorted(set(energies_j), reverse=True)
    one = choices[0]
    assert one.hours == pytest.approx(1000 * one.time_s / 3600)
    assert one.kwh == pytest.approx(1000 * one.energy_j / 3.6e6)
    assert one.cost == f"{0.25 * one.kwh:.4f} EUR"
    out = io.StringIO()
    print_summary(summary, None, "zeus-stream sql", out)
    assert "an iteration of a replica, and 1,000 of all:" in out.getvalue()
    assert re.search(r"highest clocks +[\d.]+ s +[\d.]+ J +0 % +[\d.]+ min +[\d.]+ kJ", out.getvalue())
    assert re.search(r"1\.05, chosen .* EUR", out.getvalue())


def test_slower_points_that_save_no_more_are_no_choices() -> None:
    point = {"slowdown": 1.0, "time_s": 1.0, "energy_j": 90.0, "unplanned_s": 1.0, "unplanned_j": 100.0}
    points = [
        point,
        {**point, "slowdown": 1.1, "energy_j": 90.0},
        {**point, "slowdown": 1.2, "energy_j": 80.0},
    ]
    row = {"replicas": 2, "number": None, "slowdown": None}
    found = choices_of(points, row)
    assert [each.slowdown for each in found] == [None, 1.0, 1.2]
    assert found[1].kwh == pytest.approx(2 * 1000 * 90 / 3.6e6)
    assert choices_of([], row) == []
    replaced = {**row, "number": 4, "slowdown": 1.0, "promised_s": 0.98, "promised_j": 92.0}
    (in_force,) = (each for each in choices_of(points, replaced) if each.chosen)
    assert in_force.time_s == 0.98, "the plan in force, not the first one"
    assert in_force.saved_percent == pytest.approx(8)
    waiting = {**replaced, "promised_s": 1.2, "promised_j": 70.0}
    assert [each.time_s for each in choices_of(points, waiting) if each.chosen] == [1.0]


def test_a_run_without_a_pipeline_has_no_panel(answer: Answer) -> None:
    assert answer("SELECT count(*) AS count FROM pipelines WHERE run = 'other'").to_pylist() == [{"count": 0}]


def test_colours_tell_clocks_apart() -> None:
    low, middle, high = (clock_colour(mhz, 600, 1400) for mhz in (600, 1000, 1400))
    assert len({low, middle, high}) == 3
    assert clock_colour(1400, 1400, 1400) == high
