"""What the setting `meters` means, and what it refuses."""

import pytest
from msgspec.structs import replace

from collectors.meters.host_meter import MeterSetting, MeterUnit, parse_meter
from collectors.meters.metered_bus import MeteredBus
from tests.collectors.devices.arithmetic import ArithmeticBus
from zeus_stream.errors import RetryError, SettingsError

WALL = MeterSetting(name="wall", kind="ipmi", address="", unit=None, error=None, every_s=5.0)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        pytest.param("wall=ipmi", WALL, id="watts, every 5 s, of unknown error"),
        pytest.param("wall=ipmi 3%", replace(WALL, error=0.03), id="an error"),
        pytest.param(
            "rack-2=snmp:pdu4 1.3.6.1.4.1 10W 1.5% 30s",
            MeterSetting(
                name="rack-2", kind="snmp", address="pdu4 1.3.6.1.4.1", every_s=30.0, error=0.015,
                unit=MeterUnit(10_000.0, counts_energy=False),
            ),
            id="an address of two words, a unit of ten watts, a distance",
        ),
        pytest.param(
            "wall=file:/run/site kWh", replace(
                WALL, kind="file", address="/run/site", unit=MeterUnit(3.6e9, counts_energy=True)
            ),
            id="a counter",
        ),
        pytest.param(
            "wall=redfish:https://u:p@bmc/redfish/v1/Chassis/1/Power",
            replace(WALL, kind="redfish", address="https://u:p@bmc/redfish/v1/Chassis/1/Power"),
            id="an address with colons",
        ),
    ],
)  # fmt: skip
def test_a_setting_names_a_meter(text: str, meant: MeterSetting) -> None:
    assert parse_meter(text) == meant


@pytest.mark.parametrize(
    ("meters", "why"),
    [
        (["ipmi"], "Write NAME=KIND:ADDRESS"),
        (["wall=modbus:plc"], "there is no such kind"),
        (["wall=ipmi 0.01s"], "Choose 0.1 to 60 s"),
        (["wall=ipmi", "wall=cray"], "Name each differently"),
        (["wall=snmp:pdu4"], "Write snmp:HOST OID"),
        (["wall=redfish:bmc7"], "could not understand the address"),
        (["wall=command:"], "none is named"),
        (["wall=command:read 'it"], "No closing quotation"),
    ],
)
def test_a_setting_that_means_nothing_is_refused_with_its_cure(meters: list[str], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        MeteredBus(ArithmeticBus(0), meters, "host")


@pytest.mark.parametrize("value", [-1.0, 100_001.0])
def test_a_power_that_cannot_be_is_no_reading(value: float) -> None:
    with pytest.raises(RetryError, match="Check the unit"):
        MeterUnit(1e3, counts_energy=False).reading(value, "m")
