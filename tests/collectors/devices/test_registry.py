import logging
from contextlib import closing
from pathlib import Path

import pytest

from collectors.devices.amd import AmdBus
from collectors.devices.rapl import RaplBus
from collectors.devices.registry import HostBus, open_bus
from collectors.devices.simulated import SimulatedBus
from tests.gpu.powercap import Powercap
from zeus_stream.errors import LostError, SettingsError

ONE = "simulated:v100x1"


def test_cpus_are_found_beside_the_gpus(tmp_path: Path) -> None:
    root = tmp_path / "powercap"
    root.mkdir()
    bus = HostBus(SimulatedBus.parse(ONE, tmp_path), RaplBus("h", root), wanted=False)
    try:
        (gpu,) = bus.discover()
        Powercap(root).package(0)
        again, cpu = bus.discover()
        assert again is gpu
        assert cpu.describe().gpu == "CPU-h-package-0"
        cpu.sample()
        bus.close()
        with pytest.raises(LostError):
            cpu.describe()
    finally:
        bus.close()


@pytest.mark.parametrize("wanted", [True, False])
def test_cpus_that_are_not_there_are_worth_a_sentence_only_where_they_were_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, wanted: bool
) -> None:
    bus = HostBus(SimulatedBus.parse(ONE, tmp_path), RaplBus("h", tmp_path / "none"), wanted=wanted)
    try:
        assert len(bus.discover()) == len(bus.discover()) == 1
    finally:
        bus.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * wanted


@pytest.mark.parametrize(
    ("device", "cpu", "kind"),
    [
        ("cpu", "auto", RaplBus),
        ("amd", "off", AmdBus),
        ("amd", "auto", HostBus),
        (ONE, "auto", SimulatedBus),
        (ONE, "on", HostBus),
    ],
)
def test_settings_name_the_bus(tmp_path: Path, device: str, cpu: str, kind: type) -> None:
    bus = open_bus(device, tmp_path, cpu=cpu, host="h")
    bus.close()
    assert type(bus) is kind


@pytest.mark.parametrize(("device", "cpu"), [("gpu", "off"), ("nvml", "yes")])
def test_a_setting_that_names_none_says_what_does(tmp_path: Path, device: str, cpu: str) -> None:
    with pytest.raises(SettingsError, match="Choose"):
        open_bus(device, tmp_path, cpu=cpu)


def test_equal_simulated_gpus_of_two_hosts_are_two_and_who_restores_them_finds_those_of_the_host(
    tmp_path: Path,
) -> None:
    found = {}
    for host in ("north", "south"):
        with closing(open_bus(ONE, tmp_path / host, host=host)) as bus:
            found[host] = [gpu.describe().gpu for gpu in bus.discover()]
        with closing(open_bus(ONE, tmp_path / host)) as guard:
            assert [gpu.describe().gpu for gpu in guard.discover()] == found[host]
    assert found["north"] != found["south"]
