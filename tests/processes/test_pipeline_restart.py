"""A pipeline whose analyzer is killed while it profiles and while a plan is followed: real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from collectors.devices.simulated import SimulatedBus
from tests.environment import ROOT, environment
from tests.processes.pipeline import Setup, pipeline
from tests.waiting import until
from zeus_stream.protocol import codec
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.protocol.notes import ControlApplied, Notes

STAGES, EACH = 2, 3
"""Stages, and iterations at each clock."""
ANALYZE = ("--control", "graphics_clock", "--pipeline-iterations", str(EACH), "--slowdown", "1.3")
PIPELINE = "SELECT state, iterations_profiled, reason FROM pipelines"
PLANS = "SELECT number, promised_s, promised_j, unplanned_j, first_iteration FROM plans ORDER BY number"
BUSY = 1.01
"""On a busy host an instruction takes what the host takes, whatever the clock."""
NOTES = "SELECT body FROM frames WHERE starts_with(topic, 'notes/') ORDER BY \"offset\""
ITERATIONS = "SELECT coalesce(max(index), -1) AS last FROM events WHERE kind = 'iteration_ran'"


@contextmanager
def training(directory: Path) -> Iterator[None]:
    """Train the example until the end of the test; its stages are processes of one group."""
    with subprocess.Popen(
        [
            *(sys.executable, str(ROOT / "examples" / "pipeline.py")),
            *("--iterations", "100000", "--work-ms", "50", "--stages", str(STAGES), "--micro-batches", "4"),
        ],
        env=environment(directory),
        start_new_session=True,
    ) as process:
        try:
            yield
        finally:
            os.killpg(process.pid, 9)


def state(setup: Setup) -> dict[str, Any]:
    return next(iter(setup.sql(PIPELINE)), {"state": "", "iterations_profiled": 0, "reason": ""})


def clocks_set(setup: Setup) -> list[int]:
    """Return the clocks that one GPU was given by a command, in their order; of a plan its highest."""
    found: dict[str, tuple[str, int]] = {}
    for row in setup.sql(NOTES):
        for note in codec.decode(row["body"], Notes).notes:
            if isinstance(note, ControlApplied) and note.control == "graphics_clock":
                found.setdefault(note.command, (note.gpu, note.value))
    first = min((gpu for gpu, _ in found.values()), default="")
    return [value for gpu, value in found.values() if gpu == first]


def restart(setup: Setup) -> None:
    """Kill the analyzer once it has a checkpoint, and start it again."""
    until(lambda: setup.sql("SELECT number FROM checkpoints"))
    setup.kill("analyzer")
    setup.start("analyzer")
    until(lambda: setup.sql(PIPELINE))


@pytest.mark.sweep
def test_a_killed_analyzer_goes_on_with_the_same_profile_and_the_same_plan(zeus_dir: Path) -> None:
    with pipeline(zeus_dir, 0, ANALYZE, gpus=STAGES) as setup:
        until(setup.welcome)
        with training(zeus_dir):
            until(lambda: state(setup)["iterations_profiled"] >= 2 * EACH)
            restart(setup)
            until(lambda: state(setup)["state"] == "following" or state(setup)["reason"])
            assert state(setup)["reason"] == ""
            profiled, [planned] = state(setup)["iterations_profiled"], setup.sql(PLANS)[:1]
            asked = clocks_set(setup)
            # a clock may be lost on a busy machine, and set again
            visited = [value for value, _ in groupby(asked)][: profiled // EACH]
            assert visited == sorted(set(visited), reverse=True), "each clock was profiled once"
            restart(setup)
            [before] = until(lambda: setup.sql(ITERATIONS))
            until(lambda: until(lambda: setup.sql(ITERATIONS))[0]["last"] > before["last"] + 15)
            assert state(setup)["iterations_profiled"] == profiled
            assert setup.sql(PLANS)[0] == planned
            later = clocks_set(setup)
            assert later[: len(asked)] == asked
            assert len(later) - len(asked) <= 2 * len(setup.sql(PLANS)), "plans only"
            until(lambda: setup.status("collector", "positions", "plans followed") == str(STAGES))
            assert "could not be used" not in setup.output("analyzer")
            points = setup.sql("SELECT * FROM plan_points ORDER BY slowdown")
            assert points[0]["time_s"] <= points[0]["unplanned_s"] * (1 + 1e-9)
            energies_j = [point["energy_j"] for point in points]
            assert energies_j == sorted(energies_j, reverse=True), "more time never costs more energy"
            assert planned["promised_j"] <= planned["unplanned_j"] * BUSY
        until(lambda: state(setup)["state"] == "over")
        assert setup.stop("analyzer") == 0, setup.output("analyzer")
        assert setup.stop("collector") == 0, setup.output("collector")
        bus = SimulatedBus.parse(f"simulated:v100x{STAGES}", zeus_dir)
        assert [gpu.locked_mhz("graphics_clock") for gpu in bus.discover()] == [UNLOCKED] * STAGES
        bus.close()
