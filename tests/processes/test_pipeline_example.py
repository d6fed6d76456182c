"""The pipeline example in real processes: profiled, planned, followed, and its clocks unlocked afterwards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectors.devices.simulated import SimulatedBus
from tests.directories import short_directory
from tests.processes.setup import ROOT
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.reports.archive_file import open_archive

DEVICE = "simulated:a100x4,seed=1"


def train(directory: Path, *arguments: str, iterations: int) -> None:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ZEUS_STREAM_")}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "zeus_stream", "run", "--device", DEVICE, *arguments, "--"),
            *(sys.executable, str(ROOT / "examples" / "pipeline.py")),
            *("--iterations", str(iterations), "--work-ms", "6"),
        ],
        env={**clean, "ZEUS_STREAM_DIR": str(directory), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.sweep
def test_a_pipeline_is_profiled_and_planned_while_it_trains_and_its_clocks_return() -> None:
    with short_directory() as directory:
        train(
            directory,
            *("--control", "graphics_clock", "--pipeline-iterations", "3", "--slowdown", "1.1"),
            iterations=90,
        )
        archive = open_archive(directory / "energy.duckdb")
        [profiled] = archive.sql("SELECT * FROM pipelines").to_pylist()
        assert (profiled["stages"], profiled["micro_batches"], profiled["replicas"]) == (4, 8, 1)
        assert profiled["reason"].endswith("has ended")
        kinds = archive.sql("SELECT DISTINCT stage, kind FROM instructions").to_pylist()
        assert len(kinds) == 8
        points = archive.sql("SELECT * FROM plan_points ORDER BY slowdown").to_pylist()
        assert points[0]["time_s"] <= points[0]["unplanned_s"] * 1.0001
        energies_j = [point["energy_j"] for point in points]
        assert energies_j == sorted(energies_j, reverse=True), "more time never costs more energy"
        plans = archive.sql("SELECT * FROM plans ORDER BY number").to_pylist()
        assert plans[0]["first_iteration"] is not None, "every collector had the plan"
        commands = archive.sql(
            "SELECT plan, count(*) AS asked, count(DISTINCT gpu) AS gpus,"
            " bool_and(outcome = 'applied') AS applied"
            " FROM commands WHERE control = 'graphics_clock' AND plan IS NOT NULL GROUP BY plan ORDER BY plan"
        ).to_pylist()
        assert commands[0] == {"plan": 1, "asked": 8, "gpus": 4, "applied": True}, "offered, then begun"
        # On a busy host an instruction takes what the host takes, whatever the clock: then nothing is saved.
        assert plans[0]["promised_j"] <= plans[0]["unplanned_j"]
        bus = SimulatedBus.parse(DEVICE, directory)
        assert [gpu.locked_mhz("graphics_clock") for gpu in bus.discover()] == [UNLOCKED] * 4
        bus.close()
        assert not list((directory / "restore").glob("*.json"))
