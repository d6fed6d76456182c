import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pynvml
import pytest
from msgspec.structs import replace

from collectors.device import Bus, Description, Device, Sample
from collectors.devices.nvml_bus import NvmlBus
from collectors.devices.simulated import SimulatedBus
from tests.gpu.powercap import Powercap
from tests.gpu.stand_in import StandIn
from tests.messages import DESCRIPTION
from tests.waiting import until
from tests.zeus_stream.conftest import SIMULATED, Cli
from zeus_stream.cli import doctor
from zeus_stream.cli.doctor import examine
from zeus_stream.errors import LostError
from zeus_stream.paths import Places, claim
from zeus_stream.protocol.fields import Control
from zeus_stream.screens.text.tables import Check
from zeus_stream.settings import Settings

SETTINGS = Settings(device=SIMULATED)
A100 = replace(DESCRIPTION, gpu="GPU-a", driver="570")


@dataclass
class Bench:
    """A bus whose devices only describe themselves."""

    descriptions: tuple[Description, ...]
    lost: bool = False

    def opened(self) -> Bus:
        return self

    def discover(self) -> tuple[Device, ...]:
        if self.lost:
            raise LostError("nvml: could not be started: Driver Not Loaded. Load the NVIDIA driver.")
        return tuple(Still(description) for description in self.descriptions)

    def close(self) -> None:
        pass


@dataclass
class Still:
    description: Description

    def describe(self) -> Description:
        return self.description

    def sample(self) -> Sample:
        return Sample(None, 50_000, 300_000, 300_000)

    def read_control(self, control: Control) -> int | None:
        return 300_000 if control == "power_limit" else None

    def set_control(self, control: Control, value: int) -> None:
        raise AssertionError(control, value)

    def processes(self) -> tuple[int, ...] | None:
        return None

    def close(self) -> None:
        pass


@pytest.fixture
def where(zeus_dir: Path) -> Places:
    return Places(zeus_dir, zeus_dir)


def found(checks: list[Check], what: str) -> Check:
    (check,) = [check for check in checks if check.what == what]
    return check


def test_on_simulated_gpus_nothing_fails(where: Places) -> None:
    checks = examine(SETTINGS, where, lambda: SimulatedBus.parse(SIMULATED, directory=where.run))
    assert [check for check in checks if check.verdict == "fails"] == []
    gpu = found(checks, "GPU 0").says
    assert "V100" in gpu
    assert "limits 100 W to 250 W" in gpu
    assert "limit requested 250 W" in gpu


def test_everything_that_does_not_work_has_a_cure(where: Places) -> None:
    (where.state / "energy.duckdb").write_text("no database " * 1_000, encoding="utf-8")
    checks = examine(SETTINGS, where, lambda: Bench((), lost=True))
    assert {check.what for check in checks if check.verdict == "fails"} == {"driver", "archive"}
    assert all(check.cure for check in checks if check.verdict != "works")
    assert all(check.says.endswith(".") for check in checks if check.verdict != "works")


def test_without_a_driver_simulated_gpus_are_named(where: Places) -> None:
    driver = found(examine(SETTINGS, where, lambda: Bench((), lost=True)), "driver")
    assert "Driver Not Loaded" in driver.says
    assert "Load the NVIDIA driver." in driver.cure
    assert "--device simulated:v100x1" in driver.cure


def test_a_host_without_gpus_names_simulated_ones(where: Places) -> None:
    assert "--device simulated:v100x1" in found(examine(SETTINGS, where, lambda: Bench(())), "devices").cure


def test_a_gpu_under_mig_or_without_counter_says_so(where: Places) -> None:
    gpus = (replace(A100, mig=True), replace(A100, index=1, counts_energy=False, min_limit_mw=None))
    checks = examine(SETTINGS, where, lambda: Bench(gpus))
    assert found(checks, "GPU 0").verdict == "warns"
    assert "MIG" in found(checks, "GPU 0").says
    assert "power readings only, no power limit to set" in found(checks, "GPU 1").says


@pytest.mark.skipif(os.geteuid() != 0, reason="Without CAP_SYS_ADMIN no driver is asked.")
@pytest.mark.parametrize(
    ("code", "verdict", "says"),
    [
        (0, "works", "took the limit in force again, on 2 of 2 devices"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "warns", "could not set the power limit to 220 W: Insufficient"),
    ],
)
def test_whether_limits_can_be_set_the_driver_is_asked_without_a_change(
    where: Places, stand_in: StandIn, nvml_bus: NvmlBus, code: int, verdict: str, says: str
) -> None:
    for gpu in stand_in.gpus:
        gpu.requested_mw = 220_000
        gpu.fail("nvmlDeviceSetPowerManagementLimit", code)
    settings = Settings(device="nvml", cpu="off")
    permission = found(examine(settings, where, lambda: nvml_bus), "permission to set limits")
    assert (permission.verdict, says in permission.says) == (verdict, True), permission
    assert [gpu.requested_mw for gpu in stand_in.gpus] == [220_000, 220_000]
    assert {path.suffix for path in where.records.iterdir()} == {".lock"}


def test_a_counter_of_which_nothing_is_known_is_to_be_measured_once(
    where: Places, stand_in: StandIn, nvml_bus: NvmlBus
) -> None:
    stand_in.gpus[1].name = b"NVIDIA H100 80GB HBM3"
    checks = examine(Settings(device="nvml", cpu="off"), where, lambda: nvml_bus)
    unknown = found(checks, "sensor of GPU 0")
    assert (unknown.verdict, "doctor --sensor 0" in unknown.cure) == ("warns", True)
    assert not [each for each in checks if each.what == "sensor of GPU 1"], "its card is shipped"


def test_a_gpu_that_answers_nothing_is_not_said_to_work(
    where: Places, stand_in: StandIn, nvml_bus: NvmlBus
) -> None:
    for call in ("field 83", "field 186", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"):
        stand_in.gpus[0].fail(call, pynvml.NVML_ERROR_NOT_SUPPORTED)
    stand_in.gpus[1].fail("nvmlDeviceGetName", pynvml.NVML_ERROR_NO_PERMISSION)
    checks = examine(Settings(device="nvml", cpu="off"), where, lambda: nvml_bus)
    first, second = found(checks, "GPU 0"), found(checks, "GPU 1")
    assert (first.verdict, "neither energy counter nor power readings" in first.says) == ("fails", True)
    assert (second.verdict, "could not name itself" in second.says) == ("warns", True)


def test_observing_is_said_with_how_to_end_it(where: Places) -> None:
    settings = Settings(device="nvml", observe=True)
    permission = found(examine(settings, where, lambda: Bench((A100,))), "permission to set limits")
    assert permission.verdict == "warns"
    assert "ZEUS_STREAM_OBSERVE" in permission.cure


def test_a_directory_too_deep_for_sockets_fails_with_the_cure(where: Places) -> None:
    deep = Places(where.run / ("d" * 100), where.state)
    paths = found(examine(SETTINGS, deep, lambda: Bench((A100,))), "socket paths")
    assert paths.verdict == "fails"
    assert "ZEUS_STREAM_DIR" in paths.cure


def test_no_port_is_open_unless_it_is_set_and_doctor_says_so(where: Places) -> None:
    def others(settings: Settings) -> list[Check]:
        return [
            check for check in examine(settings, where, lambda: Bench((A100,))) if check.what == "other hosts"
        ]

    (closed,) = others(SETTINGS)
    assert (closed.verdict, closed.says) == ("works", "No TCP port is opened: listen is not set.")
    (opened,) = others(replace(SETTINGS, listen="0.0.0.0:5600"))
    assert "Ports 5600 to 5602 of 0.0.0.0" in opened.says
    _, keyless = others(replace(SETTINGS, follow=("gpu7:5600",)))
    assert keyless.verdict == "fails"
    assert "zeus-stream keys create" in keyless.cure


@pytest.mark.sweep
def test_the_command_line_exits_1_exactly_when_something_fails(zeus: Cli) -> None:
    well = zeus("doctor", "--device", SIMULATED)
    assert (well.returncode, well.stderr) == (0, "")
    ill = zeus("doctor", "--device", "tpu")
    assert ill.returncode == 1
    assert "simulated:v100x4" in ill.stdout


def works(examined: Callable[[], list[Check]], what: str) -> bool:
    return any((check.what, check.verdict) == (what, "works") for check in examined())


@pytest.mark.sweep
def test_devices_that_a_running_collector_measures_are_not_said_to_be_absent(zeus: Cli) -> None:
    where = Places(zeus.directory, zeus.directory)
    with zeus.serving("collect", "--device", SIMULATED):
        for bench in (Bench((), lost=True), Bench(())):
            examined = partial(examine, Settings(device="nvml", cpu="off"), where, bench.opened)
            until(partial(works, examined, "devices"))  # a collector opens them after its sockets
            checks = examined()
            assert [check for check in checks if check.verdict == "fails"] == []
            devices = found(checks, "devices")
            assert (devices.verdict, "V100" in devices.says) == ("works", True)


def test_the_analyzer_of_the_package_is_looked_for_in_its_own_directory(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host with the package it was said not to run, and to be started."""
    monkeypatch.setattr(doctor, "ROOT_RUN", where.run)
    monkeypatch.setattr(doctor, "PACKAGED", tmp_path)
    with claim(tmp_path / "analyzer.lock", "analyzer"):
        checks = examine(SETTINGS, where, lambda: Bench((A100,)))
    assert f"did not answer at {tmp_path / 'query'}" in found(checks, "analyzer").says
    assert found(checks, "analyzer").cure.startswith("Start one with `zeus-stream analyze`")
    assert found(checks, "collector").says == f"None runs in {where.run}."


def test_cpus_that_can_be_read_are_named_and_those_that_are_not_there_are_no_trouble_unless_wanted(
    where: Places, tmp_path: Path
) -> None:
    def checked(cpu: str) -> Check:
        return found(examine(replace(SETTINGS, cpu=cpu), where, lambda: Bench((A100,)), tmp_path), "CPUs")

    assert checked("auto").verdict == "works"
    assert checked("on").verdict == "fails"
    assert "intel_rapl_msr" in checked("on").cure
    Powercap(tmp_path).package(0)
    assert "CPU package 0" in checked("auto").says


def test_each_meter_is_read_once_and_one_without_a_figure_has_a_cure(where: Places, tmp_path: Path) -> None:
    (tmp_path / "wall").write_text("812.5\n", encoding="ascii")
    meters = (f"wall=file:{tmp_path}/wall", f"site=file:{tmp_path}/none kWh")
    checks = examine(replace(SETTINGS, meters=meters), where, lambda: Bench((A100,)), tmp_path)
    assert found(checks, "meter wall").says == "It shows 812.5 W."
    assert found(checks, "meter site").verdict == "fails"
    assert found(checks, "meter site").cure == "It is read again when it is."
    checks = examine(replace(SETTINGS, meters=("wall=modbus",)), where, lambda: Bench((A100,)), tmp_path)
    assert "Choose redfish" in found(checks, "meters").cure


def test_a_module_and_the_tenants_of_a_divided_gpu_are_named(where: Places) -> None:
    module = replace(A100, index=1, gpu="GPU-b", scope="module")
    divided = replace(A100, mig=True, tenants=("MIG-1", "MIG-2"))
    checks = examine(SETTINGS, where, lambda: Bench((divided, module)))
    assert "MIG-1, MIG-2" in found(checks, "GPU 0").says
    assert found(checks, "GPU 1").verdict == "warns"
    assert "CPU included" in found(checks, "GPU 1").says
