"""Energy budgets of runs: what is understood, what is said, and when a training ends."""

from typing import cast

import pyarrow as pa
import pytest
from msgspec.structs import replace

from tests.zeus_stream.screens.live_snapshots import SNAPSHOT, a_run
from zeus_stream.errors import SettingsError, UnreachableError
from zeus_stream.integrations import run_budget
from zeus_stream.integrations.run_budget import ENDS, over_budget, parse_budget
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.training.publisher import Publisher
from zeus_stream.transport.client import Connection


@pytest.mark.parametrize(
    ("text", "energy_j"),
    [("500Wh", 1.8e6), ("1.5 kWh", 5.4e6), ("2MJ", 2e6), ("10J", 10.0), (" 3 MWh ", 1.08e10)],
)
def test_a_budget_is_an_energy_with_its_unit(text: str, energy_j: float) -> None:
    assert parse_budget(text).energy_j == pytest.approx(energy_j)


@pytest.mark.parametrize("text", ["", "500", "Wh", "-3Wh", "0J", "5EUR", "1e3J", "3 wh"])
def test_another_text_is_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--stop-at: could not understand .* Give an energy .* 500Wh"):
        parse_budget(text)


@pytest.mark.parametrize(
    ("used_j", "forecast_j", "state"),
    [
        (None, 1e9, ""),
        (10, None, ""),
        (10, 99, ""),
        (10, 101, "exceeds"),
        (80, 101, "near"),
        (100, None, "over"),
    ],
)
def test_a_run_is_warned_of_its_forecast_then_of_what_it_has_used(
    used_j: float | None, forecast_j: float | None, state: str
) -> None:
    found, sentence = parse_budget("100J").state(used_j, forecast_j)
    assert found == state
    assert bool(sentence) == bool(state)


class Answering:
    """A connection to an analyzer that knows one run."""

    def __init__(self, used_j: float | None) -> None:
        self._now = replace(SNAPSHOT, runs=(replace(a_run("r"), energy_j=used_j, forecast=None),))

    def sql(self, query: str, *, timeout_s: float) -> pa.Table:
        assert "FROM sessions" in query
        assert timeout_s > 0
        return pa.table({"host": ["node1"]})

    def now(self, host: str, *, timeout_s: float) -> Snapshot:
        assert host == "node1"
        assert timeout_s > 0
        return self._now


def answering(used_j: float | None) -> Connection:
    return cast("Connection", Answering(used_j))


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_budget, "_warned", set())
    monkeypatch.setattr(run_budget, "_ask_from_ns", {})
    monkeypatch.delenv("ZEUS_STREAM_RUN", raising=False)


@pytest.mark.parametrize(
    ("used_j", "sentence"),
    [
        (79, ""),
        (99, "the run has used 99 % of its budget of 100J."),
        (100, f"the run has used 100 % of its budget of 100J. {ENDS}"),
    ],
)
def test_a_script_ends_once_its_run_has_used_the_budget(
    caplog: pytest.LogCaptureFixture, used_j: float, sentence: str
) -> None:
    for _ in range(2):
        over = run_budget.check_budget(parse_budget("100J"), "r", lambda: answering(used_j))
        assert over is (used_j >= 100)
    assert caplog.messages == ([f"zeus-stream: {sentence}"] if sentence else [])


def test_a_run_without_a_known_energy_goes_on_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert not run_budget.check_budget(parse_budget("100J"), "r", lambda: answering(None))
    (said,) = caplog.messages
    assert "the budget of 100J could not be watched: the energy of the run is not known." in said


def test_a_run_that_the_analyzer_does_not_know_goes_on() -> None:
    assert not run_budget.check_budget(parse_budget("100J"), "another", lambda: answering(500))


@pytest.mark.parametrize("run", ["", "r"])
def test_without_an_analyzer_the_training_goes_on_and_seldom_waits_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, run: str
) -> None:
    """With ZEUS_STREAM_RUN, `zeus-stream run` has started the analyzer beside the script, and watches it."""
    now_s = 100.0
    waits_s = []

    def unreachable() -> Connection:
        nonlocal now_s
        now_s += 2
        waits_s.append(now_s)
        raise UnreachableError("nobody answers")

    if run:
        monkeypatch.setenv("ZEUS_STREAM_RUN", run)
    monkeypatch.setattr(run_budget, "monotonic_ns", lambda: round(now_s * 1e9))
    for _ in range(100):
        now_s += 1
        assert not run_budget.check_budget(parse_budget("100J"), "r", unreachable)
    assert len(waits_s) == 3
    said = ["zeus-stream: the budget of 100J could not be checked: nobody answers"]
    assert caplog.messages == ([] if run else said)


def test_several_ranks_end_together_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ZEUS_STREAM_STOP_AT", "100J")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with Publisher(run="r") as publisher:
        assert not over_budget(publisher)
        assert over_budget(publisher, agree=lambda _: True)
    assert "Give it `agree`" in caplog.text


def test_a_budget_that_is_none_ends_nothing_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ZEUS_STREAM_STOP_AT", "much")
    assert not over_budget()
    assert "--stop-at: could not understand 'much'" in caplog.text
