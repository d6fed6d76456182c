"""Figures for people: the unit in which energies are shown."""

from collections.abc import Iterator

import pytest

from zeus_stream.errors import SettingsError
from zeus_stream.views.quantity import Quantity, bounds, in_one_unit, joules, show_energy_in


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    show_energy_in("auto")


@pytest.mark.parametrize(
    ("unit", "small", "some", "large", "column", "interval"),
    [
        ("auto", "500.0 mJ", "7,200 J", "2.000 kWh", ["7.2 kJ", "180.0 kJ"], "7,190 to 7,210 J"),
        ("J", "500.0 mJ", "7,200 J", "7.200 MJ", ["7.2 kJ", "180.0 kJ"], "7,190 to 7,210 J"),
        ("Wh", "0.1389 mWh", "2.000 Wh", "2.000 kWh", ["2.00 Wh", "50.00 Wh"], "1.9972 to 2.0028 Wh"),
    ],
)
def test_energies_are_shown_in_the_unit_that_a_setting_names(
    unit: str, small: str, some: str, large: str, column: list[str], interval: str
) -> None:
    show_energy_in(unit)
    assert [joules(0.5), joules(7200.0), joules(7.2e6)] == [small, some, large]
    assert in_one_unit([7200.0, 180_000.0], "J") == column
    assert bounds(Quantity(7200.0, "J", 7190.0, 7210.0)) == interval


def test_another_unit_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SettingsError, match="energy_unit = 'BTU': expected auto, J, Wh"):
        show_energy_in("BTU")
