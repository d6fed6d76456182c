"""Every sentence about extreme figures: none that cannot be, no rounding to 0, no interval of one point."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.zeus_stream.screens.live_snapshots import NOW_NS, a_gpu, a_run, a_search
from zeus_stream.protocol.snapshots import ForecastNow
from zeus_stream.views.costs import at_price, cost_words, costs_now, money, own_use_parts
from zeus_stream.views.forecast import forecast_facts, forecast_of_live, forecast_of_row
from zeus_stream.views.gpu_view import gpu_of_live
from zeus_stream.views.pipeline_view import PipelineView
from zeus_stream.views.quantity import (
    Quantity,
    bounds,
    figure,
    in_one_unit,
    joules,
    percent,
    seconds,
    watts,
    with_bounds,
    with_half,
)  # fmt: skip
from zeus_stream.views.run_view import run_of_live
from zeus_stream.views.saving import saving_of_row
from zeus_stream.views.waste import waste_facts, waste_parts

IMPOSSIBLE = {
    "not a number": re.compile(r"(?<![\w-])(?:inf|nan|None)(?![\w-])"),
    "minus zero": re.compile(r"(?<![\d.])-0(?:\.0+)?(?![\d.])"),
    "zero by rounding": re.compile(
        r"(?<![\w.,\d])[-+]?0\.0+ ?(?:[kMG]?J|[kmM]?Wh|W|%|m?s|EUR|gCO2e|kgCO2e)(?!\w)"
    ),
    "an interval of one point": re.compile(r"(?<![\d.,-])(-?[\d.,]+(?: \w+)?) to \1(?![\d.,])"),
    "a negative duration": re.compile(r"(?<![\w.])-\d[\d.,]* (?:µs|ms|s|min|h|d)\b"),
}
SIZES = st.floats(-15, 15).map(lambda power: 10.0**power)
SIGNED = st.one_of(st.just(0.0), SIZES, SIZES.map(lambda size: -size))
OPEN = st.one_of(st.none(), st.just(float("nan")), st.just(float("inf")), SIGNED)
UNITS = st.sampled_from(["J", "W", "s", "%", "J/step"])
SPANS = st.lists(st.one_of(st.just(0.0), SIZES), min_size=3, max_size=3).map(sorted)
"""Low, middle and high."""


def check(text: str) -> None:
    for what, pattern in IMPOSSIBLE.items():
        assert not pattern.search(text), f"{what}: {text}"


@st.composite
def quantities(draw: st.DrawFn) -> Quantity:
    """Return figures whose interval holds them, as narrow as doubles go."""
    unit: Any = draw(UNITS)
    value = draw(SIZES if unit == "s" else SIGNED)
    below, above = (abs(value) * 10.0 ** draw(st.floats(-16, 1)) for _ in range(2))
    return Quantity(value, unit, value - below, value + above)


@given(OPEN, UNITS)
def test_a_figure_is_said_or_not_known(value: float | None, unit: Any) -> None:
    for text in (str(Quantity(value, unit)), joules(value), watts(value), seconds(value), percent(value)):
        check(text)
    if unit != "s":  # `seconds` says those
        check(figure(value, unit))


@given(quantities())
def test_an_interval_has_the_digits_that_tell_its_ends_apart(quantity: Quantity) -> None:
    for text in (bounds(quantity), with_bounds(quantity), with_half(quantity)):
        check(text)


@given(st.lists(OPEN, max_size=4), st.sampled_from(["J", "s"]))
def test_a_column_shows_nothing_small_as_nothing(values: list[float | None], unit: Any) -> None:
    for text in in_one_unit(values, unit):
        check(text)


@given(OPEN, OPEN, OPEN, OPEN, SIZES)
def test_waste(energy: Any, duration: Any, share: Any, more: Any, so_far: float) -> None:
    rows = [
        {"cause": cause, "energy_j": energy_j, "duration_s": duration, "share": share}
        for cause, energy_j in (("steps", energy), ("not attributed", more), ("validation", energy))
    ]
    parts = waste_parts(rows, so_far)
    for part in parts:
        check(f"{part.energy}, {part.duration}, {part.share}, {part.cure}")
        assert part.energy.known != 0 or part.duration.known != 0, "nothing is no part"
    for _, text in waste_facts(parts):
        check(text)


@given(OPEN, OPEN, OPEN, OPEN, st.booleans())
def test_savings(share: Any, low: Any, high: Any, saved: Any, applied: bool) -> None:  # noqa: FBT001
    row = {
        "run": "run", "trials_run": "run", "power_limit_w": 200.0, "default_limit_w": 300.0,
        "applied": applied,
        "energy_saved_percent": share, "energy_saved_low_percent": low, "energy_saved_high_percent": high,
        "time_added_percent": high, "time_added_low_percent": share, "time_added_high_percent": low,
        "saved_j": saved, "would_save_j": saved, "steps_at_limit": 3, "reason": "", "changed_percent": None,
    }  # fmt: skip
    saving = saving_of_row(row)
    assert saving is not None
    for text in (saving.headline, saving.effect, saving.saved_words):
        check(text)
    assert ("over 3 steps at this limit" in saving.saved_words) == (applied and bool(saving.saved_words))


@given(SPANS, SIZES)
def test_costs_and_forecasts(span: list[float], factor: float) -> None:
    low, energy, high = span
    costs = [at_price(energy, (factor, "EUR"))]
    signals = [{**costs[0], "pue": None}]
    costs += [{**row, "amount_p2_5": low, "amount_p97_5": high} for row in costs_now(energy, signals)]
    for row in costs:
        check(" ".join(cost_words(row)))
    check(money(energy, signals))
    row = {
        "energy_j": energy, "energy_p2_5_j": low, "energy_p97_5_j": high, "duration_s": energy,
        "duration_p2_5_s": low, "duration_p97_5_s": high, "epochs": None, "steps": 9,
        "epochs_done": 1, "step": 2,
    }  # fmt: skip
    for _, text in forecast_facts(forecast_of_row(row, low)):
        check(text)


@given(OPEN, OPEN, OPEN, SIZES)
def test_pipelines(saved: Any, low: Any, high: Any, promised: float) -> None:
    row = {
        "number": 1, "saved": saved, "saved_low": low, "saved_high": high, "longer": saved, "longer_low": low,
        "longer_high": high, "promised_j": promised, "unplanned_j": 1.0, "promised_s": promised,
        "measured_s": promised, "plan_reason": "", "state": "following", "reason": "", "replicas": 1,
        "stages": 2, "micro_batches": 4, "schedule": "1f1b", "iterations_profiled": 4,
    }  # fmt: skip
    view = PipelineView.of_row(row)
    for text in (view.headline, view.details):
        check(text)


@given(SIZES, SIZES, SIZES)
def test_own_use(cores: float, low: float, high: float) -> None:
    rows = [{"service": "collector", "core_percent": cores, "share_low_percent": min(low, high),
             "share_high_percent": max(low, high)}]  # fmt: skip
    for parts in own_use_parts(rows):
        check(" ".join(parts))


def test_a_run_is_not_forecast_at_less_than_it_has_taken() -> None:
    now = ForecastNow(epochs=None, steps=9, energy_j=30.0, energy_low_j=18.0, energy_high_j=60.0, left_s=0.0,
                      left_low_s=None, left_high_s=None)  # fmt: skip
    view = forecast_of_live(now, 21.0)
    assert view is not None
    check(view.left_words)
    assert view.energy.interval == (21.0, 60.0), "18 J were possible when it was made, and 21 J are spent"


def test_a_reason_names_gpus_by_host_and_index() -> None:
    """As screens do: nobody knows a GPU by its UUID."""
    search = a_search(phase="observing", reason="GPU-node2-1: the lease ended")
    run = run_of_live(a_run(search=search), NOW_NS, [gpu_of_live(a_gpu(1, "node2"), NOW_NS)])
    assert run.reason == f"no power limit: {run.phase.more}"
    assert run.phase.more == "node2:1: the lease ended"


KEPT = {
    "power_limit_w": 300.0, "default_limit_w": 300.0, "applied": True, "saved_j": None, "steps_at_limit": 300,
    "reason": "best by cost:0.5, among 9 limits, 1 of them measured",
}  # fmt: skip


@pytest.mark.parametrize(
    ("energies", "words"),
    [
        ({300.0: 1.7}, "no better limit is known"),
        ({300.0: 1.7, 250.0: 1.785}, "none measured is better (the next takes 5.0 % more energy)"),
        ({300.0: 1.7, 250.0: 1.5}, "none measured is better"),
    ],
    ids=["no other was measured", "another was measured", "another takes less energy and more time"],
)
def test_a_limit_is_called_the_best_only_if_another_was_measured(
    energies: dict[float, float], words: str
) -> None:
    trials = [{"power_limit_w": limit_w, "step_j": step_j} for limit_w, step_j in energies.items()]
    saving = saving_of_row(KEPT, trials)
    assert saving is not None
    assert saving.headline == f"kept 300 W: {words}"
    assert saving.effect == f"nothing: {words}"


def test_a_saving_is_compared_with_the_highest_limit_that_could_be_measured() -> None:
    """A power budget allowed no more: it was called the limit found."""
    row = {
        **KEPT, "run": "run", "trials_run": "run", "power_limit_w": 200.0, "saved_j": 10.0,
        "energy_saved_percent": 5.0, "energy_saved_low_percent": -1.0, "energy_saved_high_percent": 9.0,
        "time_added_percent": 2.0, "time_added_low_percent": 1.0, "time_added_high_percent": 3.0,
    }  # fmt: skip
    saving = saving_of_row(
        row, [{"power_limit_w": 250.0, "step_j": 2.0}, {"power_limit_w": 200.0, "step_j": 1.9}]
    )
    assert saving is not None
    assert saving.effect == (
        "no measurable energy (95 %: -1 to 9) for 2.0 % more time (95 %: 1.0 to 3.0),"
        " compared with 250 W, the highest limit measured"
    )
    alone = saving_of_row({**row, "energy_saved_percent": 0.0, "saved_j": 0.0})
    assert alone is not None
    assert (alone.energy.known, alone.saved.known) == (None, None), "nothing above it is known: not 0 %"
    assert alone.energy.absent == "the limit found was not measured"
