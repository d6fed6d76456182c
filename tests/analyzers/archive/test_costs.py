"""Costs of runs whose energy and prices are known."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from analyzers.results.fleet_rows import ForecastRow
from analyzers.results.rows import Row, RunRow, WindowRow
from analyzers.results.signal_rows import SignalRow
from analyzers.state_files.signal_files import of_country
from tests.analyzers.archive.test_queries import FOLDER
from tests.analyzers.archive.test_waste import CLOSED, EPOCH, STEPS, WHOLE
from tests.analyzers.archives import BOOTED_NS, GPU, SECOND, asked, opened
from zeus_stream.questions.run_questions import WHOLE as ENERGY
from zeus_stream.screens.html.site_panels import JOBS
from zeus_stream.settings import Settings
from zeus_stream.views.costs import SIGNALS_NOW, cost_words

KWH = 3.6e6
Costs = Callable[[Sequence[Row]], dict[str, dict[str, Any]]]
PRICE = SignalRow(
    name="price",
    unit="EUR/kWh",
    begin_ns=BOOTED_NS,
    end_ns=BOOTED_NS + 35 * SECOND,
    value=0.2,
    place="",
    year=None,
    source="a tariff",
    licence="",
    imported_ns=1,
)
LATER = replace(PRICE, begin_ns=BOOTED_NS + 35 * SECOND, end_ns=None, value=0.6)
"""From 35 s on: two steps of 1000 J each began before, two later. The run goes from 10 s to 70 s."""
RUN: tuple[Row, ...] = (CLOSED, *STEPS, EPOCH, WHOLE)


@pytest.fixture(params=[0.0, 1.5], ids=["no PUE", "PUE 1.5"])
def pue(request: pytest.FixtureRequest) -> float:
    value: float = request.param
    return value


@pytest.fixture
def costs(path: Path, pue: float) -> Iterator[Costs]:
    with opened(path, Settings(pue=pue)) as archive:

        def put(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
            archive.put([], rows)
            return {row["name"]: row for row in asked(archive, "FROM costs")}

        yield put


def test_steps_have_the_price_of_their_time_and_the_rest_the_mean(costs: Costs, pue: float) -> None:
    price = costs([*RUN, PRICE, LATER])["price"]
    mean = (25 * 0.2 + 35 * 0.6) / 60
    money = (2000 * 0.2 + 2000 * 0.6 + 580 * mean) / KWH
    assert price["amount"] == pytest.approx(money * (pue or 1))
    assert price["factor"] == pytest.approx(money / (4580 / KWH))
    assert (price["unit"], price["factor_unit"]) == ("EUR", "EUR/kWh")
    assert price["basis"] == ("GPUs x PUE" if pue else "GPUs only")
    assert price["pue"] == (pue or None)


def test_carbon_of_a_country_names_year_and_source(costs: Costs, pue: float) -> None:
    carbon = costs([*RUN, of_country("DEU", 5)])["carbon"]
    assert carbon["amount"] == pytest.approx(4580 / KWH * 344.13992 * (pue or 1))
    assert (carbon["unit"], carbon["place"], carbon["year"]) == ("gCO2e", "Germany", 2024)
    assert "Ember" in carbon["source"]


def test_what_is_not_covered_has_no_amount_and_a_reason(costs: Costs) -> None:
    assert costs([]) == {}
    missing = costs([*RUN, PRICE])["price"]
    assert (missing["amount"], missing["basis"]) == (None, "the signal does not cover the run")
    assert costs([replace(PRICE, end_ns=None, imported_ns=2)])["price"]["amount"] is not None


def test_a_run_whose_energy_is_missing_has_no_amount(costs: Costs) -> None:
    price = costs([CLOSED, replace(WHOLE, energy_j=None), replace(PRICE, end_ns=None)])["price"]
    assert (price["amount"], price["basis"]) == (None, "energy of a GPU is missing")


def test_the_signal_that_was_imported_last_counts_and_one_without_value_is_removed(
    costs: Costs, pue: float
) -> None:
    costs([*RUN, PRICE, LATER])
    flat = replace(PRICE, end_ns=None, value=1.0, imported_ns=2)
    assert costs([flat])["price"]["amount"] == pytest.approx(4580 / KWH * (pue or 1))
    assert costs([replace(flat, value=None, imported_ns=3)]) == {}


OF_A_RUN = pytest.mark.parametrize(
    "sql",
    [
        pytest.param(ENERGY.format(run="'run-1'"), id="report"),
        pytest.param(JOBS.format(runs="'run-1'", limit=9), id="page"),
        pytest.param("SELECT sensor_j AS energy_j FROM true_energy", id="true_energy"),
        pytest.param("SELECT 3.6e6 * energy_kwh AS energy_j FROM costs", id="costs"),
        pytest.param("SELECT 3.6e6 * amount / 0.2 AS energy_j FROM costs", id="money"),
        pytest.param(FOLDER.joinpath("jobs.sql").read_text(encoding="utf-8"), id="@jobs"),
    ],
)


@OF_A_RUN
def test_a_run_has_no_energy_if_a_rank_of_it_was_set_aside(path: Path, sql: str) -> None:
    """The other ranks' energy was given for the whole."""
    aside = replace(WHOLE, gpu=None, energy_j=None, quality="set aside: it could not be interpreted")
    rows: list[Row] = [GPU, replace(PRICE, end_ns=None), *RUN]
    rows += [replace(each, session="session-2", rank=1) for each in (CLOSED, aside)]
    with opened(path) as archive:
        archive.put([], rows)
        (found,) = asked(archive, sql)
    assert found["energy_j"] is None


@OF_A_RUN
def test_a_gpu_of_two_ranks_counts_once(path: Path, sql: str) -> None:
    rows: list[Row] = [GPU, PRICE, replace(PRICE, begin_ns=PRICE.begin_ns + 35 * SECOND, end_ns=None)]
    for row in RUN:
        assert isinstance(row, RunRow | WindowRow)
        rows += [replace(row, world_size=2) if isinstance(row, RunRow) else row]
        rows += [replace(rows[-1], session="session-2", rank=1)]
    with opened(path) as archive:
        archive.put([], rows)
        (found,) = asked(archive, sql)
    assert found["energy_j"] == pytest.approx(4580)


def test_no_price_of_now_is_a_load_or_of_an_earlier_import(path: Path) -> None:
    flat = replace(PRICE, end_ns=None)
    load = replace(flat, name="load", unit="W", value=1e6)
    with opened(path) as archive:
        archive.put([], [flat, load])
        assert [row["factor"] for row in asked(archive, SIGNALS_NOW)] == [0.2]
        archive.put([], [replace(PRICE, imported_ns=2)])
        assert asked(archive, SIGNALS_NOW) == []


def test_the_interval_of_a_forecast_at_a_negative_price_is_ascending(path: Path) -> None:
    forecast = ForecastRow(
        run="run-1", step=9, made_wall_ns=BOOTED_NS + SECOND, epochs_done=1, epochs=2, steps=18,
        power_limit_w=None, spent_j=KWH, spent_s=1.0, energy_j=2 * KWH, energy_p2_5_j=1.5 * KWH,
        energy_p97_5_j=2.5 * KWH, duration_s=2.0, duration_p2_5_s=2.0, duration_p97_5_s=2.0,
    )  # fmt: skip
    with opened(path) as archive:
        archive.put([], [forecast, replace(PRICE, end_ns=None, value=-0.5)])
        (row,) = asked(archive, "FROM forecast_costs")
    assert cost_words({**row, "basis": ""})[0] == "-1.00 EUR (95 %: -1.25 to -0.75)"
