"""The pipeline example in real processes: profiled, planned, followed, and its clocks unlocked afterwards."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collectors.devices.simulated import SimulatedBus
from tests.directories import short_directory
from tests.environment import environment
from tests.processes.pipeline import ROOT, ask
from tests.processes.setup import PATIENCE_S
from tests.waiting import until
from zeus_stream.live.archive_file import open_archive
from zeus_stream.paths import places
from zeus_stream.protocol.fields import UNLOCKED

DEVICE, STAGES = "simulated:a100x4,seed=1", 4
BEGAN = "SELECT number FROM plans WHERE state IN ('followed', 'replaced') ORDER BY number"
"""A plan that was replaced on a busy host has been followed as well."""
PLANS = "SELECT * FROM plans ORDER BY number"
COMMANDS = """
SELECT plan, count(*) FILTER (outcome = 'applied') AS applied, count(DISTINCT gpu) AS gpus
FROM commands WHERE control = 'graphics_clock' AND plan IS NOT NULL GROUP BY plan
"""
BUSY = 1.01
"""On a busy host an instruction takes what the host takes, whatever the clock."""


@contextmanager
def training(directory: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Train the example under ``zeus-stream run`` until the file "end" is in the directory."""
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "zeus_stream", "run", "--device", DEVICE, *arguments, "--"),
            *(sys.executable, str(ROOT / "examples" / "pipeline.py")),
            *("--iterations", "100000", "--work-ms", "25", "--end-when", str(directory / "end")),
        ],
        env=environment(directory),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.sweep
def test_a_pipeline_is_profiled_and_planned_while_it_trains_and_its_clocks_return() -> None:
    with short_directory() as directory:
        settings = ("--control", "graphics_clock", "--pipeline-iterations", "3", "--slowdown", "1.1")
        where = places({"ZEUS_STREAM_DIR": str(directory)})
        with training(directory, *settings) as process:
            began = until(lambda: ask(where, BEGAN))[0]["number"]
            (directory / "end").touch()
            _, err = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, err
        archive = open_archive(directory / "energy.duckdb")
        [profiled] = archive.sql("SELECT * FROM pipelines").to_pylist()
        assert (profiled["stages"], profiled["micro_batches"], profiled["replicas"]) == (STAGES, 8, 1)
        assert profiled["reason"].endswith("has ended")
        kinds = archive.sql("SELECT DISTINCT stage, kind FROM instructions").to_pylist()
        assert len(kinds) == 2 * STAGES
        points = archive.sql("SELECT * FROM plan_points ORDER BY slowdown").to_pylist()
        assert points[0]["time_s"] <= points[0]["unplanned_s"] * (1 + 1e-9)
        energies_j = [point["energy_j"] for point in points]
        assert energies_j == sorted(energies_j, reverse=True), "more time never costs more energy"
        plan = next(row for row in archive.sql(PLANS).to_pylist() if row["number"] == began)
        assert plan["first_iteration"] is not None, "every collector had the plan"
        assert plan["promised_j"] <= plan["unplanned_j"] * BUSY
        commands = archive.sql(COMMANDS).to_pylist()
        assert {"plan": began, "applied": 2 * STAGES, "gpus": STAGES} in commands, "offered, then begun"
        bus = SimulatedBus.parse(DEVICE, directory)
        assert [gpu.locked_mhz("graphics_clock") for gpu in bus.discover()] == [UNLOCKED] * STAGES
        bus.close()
        assert not list((directory / "restore").glob("*.json"))
