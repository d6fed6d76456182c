"""A power budget over the real processes: limits fall, and come back when it ends or its analyzer dies."""

from pathlib import Path

from collectors.devices.simulated import SimulatedBus
from tests.processes.pipeline import Setup
from tests.waiting import until
from tests.zeus_stream.conftest import Cli

W = 1000


def test_limits_keep_to_a_budget_and_are_handed_back(zeus_dir: Path) -> None:
    zeus, setup = Cli(zeus_dir), Setup(zeus_dir, gpus=3)
    devices = SimulatedBus.parse("simulated:v100x3", directory=zeus_dir).discover()

    def limits_mw() -> list[int]:
        return [device.read_control("power_limit") or 0 for device in devices]

    try:
        setup.start("collector")
        setup.start("analyzer")
        said = zeus("budget", "--watts", "500", "--for", "2h", "--ramp", "0")
        assert "all: 500 W for every GPU of the site" in said.stdout
        until(lambda: sum(limits_mw()) <= 500 * W)
        until(lambda: "150.0" in zeus("budget").stdout)
        setup.kill("analyzer")
        until(lambda: limits_mw() == [250 * W] * 3)
        setup.start("analyzer")
        until(lambda: sum(limits_mw()) <= 500 * W)
        assert zeus("budget", "--end", "all").returncode == 0
        until(lambda: limits_mw() == [250 * W] * 3)
        assert zeus("budget", "--end", "all").returncode == 1
        for name in ("analyzer", "collector"):
            assert setup.stop(name) == 0
    finally:
        setup.close()
