import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.open_file import opened
from analyzers.archive.query import read_own
from analyzers.results.rows import GapRow, Row
from tests.analyzers import archives
from tests.analyzers.archives import GPU_LIMIT
from tests.empty_archive import archive_at
from zeus_stream.questions.run_questions import last_run
from zeus_stream.screens.text.run_cost import Summary, print_summary, summarize
from zeus_stream.screens.text.words import explained
from zeus_stream.settings import Settings

S = 1_000_000_000
NAMED: Any = {"session": "session", "run": "it's a run", "job": "digits", "host": "host"}
RUN = replace(
    archives.RUN, **NAMED, gpus=("GPU-a",), began_ns=0, ended_ns=9 * S, began_wall_ns=S, ended_how="ended"
)
WHOLE = replace(
    archives.WINDOW, **NAMED, kind="run", name="", gpu="GPU-a", begin_ns=0, end_ns=9 * S, duration_s=9.0,
    energy_j=1800.0, energy_low_j=1790.0, energy_high_j=1810.0, energy_p2_5_j=1791.0, energy_p97_5_j=1809.0,
    phase_coverage=1.0, power_limit_w=None,
)  # fmt: skip
STEPS = tuple(
    replace(
        WHOLE, kind="step", index=n, begin_ns=n * S, end_ns=(n + 1) * S, duration_s=1.0, energy_j=160.0,
        power_limit_w=175.0,
    )
    for n in range(3)
)  # fmt: skip
TRIALS = tuple(
    replace(
        archives.trial(n, limit_w, round_=0), run="it's a run", steps=2, duration_s=2.0, energy_j=400.0,
        average_power_w=200.0, cost=225.0, began_ns=n * S, ended_ns=(n + 2) * S,
    )
    for n, limit_w in enumerate((250.0, 175.0))
)  # fmt: skip
DECISION = replace(
    archives.DECISION, run="it's a run", round=0, t_ns=5 * S, power_limit_w=175.0, steps=4,
    default_limit_w=250.0, energy_per_step_j=160.0, step_s=1.08, default_energy_per_step_j=200.0,
    default_step_s=1.0,
    reason="least cost of 2 limits",
)  # fmt: skip
Summarize = Callable[[Sequence[Row]], Summary | None]


@pytest.fixture
def of(tmp_path: Path) -> Summarize:
    """The summary of an archive that holds these rows."""

    def summary(rows: Sequence[Row]) -> Summary | None:
        path, settings = tmp_path / "energy.duckdb", Settings()
        archive = DuckdbFile.open(archive_at(path), settings)
        archive.put([], rows, {}, replaying=False)
        archive.close()

        with opened(path, settings) as stored, stored.reading() as reader:
            return summarize(partial(read_own, reader), "it's a run")

    return summary


def shown(summary: Summary | None) -> str:
    assert summary is not None
    out = io.StringIO()
    print_summary(summary, Path("/a/energy.duckdb"), "zeus-stream sql", out)
    return " ".join(out.getvalue().split())


def test_a_run_that_paused_has_the_time_and_steps_of_all_its_attempts(of: Summarize) -> None:
    later = replace(RUN, session="later", began_wall_ns=61 * S)
    again = [replace(row, session="later") for row in (WHOLE, *STEPS[:2])]
    text = shown(of([RUN, WHOLE, *STEPS, later, *again]))
    assert "work 5 steps on 1 GPU time 18.0 s energy 3,600 J" in text
    assert "200 W on average" in text


def test_a_step_that_was_done_again_is_one_step(of: Summarize) -> None:
    later = replace(RUN, session="later", began_wall_ns=61 * S)
    again = [replace(row, session="later", index=row.index + 2) for row in STEPS[:2]]
    assert "work 4 steps on 1 GPU" in shown(
        of([RUN, WHOLE, *STEPS, later, replace(WHOLE, session="later"), *again])
    )


def test_a_run_that_went_on_after_a_process_was_lost_did_not_fail(of: Summarize) -> None:
    lost = replace(RUN, ended_how="process 7 has ended")
    later = replace(RUN, session="later", began_wall_ns=61 * S)
    again = [replace(row, session="later") for row in (WHOLE, *STEPS)]
    assert "failed" not in shown(of([lost, WHOLE, *STEPS, later, *again]))
    assert "failed process 7 has ended" in shown(
        of([RUN, WHOLE, *STEPS, replace(lost, session="later", began_wall_ns=61 * S), *again])
    )


def test_a_run_that_is_not_there_has_no_summary(of: Summarize) -> None:
    assert of([replace(RUN, run="another")]) is None


def test_a_run_is_closed_once_its_whole_was_measured(of: Summarize) -> None:
    summary = of([replace(RUN, ended_ns=None, ended_how=None)])
    assert summary is not None
    assert not summary.closed
    assert "energy missing" in shown(summary)
    assert "not closed yet" in shown(summary)


def test_a_closed_run_says_energy_with_bounds_the_choice_and_the_saving(of: Summarize) -> None:
    summary = of([RUN, WHOLE, *STEPS, *TRIALS, DECISION])
    assert summary is not None
    assert summary.closed
    text = shown(summary)
    assert "3 steps on 1 GPU" in text
    assert "1,800 J (95 %: 1,791 to 1,809 J), 200 W on average" in text
    assert "175 W: least cost of 2 limits" in text
    assert "20.0 % of a step's energy for 8.0 % more time, compared with 250 W, the limit found" in text
    assert "saved 120.0 J over 3 steps" in text
    assert "missing" not in text


def test_a_run_in_pods_names_them_each_once(of: Summarize) -> None:
    assert "pod" not in shown(of([RUN]))
    in_pod = replace(RUN, namespace="ml", pod="train-0", container="main")
    other = replace(in_pod, session="other", rank=1, pod="train-1")
    assert "pod ml/train-0, ml/train-1 time" in shown(
        of([in_pod, replace(in_pod, session="s", rank=2), other])
    )


def test_the_parts_of_the_energy_are_shown_with_their_causes(of: Summarize) -> None:
    saving = replace(
        WHOLE, kind="window", index=7, name="checkpoint", begin_ns=5 * S, end_ns=8 * S, energy_j=300.0
    )
    epoch = replace(WHOLE, kind="epoch", index=0, end_ns=4 * S, energy_j=680.0)
    assert "the rest" not in shown(of([replace(RUN, ended_ns=None, ended_how=None)]))
    text = shown(of([RUN, WHOLE, epoch, *STEPS, saving]))
    assert "steps 26.7 % of the energy" in text
    assert "outside epochs 820.0 J (45.6 %), checkpoint 300.0 J (16.7 %)" in text
    assert "not attributed 200.0 J (11.1 %)" in text


def test_a_part_of_less_than_a_percent_has_no_cure(of: Summarize) -> None:
    steps = [replace(step, energy_j=598.0) for step in STEPS]
    text = shown(of([RUN, WHOLE, *steps]))
    assert "the rest not attributed 6.000 J (0.3 %)" in text
    assert "to regain" not in text


def test_most_of_what_is_not_attributed_is_placed(of: Summarize) -> None:
    late = tuple(replace(step, begin_ns=step.begin_ns + 5 * S, end_ns=step.end_ns + 5 * S) for step in STEPS)
    assert "mostly" not in shown(of([RUN, WHOLE])), "without a step"
    assert "not attributed mostly 5.00 s before the first step or window" in shown(of(late))
    other = [replace(row, session="other", rank=1) for row in (WHOLE, *late)]
    text = shown(of([replace(RUN, session="other", rank=1), *other]))
    assert "not attributed mostly 5.00 s before the first step" in text, "of each, not of both"


def test_steps_that_were_not_measured_are_most_of_what_is_not_attributed(of: Summarize) -> None:
    """For 6 s in which the GPU was lost the report named 4 ms before the first step."""
    late = [replace(step, begin_ns=step.begin_ns + S // 10, end_ns=step.end_ns + S // 10) for step in STEPS]
    lost = replace(late[1], energy_j=None, energy_low_j=None, energy_high_j=None)
    text = shown(of([RUN, replace(WHOLE, end_ns=late[2].end_ns), late[0], lost, late[2]]))
    assert "not attributed mostly 1.00 s in steps that were not measured" in text


def test_words_of_a_report_are_explained_and_no_others(of: Summarize) -> None:
    words = {word for word, _ in explained(shown(of([RUN, WHOLE, *STEPS, *TRIALS, DECISION])))}
    assert {"steps", "the rest", "not attributed", "found", "saves", "95 %"} <= words
    assert not words & {"stragglers", "lag", "true energy"}


def test_the_cpus_joules_stand_beside_those_of_the_gpus(of: Summarize) -> None:
    cpu = replace(WHOLE, gpu="CPU-host-package-0", energy_j=500.0, shared=True)
    other_rank = replace(cpu, session="another", rank=1, energy_j=400.0)
    assert "host" not in shown(of([RUN, WHOLE]))
    text = shown(of([cpu, replace(RUN, session="another", rank=1), other_rank]))
    assert "energy 1,800 J" in text
    assert "host 500.0 J of its CPUs and DRAM, not in the energy above" in text
    assert "another run" not in text


def test_what_was_only_observed_would_save(of: Summarize) -> None:
    text = shown(of([RUN, WHOLE, *TRIALS, replace(DECISION, applied=False)]))
    assert "175 W, not set" in text
    assert "would save 20.0 %" in text


def test_a_saving_is_told_with_its_interval_and_of_whom_it_is_known(of: Summarize) -> None:
    earlier = [
        replace(step, session="earlier", run="earlier", index=n, begin_ns=n * S, end_ns=(n + 1) * S)
        for n, step in enumerate((STEPS[0],) * 16)
    ]
    scattered = [
        replace(step, energy_j=(200.0 if n < 8 else 160.0) + n % 2, power_limit_w=250.0 if n < 8 else 175.0)
        for n, step in enumerate(earlier)
    ]
    trials = [
        replace(TRIALS[n], run="earlier", steps=8, began_ns=8 * n * S, ended_ns=8 * (n + 1) * S)
        for n in range(2)
    ]
    observing = replace(DECISION, applied=False, trials_run="earlier", trials_round=0)
    now = [replace(step, power_limit_w=250.0, energy_j=190.475) for step in STEPS]
    begun = replace(RUN, session="earlier", run="earlier")
    text = shown(of([begun, *scattered, *trials, RUN, WHOLE, *now, observing]))
    assert "would save 20.0 % (95 %: 19.3" in text
    assert "in total 114.3 J (95 %: 109 to 119 J) of the energy of the steps at 250 W" in text
    assert (
        "known from earlier, an earlier run; a step at the highest limit takes 5.0 % less energy than then"
        in text
    )


def test_gpus_below_the_limit_of_their_job_are_told_with_what_that_saves(of: Summarize) -> None:
    first = replace(
        GPU_LIMIT, run="it's a run", gpu="GPU-a", t_ns=S, power_limit_w=175.0, job_limit_w=175.0,
        energy_percent=-5.1, time_percent=0.02, reason="the others wait for it",
    )  # fmt: skip
    rows = [first, replace(first, gpu="GPU-b", power_limit_w=150.0)]
    told = shown(of([RUN, WHOLE, *TRIALS, DECISION, *rows]))
    assert "single GPUs 1 of 2 are lower, down to 150 W: -5.1 % of a step's energy for under 0.1 %" in told
    none = [
        replace(row, round=2, power_limit_w=175.0, energy_percent=None, time_percent=None) for row in rows
    ]
    told = shown(of([RUN, WHOLE, *TRIALS, DECISION, *rows, *none]))
    assert "none of 2 can be lowered" in told


def test_the_last_run_is_the_one_that_began_last(of: Summarize, tmp_path: Path) -> None:
    of([RUN, replace(RUN, session="later", run="later", began_wall_ns=2 * S)])
    path = tmp_path / "energy.duckdb"
    with opened(path, Settings()) as stored, stored.reading() as reader:
        assert last_run(partial(read_own, reader)) == "later"


def test_without_a_choice_the_reason_is_shown(of: Summarize) -> None:
    none = replace(
        DECISION, power_limit_w=None, energy_per_step_j=None, step_s=None, applied=False,
        reason="No permission.",
    )  # fmt: skip
    assert "no power limit: No permission." in shown(of([RUN, WHOLE, none]))


def test_missing_energy_is_named_and_never_a_sum_of_the_rest(of: Summarize) -> None:
    lost = replace(
        WHOLE, gpu="GPU-b", energy_j=None, energy_low_j=None, energy_high_j=None, energy_p2_5_j=None,
        energy_p97_5_j=None, quality="the GPU was lost",
    )  # fmt: skip
    text = shown(of([replace(RUN, gpus=("GPU-a", "GPU-b")), WHOLE, lost]))
    assert "missing: the GPU was lost" in text
    assert "1,800" not in text


def test_gaps_are_shown(of: Summarize) -> None:
    assert "disk was full" in shown(of([RUN, WHOLE, GapRow("host", "events", S, 12, "disk was full")]))
