"""A report names a cause only where the archive shows it: each sentence, and the situation that gives it."""

import io
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from tests.analyzers.archives import COMMAND
from tests.zeus_stream.screens.text.test_run_cost import (
    DECISION,
    RUN,
    STEPS,
    TRIALS,
    WHOLE,
    Summarize,
    of,
    shown,
)
from zeus_stream.screens.text.run_cost import print_unpublished
from zeus_stream.views.run_view import RunRows, run_of_rows
from zeus_stream.views.undecided import behind_facts, why_no_energy, why_undecided

__all__ = ("of",)
S = 1_000_000_000
ENDED: Mapping[str, Any] = {
    "selector": "cost:0.5", "search_wanted": False, "open_sessions": 0, "sessions": 1, "closed": 1, "gpus": 1,
    "steps": 40, "ranks": 4, "ranks_came": 4, "limits": 2, "clocks": False, "behind_s": 0.1,
    "unanswered_s": None, "steps_not_fitted": 0,
}  # fmt: skip


ENDED_EARLY = "no power limit: the training ended"
NO_END = "not yet: the end of the run is not in the archive"
SEARCHED = "during the search, after 2 limits measured"
AGAIN = "Run it again: the search goes on from there. Or train longer"
FEWER = "set a larger --stride-w, which leaves fewer limits"
LATE = "Limits came into force up to 9 s late"
LOOK = "Look at zeus-stream status: whether the collector is followed, and how far the analyzer is behind"
MORE = "leave the services more of the processor, if the machine was busy"
NO_STEPS = "no power limit: the run has no steps. Wrap its loop in zeus_stream.steps"
NEVER_CAME = (
    "and 3 of its 4 ranks never came, for which the search waits at first. Start all ranks, or train longer"
)
NOTHING_MEASURED: Mapping[str, Any] = {"limits": 0, "behind_s": None}
SITUATIONS: Mapping[str, tuple[Mapping[str, Any], str | None]] = {
    "it ended between two limits": (
        {},
        f"{ENDED_EARLY} {SEARCHED}. {AGAIN}, or {FEWER}",
    ),
    "it ended between two clocks": (
        {"clocks": True},
        f"no clock: the training ended during the search, after 2 clocks measured. {AGAIN}",
    ),
    "it ended before the first": (
        NOTHING_MEASURED,
        f"{ENDED_EARLY} before a limit was measured. Train longer",
    ),
    "it ended before the first, and waited for ranks": (
        {**NOTHING_MEASURED, "ranks_came": 1},
        f"{ENDED_EARLY} before a limit was measured, {NEVER_CAME}",
    ),
    "it went on without the ranks that never came": (
        {"ranks_came": 3},
        f"{ENDED_EARLY} {SEARCHED}. {AGAIN}, or {FEWER}",
    ),
    "it goes on, or the analyzer ended before it": ({"open_sessions": 1}, f"{NO_END}; 2 limits measured"),
    "it goes on, at its first limit": ({"open_sessions": 1, "limits": 1}, f"{NO_END}; 1 limit measured"),
    "a busy host held the search up": (
        {"behind_s": 9.4},
        f"{ENDED_EARLY} {SEARCHED}. {LATE}. {AGAIN}, or {MORE}",
    ),
    "the first limit never came into force": (
        {**NOTHING_MEASURED, "unanswered_s": 12.0},
        f"{ENDED_EARLY} 12 s after the first limit was asked for, which was not in force by then. {LOOK}",
    ),
    "the last limit had no outcome": (
        {"unanswered_s": 12.0},
        f"{ENDED_EARLY} {SEARCHED}. {AGAIN}, or {FEWER}",
    ),
    "there is nothing to limit": ({**NOTHING_MEASURED, "gpus": 0}, "no power limit: the run uses no GPU"),
    "it only has windows": ({**NOTHING_MEASURED, "steps": 0}, NO_STEPS),
    "the analyzer only measures": ({**NOTHING_MEASURED, "selector": "none"}, None),
    "the script asked an analyzer that only measures": (
        {**NOTHING_MEASURED, "selector": "none", "search_wanted": True},
        None,
    ),
    "the script did not ask for a search": ({**NOTHING_MEASURED, "selector": "script"}, None),
    "the script asked, and ended": (
        {**NOTHING_MEASURED, "selector": "script", "search_wanted": True},
        f"{ENDED_EARLY} before a limit was measured. Train longer",
    ),
    "an archive that does not know its settings": ({**NOTHING_MEASURED, "selector": None}, None),
}


@pytest.mark.parametrize(("situation", "sentence"), SITUATIONS.values(), ids=SITUATIONS)
def test_why_a_run_has_no_decision(situation: Mapping[str, Any], sentence: str | None) -> None:
    totals = {**ENDED, **situation}
    assert why_undecided(totals) == sentence
    whole = {
        "energy_j": None, "energy_p2_5_j": None, "energy_p97_5_j": None, "duration_s": None, "quality": "",
    }  # fmt: skip
    totals = {"job": "job", "epochs": 0, "places": None, **totals}
    headed = run_of_rows(RunRows(run="run", totals=totals, whole=whole)).headline
    words = "no power limit was searched for" if sentence is None else sentence
    assert headed == f"{words[:1].upper()}{words[1:]}."


@pytest.mark.parametrize(
    ("situation", "quality", "sentence"),
    [
        pytest.param({}, "the GPU was lost", "the GPU was lost", id="a row says why"),
        pytest.param({"closed": 0}, None, "the run is not measured to its end yet", id="not closed"),
        pytest.param({}, None, "no GPU was measured", id="closed, and no row of a GPU"),
    ],
)
def test_why_the_energy_of_a_run_is_missing(
    situation: Mapping[str, Any], quality: str | None, sentence: str
) -> None:
    assert why_no_energy({**ENDED, **situation}, {"quality": quality}) == sentence


def test_it_says_by_how_much_the_analyzer_was_behind_and_nothing_where_it_was_not() -> None:
    assert behind_facts(ENDED) == []
    assert behind_facts({**ENDED, "behind_s": None}) == []
    assert behind_facts({**ENDED, "behind_s": 12.3, "steps_not_fitted": 7}) == [
        (
            "behind",
            (
                "by up to 12 s: limits came into force so late;"
                " the energy of 7 of 40 steps is less exact: it comes from the counter alone"
            ),
        )
    ]


@pytest.mark.sweep
def test_the_archive_shows_the_situations(of: Summarize) -> None:
    late = replace(
        COMMAND, command="c", run="it's a run", gpu="GPU-a", limit_w=175.0, asked_ns=S, outcome="applied",
        outcome_limit_w=175.0, outcome_ns=10 * S,
    )  # fmt: skip
    asked = replace(late, outcome=None, outcome_limit_w=None, outcome_ns=None)
    ended = replace(RUN, gpus=("GPU-a",), ended_ns=13 * S)
    assert "12 s after the first limit was asked for" in " ".join(
        shown(of([ended, WHOLE, *STEPS, asked])).split()
    )
    shed = replace(STEPS[0], quality="the analyzer was behind: by the counter alone")
    text = shown(of([RUN, WHOLE, shed, *STEPS[1:], *TRIALS, late]))
    assert "ended during the search" in text
    assert LATE in text
    assert "behind by up to 9 s" in text
    assert "the energy of 1 of 3 steps is less exact" in text


@pytest.mark.sweep
def test_the_archive_shows_ranks_that_never_came(of: Summarize) -> None:
    text = shown(of([replace(RUN, world_size=2), WHOLE, *STEPS]))
    assert "1 of its 2 ranks never came" in text
    assert "never came" not in shown(of([RUN, WHOLE, *STEPS]))


def test_a_run_whose_end_is_not_there_did_not_end_during_its_search(of: Summarize) -> None:
    text = shown(of([replace(RUN, ended_ns=None, ended_how=None), *STEPS, *TRIALS]))
    assert "chosen not yet: the end of the run is not in the archive; 2 limits measured" in text
    assert "missing: its energy by second is not in the archive yet" in text
    assert "ended during the search" not in text
    assert DECISION.reason not in text


@pytest.mark.parametrize(
    ("behind_s", "failed", "lacking", "sentence"),
    [
        pytest.param(
            0.0, None, None, "The command published no run, so nothing was measured.", id="no line in it"
        ),
        pytest.param(
            0.0, "exit code 1", None, "ended before its first step (exit code 1)", id="it failed first"
        ),
        pytest.param(
            0.0, "exit code 1", "/usr/bin/python", "has no package zeus_stream", id="not installed there"
        ),
        pytest.param(30.0, None, None, "yet: the analyzer is behind by 30 s", id="the analyzer is behind"),
    ],
)
def test_why_a_command_has_no_run(
    behind_s: float, failed: str | None, lacking: str | None, sentence: str
) -> None:
    out = io.StringIO()
    print_unpublished(out, lacking, behind_s=behind_s, failed=failed)
    text = " ".join(out.getvalue().split())
    assert sentence in text
    assert ("Add one line" in text) == (not behind_s and failed is None and lacking is None)
    assert ("zeus_stream.steps(loader)" in text) == (not behind_s and lacking is None)
