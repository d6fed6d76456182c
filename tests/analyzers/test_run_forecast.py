"""Forecasts of runs, against worlds whose end is known."""

from math import sqrt
from random import Random
from statistics import median
from typing import Any

import numpy as np
import pytest
from msgspec.structs import asdict, replace

from analyzers.interpreter.batch_means import MOST, BatchMeans, added
from analyzers.interpreter.run_forecast import RunForecast, Spent
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.rows import DecisionRow, ForecastRow, WindowRow
from benchmarks.noise.forecasts import KINDS, at_half_time
from tests.simulation.simulated_site import Training
from tests.simulation.world import World
from zeus_stream.protocol.events import RunStarted
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import Notes, RunAdmitted
from zeus_stream.views.forecast import forecast_of_row

QUICK = RunSettings(
    selector=selectors.parse("energy"),
    stride_mw=75_000,
    warmup_steps=2,
    profile_steps=8,
    refreshes=2,
    exhaustive=True,
)


@pytest.mark.parametrize("memory", [0.0, 0.9], ids=["independent values", "values that follow each other"])
def test_the_interval_of_a_sum_holds_the_truth_in_95_percent_and_more(memory: float) -> None:
    rng, held, halves = Random(7), 0, list[float]()
    for _ in range(150):
        means, value, truth = BatchMeans(), 0.0, 0.0
        for at in range(450):
            value = memory * value + rng.gauss(0, 1)
            if at < 300:
                means.add(10 + value)
            else:
                truth += 10 + value
        mean, half = added([means.next(150)]) or (0.0, None)
        assert half is not None
        held += abs(truth - mean) <= half
        halves.append(half)
        assert len(means.means) < MOST
    assert held / 150 >= 0.93
    # half of the interval, were the noise known: of 150 values to come, and of the mean of 300
    known = 1.96 * sqrt((150 + 150**2 / 300) * (1 if memory == 0 else (1 + memory) / (1 - memory)))
    assert median(halves) < 4.2 * known


def test_one_batch_has_no_interval_and_none_no_sum() -> None:
    one = BatchMeans()
    assert added([one.next(5)]) is None
    one.add(3.0)
    assert added([one.next(5)]) == (15.0, None)
    one.add(3.0)
    assert added([one.next(5)]) == (15.0, 0.0)
    assert added([one.next(0)]) == (0.0, 0.0)


def epochs_of(forecast: RunForecast, count: int, *, limit_w: float = 200.0) -> list[ForecastRow | None]:
    """Return the forecasts of epochs of 20 steps of 2 J and 0.1 s, each with 5 J and 1 s besides."""
    made = []
    for _ in range(count):
        done = forecast.epochs_done
        forecast.begin_rounds(Spent(3 + 3.0 * done, 30 + 45.0 * done))
        for step in range(20):
            forecast.add_step(20 * done + step, 2.0, 0.1, limit_w)
        forecast.epochs_done = done + 1
        forecast.end_round(Spent(3 + 3.0 * (done + 1), 30 + 45.0 * (done + 1)))
        made.append(forecast.forecast(0))
    return made


def test_steps_and_what_is_between_them_make_the_forecast_after_the_first_epoch() -> None:
    forecast = RunForecast(run="r")
    forecast.plan(10, None)
    first, second = epochs_of(forecast, 2)
    assert first is not None
    assert first.energy_j == pytest.approx(480)
    assert first.duration_s == pytest.approx(33)
    assert (first.energy_p2_5_j, first.duration_p97_5_s) == (None, None)
    assert second is not None
    assert second.steps == 200
    assert second.energy_p2_5_j == pytest.approx(480)
    # as long as two rests may be what the run has not done yet: a test at its end
    assert second.energy_p97_5_j == pytest.approx(480 + 10)


def test_steps_at_the_limit_of_the_last_step_alone_count() -> None:
    forecast = RunForecast(run="r")
    forecast.plan(10, None)
    for step in range(10):
        forecast.add_step(step, 9.0, 0.3, 300.0)
    (made,) = epochs_of(forecast, 1)
    assert made is not None
    assert made.power_limit_w == 200.0
    # 9 epochs of 30 steps of 2 J; nothing is left for what is between them: the first ten steps took it
    assert made.energy_j == pytest.approx(75 + 9 * 30 * 2.0)
    assert made.spent_j == 75


@pytest.mark.parametrize(
    "kind",
    [
        *("white, a loop", "uneven epochs", "growing steps", "growing faster", "settling", "wandering"),
        "longer in stages",
    ],
)
def test_the_interval_holds_in_nine_of_ten_runs_at_half_time(kind: str) -> None:
    held = 0
    for seed in range(40):
        made, whole_s = at_half_time(KINDS[kind](np.random.default_rng(seed)))
        assert made is not None
        assert made.duration_p2_5_s is not None
        assert made.duration_p97_5_s is not None
        held += made.duration_p2_5_s <= whole_s <= made.duration_p97_5_s
    assert held >= 36


@pytest.mark.parametrize(("first", "whole_s"), [(100, 20.0), (0, 20.0)], ids=["resumed", "begun again"])
def test_what_earlier_attempts_have_spent_counts_if_a_run_is_resumed(first: int, whole_s: float) -> None:
    forecast = RunForecast(run="r", earlier=Spent(10.0, 500.0))
    forecast.plan(None, 200)
    forecast.begin_rounds(Spent(0.0, 0.0))
    for at in range(first, first + 64):
        forecast.add_step(at, 5.0, 0.1, None)
    forecast.end_round(Spent(6.4, 320.0))
    made = forecast.forecast(0)
    assert made is not None
    assert made.duration_s == pytest.approx(whole_s)
    assert made.energy_j == pytest.approx(50 * whole_s)
    assert forecast.spent == Spent(made.spent_s, made.spent_j)


@pytest.mark.parametrize(
    ("plan", "steps"),
    [((None, None), 20), ((10, None), 4)],
    ids=["a script that says nothing", "too few steps"],
)
def test_without_a_plan_or_steps_there_is_no_forecast(plan: tuple[int | None, None], steps: int) -> None:
    forecast = RunForecast(run="r")
    forecast.plan(*plan)
    forecast.begin_rounds(Spent(0.0, 0.0))
    for step in range(steps):
        forecast.add_step(step, 2.0, 0.1, None)
    forecast.end_round(Spent(3.0, 45.0))
    assert forecast.forecast(0) is None


def test_epochs_without_steps_have_a_forecast_from_the_second_on_with_its_interval() -> None:
    forecast = RunForecast(run="r")
    forecast.plan(10, None)
    made = []
    for epoch in range(2):
        forecast.begin_rounds(Spent(3.0 * epoch, 45.0 * epoch))
        forecast.epochs_done = epoch + 1
        forecast.end_round(Spent(3.0 * (epoch + 1), 45.0 * (epoch + 1)))
        made.append(forecast.forecast(0))
    first, second = made
    assert first is not None
    assert second is not None
    assert [(each.energy_j, each.duration_s, each.steps) for each in (first, second)] == [
        (450.0, 30.0, 0)
    ] * 2
    assert (first.energy_p2_5_j, second.energy_p2_5_j) == (None, 450.0)
    view = forecast_of_row(asdict(second), None)
    assert view is not None
    assert view.length_words == "10 epochs"


def test_without_energy_the_time_is_forecast_all_the_same() -> None:
    forecast = RunForecast(run="r")
    forecast.plan(None, 1000)
    forecast.begin_rounds(Spent(0.0, None))
    for step in range(20):
        forecast.add_step(step, None, 0.1, None)
    forecast.end_round(Spent(2.0, None))
    made = forecast.forecast(0)
    assert made is not None
    assert made.energy_j is None
    assert made.duration_s == pytest.approx(100)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("planned", "device", "epoch_steps"),
    [
        ((5, None), "simulated:v100x2", 60),
        ((5, 300), "simulated:v100x1", 60),
        ((1, 300), "simulated:v100x1", 300),
    ],
    ids=["epochs", "steps", "one epoch whose steps are known"],
)
def test_the_forecast_of_a_run_comes_true(
    planned: tuple[int | None, int | None], device: str, epoch_steps: int
) -> None:
    training = Training("imagenet", 0.05, 300, epoch_steps=epoch_steps, checkpoint_s=0.5, planned=planned)
    world = World(device, training, QUICK)
    world.run()
    whole_j = sum(row.energy_j or 0 for row in world.rows(WindowRow) if row.kind == "run")
    whole_s = max(row.duration_s for row in world.rows(WindowRow) if row.kind == "run")
    chosen_w = world.rows(DecisionRow)[-1].power_limit_w
    made = world.rows(ForecastRow)
    assert len(made) >= 4  # the last epoch ends with the run
    after = [row for row in made if row.power_limit_w == chosen_w and row.step >= 120]
    for row in after:
        assert row.energy_j == pytest.approx(whole_j, rel=0.03)
        assert row.duration_s == pytest.approx(whole_s, rel=0.05)
    assert after
    assert made[-1].steps == 300


def test_a_run_that_says_nothing_of_its_length_has_no_forecast() -> None:
    world = World("simulated:v100x1", Training("imagenet", 0.05, 60, epoch_steps=20), QUICK)
    world.run()
    assert not world.rows(ForecastRow)


class OfTwoRanks(World):
    """A world with a second rank that takes the same steps on the same GPUs."""

    def hear(self, frame: Frame, body: Body) -> None:
        if isinstance(body, Events):
            body = replace(body, events=tuple(map(_of_two, body.events)))
        super().hear(frame, body)
        (host,) = self.hosts
        match body:
            case Events(session=host.session):
                host.log(replace(body, session="second", events=tuple(map(_of_second, body.events))))
            case Notes(notes=(RunAdmitted(session=host.session) as admitted,)):
                host.note(replace(admitted, session="second"))
            case _:
                pass


def _of_two(event: Any) -> Any:
    return replace(event, world_size=2) if isinstance(event, RunStarted) else event


def _of_second(event: Any) -> Any:
    return replace(event, rank=1, pid=event.pid + 1) if isinstance(event, RunStarted) else event


@pytest.mark.parametrize("planned", [(3, None), (None, 60)], ids=["epochs", "steps"])
def test_a_gpu_that_two_ranks_share_counts_once(planned: tuple[int | None, int | None]) -> None:
    """It counted twice: in what the run had spent and in each of its steps."""
    training = Training("imagenet", 0.05, 60, epoch_steps=20, planned=planned)
    settings = replace(QUICK, selector=None)
    alone, shared = (world("simulated:v100x1", training, settings) for world in (World, OfTwoRanks))
    alone.run()
    shared.run()
    assert {row.rank for row in shared.rows(WindowRow) if row.kind == "step"} == {0, 1}
    made = shared.rows(ForecastRow)
    assert made
    assert made == alone.rows(ForecastRow)
