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


def test_a_signal_is_followed_also_when_its_file_is_replaced(zeus_dir: Path) -> None:
    zeus, setup = Cli(zeus_dir), Setup(zeus_dir, gpus=2)
    file = zeus_dir / "load.csv"
    head = '# name=load unit=W source="test"\nat,value\n2026-05-01T00:00+00:00,'
    targets = (
        "sql",
        "SELECT arg_max(target_w, target_ns)::INTEGER AS w FROM budget_targets",
        "--format",
        "csv",
    )

    def target_w() -> str:
        return (zeus(*targets).stdout.splitlines() or [""])[-1]

    try:
        file.write_text(f"{head}450\n", encoding="utf-8")
        setup.start("collector")
        setup.start("analyzer")
        zeus("budget", "--follow", str(file), "--ramp", "0")
        until(lambda: target_w() == "450")
        file.write_text(f"{head}300\n", encoding="utf-8")
        until(lambda: target_w() == "300")
        assert zeus("budget", "--end", "all").returncode == 0
        for name in ("analyzer", "collector"):
            assert setup.stop(name) == 0
    finally:
        setup.close()
