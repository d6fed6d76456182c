"""Schedules of ``torch.distributed.pipelining`` with gloo on CPU, four processes: their real instructions."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analyzers.pipeline.graph import PipelineInstruction, from_orders
from benchmarks.pipeline.schedules import make_graph
from tests.directories import short_directory
from tests.frameworks.told import LONGEST_S, ROOT, need

need("torch")
RANKS, MICRO_BATCHES, ITERATIONS = 4, 4, 3


def ran(schedule: str) -> list[dict[str, Any]]:
    """Return what each rank printed."""
    with short_directory() as directory:
        command = [sys.executable, "-m", "tests.frameworks.trainings.pipelining"]
        environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(RANKS), schedule, str(Path(directory) / "store")],
                cwd=ROOT,
                env=environ,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            printed = [rank.communicate(timeout=LONGEST_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return [json.loads(text.splitlines()[-1]) for text in printed]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("schedule", "ours"),
    [("Schedule1F1B", "1f1b"), ("ScheduleGPipe", "gpipe"), ("ScheduleInterleavedZeroBubble", None)],
)
def test_every_pass_is_an_instruction_and_losses_are_the_same(schedule: str, ours: str | None) -> None:
    ranks = ran(schedule)
    last = ranks[-1]
    assert len(last["plain"]) == ITERATIONS
    assert last["ours"] == last["plain"]
    orders = []
    for rank in ranks:
        assert len(rank["ran"]) == ITERATIONS
        assert all(iteration == rank["ran"][0] for iteration in rank["ran"])
        first = [tuple(each) for each in rank["ran"][0]]
        assert len(set(first)) == len(first)
        orders.append([PipelineInstruction(rank["rank"], *each) for each in first])
    if ours is None:  # halves of a backward, two chunks a rank
        kinds = [each.kind for order in orders for each in order]
        assert kinds.count("forward") == kinds.count("backward") == 2 * RANKS * MICRO_BATCHES
        assert kinds.count("weight") > 0
        return
    expected = make_graph(ours, RANKS, MICRO_BATCHES)
    assert orders == [[expected.instructions[index] for index in chain] for chain in expected.orders]
    assert from_orders(orders).edges == expected.edges
