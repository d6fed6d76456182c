"""What the views ``scatter`` and ``savings`` say of a saving: how much, how sure, and of whom it is known."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.live.live_runs import LiveRuns
from analyzers.results.rows import DecisionRow, Row, RunRow, WindowRow
from tests.analyzers.archives import DECISION, RUN, SECOND, TRIAL, asked, window

STEPS = 40
Savings = Callable[[Sequence[Row]], list[dict[str, Any]]]


@pytest.fixture
def savings(archive: DuckdbFile) -> Savings:
    """The view of an archive that holds these rows, by run.

    The macro for one run has to say the same, and so do the rows that are stored once the runs have ended.
    """

    def of(rows: Sequence[Row]) -> list[dict[str, Any]]:
        archive.put([], rows, {}, replaying=True)
        found = asked(archive, "FROM savings ORDER BY run")
        for saving in found[:10]:
            (one,) = asked(archive, f"FROM saving_of('{saving['run']}')")
            assert one == {name: close(value) for name, value in saving.items()}
        runs = [row for row in rows if isinstance(row, RunRow)]
        archive.put([], [end(run) for run in runs])
        assert asked(archive, "SELECT count(*) AS stored FROM ended_savings") == [{"stored": len(found)}]
        stored = asked(archive, "FROM savings ORDER BY run")
        assert stored == [{name: close(value) for name, value in row.items()} for row in found]
        return found

    return of


def end(run: RunRow) -> WindowRow:
    """Return the window that closes a session."""
    return replace(window("run", 0, 0, 100, run.gpus[0]), session=run.session, run=run.run)


def close(value: object) -> object:
    """Return a value that equals one which was added up in another order."""
    return pytest.approx(value, rel=1e-9, abs=1e-9) if isinstance(value, float) else value


def step(run: str, index: int, energy_j: float, step_s: float, limit_w: float) -> WindowRow:
    begin_ns = index * SECOND
    return replace(
        window("step", index, 0, 0, RUN.gpus[0]),
        session=run,
        run=run,
        begin_ns=begin_ns,
        end_ns=begin_ns + round(step_s * SECOND),
        duration_s=step_s,
        energy_j=energy_j,
        power_limit_w=limit_w,
    )


def profiled(run: str, costs: Sequence[tuple[float, Sequence[float], Sequence[float]]]) -> list[Row]:
    """Return a run with a trial of whole seconds' steps at each limit: limit, energies J, times s."""
    rows: list[Row] = [replace(RUN, session=run, run=run, gpus=RUN.gpus[:1])]
    first = 0
    for number, (limit_w, energies_j, steps_s) in enumerate(costs):
        steps = [
            step(run, first + n, energy_j, step_s, limit_w)
            for n, (energy_j, step_s) in enumerate(zip(energies_j, steps_s, strict=True))
        ]
        rows += steps
        rows.append(
            replace(
                TRIAL,
                run=run,
                number=number,
                power_limit_w=limit_w,
                steps=len(steps),
                duration_s=sum(steps_s),
                energy_j=sum(energies_j),
                average_power_w=1.0,
                cost=None,
                temperature_c=None,
                began_ns=first * SECOND,
                ended_ns=(first + len(steps)) * SECOND,
            )
        )
        first += len(steps)
    top, chosen = costs[0], costs[-1]
    rows.append(
        DecisionRow(
            run=run,
            number=1,
            round=1,
            t_ns=0,
            selector="energy",
            power_limit_w=chosen[0],
            steps=first,
            default_limit_w=top[0],
            energy_per_step_j=float(np.mean(chosen[1])),
            step_s=float(np.mean(chosen[2])),
            default_energy_per_step_j=float(np.mean(top[1])),
            default_step_s=float(np.mean(top[2])),
            applied=True,
            reason="",
            trials_run=run,
            trials_round=1,
        )
    )
    return rows


def test_the_interval_holds_the_truth_in_95_of_100_runs(savings: Savings) -> None:
    """Steps of 100 and 80 J, 0.5 and 0.6 s, with 5 and 2 % of independent noise: 20 % saved, 20 % added."""
    rng = np.random.default_rng(1)

    def noisy(mean: float, share: float) -> list[float]:
        return list(rng.normal(mean, share * mean, STEPS))

    rows = [
        row
        for number in range(200)
        for row in profiled(
            f"run-{number}",
            [(300.0, noisy(100, 0.05), noisy(0.5, 0.02)), (200.0, noisy(80, 0.05), noisy(0.6, 0.02))],
        )
    ]
    found = savings(rows)
    assert len(found) == 200
    for what, truth in (("energy_saved", 20.0), ("time_added", 20.0)):
        within = [row[f"{what}_low_percent"] <= truth <= row[f"{what}_high_percent"] for row in found]
        assert 0.93 <= np.mean(within) <= 0.995
    widths = [row["energy_saved_high_percent"] - row["energy_saved_low_percent"] for row in found]
    # Of a ratio of two means of 40: 80 % x 1.96 x 5 % x sqrt(2 / 40), twice; by Student's t a fifth more.
    assert np.median(widths) == pytest.approx(2 * 80 * 1.96 * 0.05 * np.sqrt(2 / STEPS) * 1.2, rel=0.1)


def test_with_less_than_four_steps_nobody_knows_how_sure_it_is(savings: Savings) -> None:
    costs = [(300.0, [100.0] * 3, [0.5] * 3), (200.0, [80.0] * 3, [0.6] * 3)]
    (row,) = savings(profiled("run", costs))
    assert row["energy_saved_percent"] == pytest.approx(20)
    assert row["energy_saved_low_percent"] is None
    assert row["time_added_high_percent"] is None


def test_the_limit_found_saves_nothing_and_that_is_sure(savings: Savings) -> None:
    rows = profiled("run", [(300.0, [100.0, 110.0] * 4, [0.5, 0.6] * 4)])
    (row,) = savings(rows)
    assert [row[f"energy_saved{part}_percent"] for part in ("", "_low", "_high")] == [0, 0, 0]


def test_what_an_observing_run_would_save_is_known_from_the_earlier_one(savings: Savings) -> None:
    noise = [99.0, 101.0] * 4
    earlier = profiled("earlier", [(300.0, noise, [0.5] * 8), (200.0, [80.0, 80.5] * 4, [0.6] * 8)])
    decided = next(row for row in earlier if isinstance(row, DecisionRow))
    observing = replace(decided, run="observing", applied=False, reason="No permission.")
    rows: list[Row] = [replace(RUN, session="observing", run="observing"), observing]
    rows += [step("observing", n, 104.0, 0.5, 300.0) for n in range(50)]
    _, row = savings([*earlier, *rows])
    assert row["trials_run"] == "earlier"
    assert row["saved_j"] == 0
    assert row["would_save_j"] == pytest.approx(50 * 104 * row["energy_saved_percent"] / 100)
    assert row["changed_percent"] == pytest.approx(4)
    assert row["energy_saved_low_percent"] < row["energy_saved_percent"] < row["energy_saved_high_percent"]


def test_steps_with_a_gpu_below_the_limit_of_its_job_are_at_the_limit(savings: Savings) -> None:
    rows = profiled("run", [(300.0, [100.0] * 8, [0.5] * 8), (200.0, [80.0] * 8, [0.5] * 8)])
    for index in range(16, 26):
        at_limit = step("run", index, 40.0, 0.5, 200.0)
        rows += [at_limit, replace(at_limit, gpu=RUN.gpus[1], energy_j=30.0, power_limit_w=150.0)]
    (row,) = savings(rows)
    assert row["steps_at_limit"] == 18
    assert row["saved_j"] == pytest.approx(18 * 100 - 8 * 80 - 10 * 70)


def test_each_stretch_of_steps_is_compared_with_the_baseline_of_its_own_decision(savings: Savings) -> None:
    """A workload that becomes three times as dear: the later baseline says nothing of the steps before."""
    rows = profiled("run", [(300.0, [100.0] * 8, [0.5] * 8), (200.0, [80.0] * 8, [0.5] * 8)])
    first = next(row for row in rows if isinstance(row, DecisionRow))
    rows += [step("run", index, 80.0, 0.5, 200.0) for index in range(16, 36)]
    rows += [step("run", index, 270.0, 0.5, 200.0) for index in range(36, 46)]
    rows.append(
        replace(
            first,
            number=2,
            round=2,
            steps=36,
            energy_per_step_j=270.0,
            default_energy_per_step_j=300.0,
            energy_saved_low_percent=9.0,
            energy_saved_high_percent=11.0,
        )
    )
    (row,) = savings(rows)
    assert row["saved_j"] == pytest.approx(28 * 20 + 10 * 30)
    # the interval is that of the decision
    assert (row["energy_saved_low_percent"], row["energy_saved_high_percent"]) == (9.0, 11.0)


def test_steps_since_a_change_count_for_the_decision_that_follows_it(savings: Savings) -> None:
    """Until then they are at the limit of the decision before, which is another one."""
    rows = profiled("run", [(300.0, [100.0] * 8, [0.5] * 8), (200.0, [80.0] * 8, [0.5] * 8)])
    first = next(row for row in rows if isinstance(row, DecisionRow))
    rows += [step("run", index, 80.0, 0.5, 200.0) for index in range(16, 32)]
    rows += [step("run", index, 270.0, 0.5, 200.0) for index in range(32, 46)]
    rows += [step("run", index, 250.0, 0.5, 150.0) for index in range(46, 56)]
    kept = replace(first, number=2, steps=40, reason="kept for now")
    chosen = replace(kept, number=3, round=2, steps=50, changed_step=32, power_limit_w=150.0)
    rows += [kept, replace(chosen, energy_per_step_j=250.0, default_energy_per_step_j=300.0)]
    (row,) = savings(rows)
    assert row["saved_j"] == pytest.approx(24 * 20 + 14 * 30 + 10 * 50)
    assert [each["steps"] for each in row["stretches"]] == [24, 24]
    live = LiveRuns(lambda _gpu: 0)
    order = sorted(
        rows, key=lambda each: each.steps if isinstance(each, DecisionRow) else getattr(each, "index", 0)
    )
    live.take_rows(order, 0)
    assert live.saved()[0] == pytest.approx(row["saved_j"]), "live as well"


def test_a_limit_that_is_the_found_one_has_saved_nothing(savings: Savings) -> None:
    rows = profiled("run", [(300.0, [100.0, 110.0] * 4, [0.5, 0.6] * 4)])
    rows += [step("run", index, 120.0, 0.5, 300.0) for index in range(8, 26)]
    (row,) = savings(rows)
    assert (row["saved_j"], row["energy_saved_percent"]) == (0, 0)


def test_where_nothing_is_known_nothing_is_said(savings: Savings) -> None:
    nothing = replace(DECISION, power_limit_w=None, energy_per_step_j=None, step_s=None, applied=False)
    (row,) = savings([RUN, replace(nothing, default_energy_per_step_j=None, default_step_s=None)])
    for name in ("energy_saved_percent", "energy_saved_low_percent", "would_save_j", "changed_percent"):
        assert row[name] is None


def test_the_saving_of_an_ended_run_is_read_and_not_computed_again(archive: DuckdbFile) -> None:
    costs = [(300.0, [100.0] * 8, [0.5] * 8), (200.0, [80.0] * 8, [0.5] * 8)]
    rows = profiled("run", costs)
    first = next(row for row in rows if isinstance(row, RunRow))
    archive.put([], [*rows, end(first)])
    (ended,) = asked(archive, "FROM savings")
    assert ended["saved_j"] == pytest.approx(8 * 20)

    archive.file.connection.execute("DELETE FROM windows WHERE kind = 'step'")
    assert asked(archive, "FROM savings") == asked(archive, "FROM saving_of('run')") == [ended]


def test_a_run_that_is_resumed_counts_its_new_steps(archive: DuckdbFile) -> None:
    costs = [(300.0, [100.0] * 8, [0.5] * 8), (200.0, [80.0] * 8, [0.5] * 8)]
    rows = profiled("run", costs)
    first = next(row for row in rows if isinstance(row, RunRow))
    resumed = replace(first, session="second")
    archive.put([], [*rows, end(first)])
    later = [replace(step("run", n, 80.0, 0.5, 200.0), session="second") for n in range(16, 20)]
    archive.put([], [resumed, *later])
    assert asked(archive, "SELECT steps_at_limit FROM savings") == [{"steps_at_limit": 12}]
    assert not asked(archive, "FROM ended_savings")

    archive.put([], [end(resumed)])
    assert asked(archive, "SELECT steps_at_limit, sessions FROM ended_savings") == [
        {"steps_at_limit": 12, "sessions": 2}
    ]
