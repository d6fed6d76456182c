import csv
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zeus_stream.simulated_gpu.workloads
from analyzers.simulation.traces import PUBLISHED
from zeus_stream.simulated_gpu.workloads import Model, Workload, load

FITTED = json.loads(
    Path(zeus_stream.simulated_gpu.workloads.__file__).with_name("workloads.json").read_text()
)["models"]
EVERY = [(gpu, name) for gpu, model in load().items() for name in model.workloads]

MEASURED = [(gpu, name) for gpu, name in EVERY if "residuals" in FITTED[gpu]["workloads"][name]]


def test_models_that_nobody_measured_say_so_and_have_their_nameplate() -> None:
    models = load()
    assert set(models) == {"v100", "a40", "p100", "rtx6000", "a100", "h100"}
    assert {gpu for gpu, _ in MEASURED} == {"v100", "a40", "p100", "rtx6000"}
    for gpu, model in models.items():
        assert ("not measured" in model.source) == (gpu in {"a100", "h100"})
    assert (models["a100"].max_limit_mw, models["h100"].max_limit_mw) == (400_000, 700_000)


def measured(gpu: str, name: str) -> list[tuple[int, float, float]]:
    """Return the published (limit mW, epoch s, power mW)."""
    path = PUBLISHED / f"summary_power_{gpu}.csv"
    fitted = FITTED[gpu]["workloads"][name]
    with path.open() as file:
        return [
            (
                int(row["power_limit"]) * 1000,
                float(row["time_per_epoch"]),
                float(row["average_power"]) * 1000,
            )
            for row in csv.DictReader(file)
            if (row["dataset"], int(row["batch_size"]), row["optimizer"])
            == (name, fitted["batch_size"], fitted["optimizer"])
        ]


@pytest.mark.parametrize(("gpu", "name"), MEASURED)
def test_the_shipped_model_meets_the_measurements_as_closely_as_its_residuals_say(
    gpu: str, name: str
) -> None:
    workload = load()[gpu].workloads[name]
    rows = measured(gpu, name)
    power = [abs(workload.power_mw(limit) / power - 1) * 100 for limit, _, power in rows]
    time = [abs(workload.epoch_s * workload.slowdown(limit) / time - 1) * 100 for limit, time, _ in rows]
    told = FITTED[gpu]["workloads"][name]["residuals"]
    found = {"power_mean_pct": sum(power) / len(power), "power_max_pct": max(power)}
    found |= {"time_mean_pct": sum(time) / len(time), "time_max_pct": max(time)}
    assert found == pytest.approx(told, abs=0.01)
    assert max(told["power_mean_pct"], told["time_mean_pct"]) < 3


@pytest.mark.parametrize(
    ("gpu", "name"),
    [one for one in MEASURED if one not in {("a40", "movielens-1m"), ("p100", "movielens-1m")}],
)
def test_the_limit_of_least_cost_under_the_model_is_within_two_percent_in_the_measurements(
    gpu: str, name: str
) -> None:
    """movielens-1m is left out on the A40 and the P100: its measured times scatter by up to 10 %."""
    model = load()[gpu]
    workload, rows = model.workloads[name], measured(gpu, name)
    real = {limit: (power + model.max_limit_mw) * time for limit, time, power in rows}
    chosen = min(
        real, key=lambda limit: (workload.power_mw(limit) + model.max_limit_mw) * workload.slowdown(limit)
    )
    assert real[chosen] <= 1.02 * min(real.values())


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Model, Workload]:
    gpu, name = draw(st.sampled_from(EVERY))
    model = load()[gpu]
    return model, model.workloads[name]


@given(workloads(), st.lists(st.integers(0, 1_000_000), min_size=2, max_size=2))
def test_a_lower_limit_never_draws_more_and_never_works_faster(
    known: tuple[Model, Workload], places: list[int]
) -> None:
    model, workload = known
    span_mw = model.max_limit_mw - model.min_limit_mw
    lower, higher = sorted(model.min_limit_mw + span_mw * place // 1_000_000 for place in places)
    assert workload.power_mw(lower) <= workload.power_mw(higher)
    assert workload.slowdown(lower) >= workload.slowdown(higher) >= 1


@pytest.mark.sweep
@settings(max_examples=400)
@given(workloads(), st.data())
def test_a_lower_clock_never_draws_more_and_never_works_faster(
    known: tuple[Model, Workload], data: st.DataObject
) -> None:
    model, work = known
    clocks = st.integers(model.idle_clock_mhz, model.max_clock_mhz)
    low, high = sorted((data.draw(clocks), data.draw(clocks)))
    limit = data.draw(st.integers(model.min_limit_mw, model.max_limit_mw))
    assert work.power_mw(limit, low) <= work.power_mw(limit, high) <= work.power_mw(limit)
    assert work.slowdown(limit, low) >= work.slowdown(limit, high) >= work.slowdown(limit)
    assert work.clock_mhz(limit, low) <= low


def test_a_clock_and_a_limit_that_take_the_same_time_draw_the_same() -> None:
    model = load()["v100"]
    work = model.workloads["imagenet"]
    for limit in range(125_000, 250_001, 25_000):
        clock = work.clock_mhz(limit)
        assert work.slowdown(model.max_limit_mw, clock) == pytest.approx(work.slowdown(limit), rel=2e-3)
        assert work.power_mw(model.max_limit_mw, clock) == pytest.approx(work.power_mw(limit), rel=1e-2)


def test_where_only_a_shape_is_published_the_model_says_so() -> None:
    for gpu, model in load().items():
        assert "a shape, not a table" in model.clock_source
        assert ("of the V100" in model.clock_source) == (gpu in {"a40", "p100", "rtx6000"})
