"""The JSON of reports: a published schema describes every field of it, and a period says what it is about."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from tests.analyzers import archives
from tests.zeus_stream.screens.asked_archive import Answer, asked_archive
from zeus_stream.errors import SettingsError
from zeus_stream.questions.asking import answered
from zeus_stream.questions.run_questions import find_last
from zeus_stream.screens.site.period import Period, find_period
from zeus_stream.screens.site.site_report import site_summary
from zeus_stream.screens.text.run_cost import summarize, write_json, write_summary

SCHEMA = Path(__file__).parents[4] / "docs" / "reference" / "report.schema.json"
DAY_NS = 86_400_000_000_000


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answer]:
    opened = replace(archives.RUN, session="open", run="open", job="other")
    with asked_archive(tmp_path_factory.mktemp("report"), [opened]) as ask:
        yield ask


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )


def run_json(answer: Answer, run: str) -> dict[str, Any]:
    summary = summarize(answer, run, (0.3, "EUR"))
    assert summary is not None
    out = io.StringIO()
    write_summary(summary, out)
    return dict(json.loads(out.getvalue()))


@pytest.mark.parametrize("run", ["run-1", "open"])
def test_the_json_of_a_run_is_as_its_schema_says(
    answer: Answer, validator: jsonschema.Draft202012Validator, run: str
) -> None:
    report = run_json(answer, run)
    validator.validate(report)
    assert report["closed"] is (run == "run-1")
    for name in ("energy_j", "closed", "saving"):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({key: value for key, value in report.items() if key != name})
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**report, "trials": [{"unknown": 1}]})


def test_the_json_of_a_period_is_as_its_schema_says(
    answer: Answer, validator: jsonschema.Draft202012Validator
) -> None:
    period = answered(find_period("7d", None), answer)
    out = io.StringIO()
    write_json(site_summary(answer, period, "1.0"), out)
    report = json.loads(out.getvalue())
    validator.validate(report)
    assert (report["runs"], report["measured"], report["energy_j"]) == (2, 1, 12_000)
    assert [(row["job"], row["runs"], row["open"]) for row in report["jobs"]] == [
        ("train", 1, 0),
        ("other", 0, 1),
    ]
    whole_j = sum(archives.energy_mj(gpu, archives.SECONDS) for gpu in (archives.A, archives.B)) / 1000
    assert sum(row["energy_j"] for row in report["over_time"]) == pytest.approx(whole_j, rel=0.02)
    assert report["span_s"] == 60


def test_a_period_without_runs_is_as_its_schema_says(
    answer: Answer, validator: jsonschema.Draft202012Validator
) -> None:
    report = site_summary(answer, Period(0, 1), "1.0")
    validator.validate(report)
    assert (report["runs"], report["energy_j"], report["jobs"]) == (0, None, [])


@pytest.mark.parametrize(
    ("since", "until", "begin_days", "end_days"),
    [("7d", None, 7, 0), ("36h", "12h", 1.5, 0.5), ("2w", "1d", 14, 1), ("1.5d", "0h", 1.5, 0)],
)
def test_a_span_is_before_the_end_of_the_archive(
    answer: Answer, since: str, until: str | None, begin_days: float, end_days: float
) -> None:
    period, end_ns = answered(find_period(since, until), answer), answered(find_last(), answer)
    assert period.begin_ns == end_ns - round(begin_days * DAY_NS)
    assert period.end_ns == end_ns - round(end_days * DAY_NS) + (until is None)  # a run at the end counts


def test_a_time_is_of_utc_unless_it_says_another(answer: Answer) -> None:
    period = answered(find_period("1970-01-02", "1970-01-03T00:00+01:00"), answer)
    assert (period.begin_ns, period.end_ns) == (DAY_NS, 2 * DAY_NS - DAY_NS // 24)


@pytest.mark.parametrize(
    "text", ["7", "d", "-1d", "7 days", "", "1e3d", "7m", "2026-13-01", "20260501", "yesterday"]
)
def test_a_wrong_period_is_a_sentence(answer: Answer, text: str) -> None:
    with pytest.raises(SettingsError, match=r"--since: could not understand .* Give a span"):
        answered(find_period(text, None), answer)
    with pytest.raises(SettingsError, match="--until: could not understand"):
        answered(find_period("7d", text), answer)


def test_a_run_of_many_processes_is_one_run_of_the_period_in_which_it_began(tmp_path: Path) -> None:
    """Two ranks, and one that was resumed after the end of the period."""
    began_ns = archives.RUN.began_wall_ns
    ranks = [replace(archives.RUN, session=f"rank-{n}", rank=n, began_wall_ns=began_ns + n) for n in (1, 99)]
    with asked_archive(tmp_path, ranks) as ask:
        first, next_one = (
            site_summary(ask, Period(begin_ns, end_ns), "1.0")
            for begin_ns, end_ns in ((0, began_ns + 9), (began_ns + 9, 2 * began_ns))
        )
    assert (first["runs"], first["energy_j"], first["gpu_h"]) == (1, 12_000, pytest.approx(2 * 40 / 3600))
    assert (next_one["runs"], next_one["energy_j"]) == (0, None)


def test_a_period_has_the_runs_that_began_in_it(answer: Answer) -> None:
    began_ns = archives.RUN.began_wall_ns
    for period, runs in (
        (Period(began_ns, began_ns + 1), 2),
        (Period(began_ns + 1, 2 * began_ns), 0),
        (Period(0, began_ns), 0),
    ):
        assert site_summary(answer, period, "1.0")["runs"] == runs
