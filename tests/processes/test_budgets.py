"""A power budget over the real processes: limits fall, and come back when it ends or its analyzer dies."""

from pathlib import Path

from collectors.devices.simulated import SimulatedBus
from tests.processes.pipeline import pipeline
from tests.waiting import until
from tests.zeus_stream.conftest import Cli

W = 1000
TARGET = "SELECT arg_max(target_w, target_ns)::INTEGER AS w FROM budget_targets"


def test_limits_keep_to_a_budget_and_are_handed_back(zeus_dir: Path) -> None:
    zeus = Cli(zeus_dir)
    devices = SimulatedBus.parse("simulated:v100x3", directory=zeus_dir).discover()

    def limits_mw() -> list[int]:
        return [device.read_control("power_limit") or 0 for device in devices]

    with pipeline(zeus_dir, 0, (), gpus=3) as setup:
        until(lambda: setup.status("analyzer", "analyzer", "archive"))
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
        assert [setup.stop(name) for name in ("analyzer", "collector")] == [0, 0]


def test_a_signal_is_followed_also_when_its_file_is_replaced(zeus_dir: Path) -> None:
    zeus, file = Cli(zeus_dir), zeus_dir / "load.csv"
    head = '# name=load unit=W source="test"\nat,value\n2026-05-01T00:00+00:00,'
    file.write_text(f"{head}450\n", encoding="utf-8")
    with pipeline(zeus_dir, 0, (), gpus=2) as setup:
        until(lambda: setup.status("analyzer", "analyzer", "archive"))
        zeus("budget", "--follow", str(file), "--ramp", "0")
        until(lambda: setup.sql(TARGET) == [{"w": 450}])
        file.write_text(f"{head}300\n", encoding="utf-8")
        until(lambda: setup.sql(TARGET) == [{"w": 300}])
        assert zeus("budget", "--end", "all").returncode == 0
