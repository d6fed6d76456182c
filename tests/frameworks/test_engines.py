"""Real pipelines of PyTorch, DeepSpeed and Megatron with gloo on CPU: their instructions and losses."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from analyzers.pipeline.graph import PipelineInstruction, from_orders
from benchmarks.pipeline.schedules import make_graph
from tests.directories import short_directory
from tests.environment import ROOT
from tests.frameworks.told import LONGEST_S, absent

MICRO_BATCHES, ITERATIONS = 4, 3


def ran(engine: str, ranks: int) -> list[dict[str, Any]]:
    """Return what each rank printed last."""
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with short_directory() as directory:
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.frameworks.trainings.engines"),
                    *(str(rank), str(ranks), engine, str(directory / "store")),
                ],
                cwd=ROOT,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            outputs = [process.communicate(timeout=LONGEST_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(printed.splitlines()[-1]) for printed, _ in outputs]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("engine", "package", "ranks", "schedule"),
    [
        ("Schedule1F1B", "torch", 4, "1f1b"),
        ("ScheduleGPipe", "torch", 4, "gpipe"),
        ("ScheduleInterleavedZeroBubble", "torch", 4, None),
        ("deepspeed", "deepspeed", 2, "1f1b"),
        ("megatron", "megatron", 2, "1f1b"),
        ("interleaved", "megatron", 2, None),
    ],
)
def test_every_pass_of_a_training_is_an_instruction_and_losses_are_the_same(
    engine: str, package: str, ranks: int, schedule: str | None
) -> None:
    """DeepSpeed and Megatron evaluate once: those passes are none."""
    if reason := absent("torch", package):
        pytest.skip(reason)
    found = ran(engine, ranks)
    assert len(found[-1]["ours"]) == ITERATIONS + (package != "torch")
    assert [rank["ours"] for rank in found] == [rank["plain"] for rank in found]
    orders = []
    for rank in found:
        first, *others = rank["ran"]
        assert others == [first] * (ITERATIONS - 1)
        orders.append([PipelineInstruction(rank["rank"], *each) for each in first])
    graph = from_orders(orders)
    if schedule is not None:
        expected = make_graph(schedule, ranks, MICRO_BATCHES)
        assert orders == [[expected.instructions[index] for index in chain] for chain in expected.orders]
        assert graph.edges == expected.edges
        return
    kinds = [each.kind for each in graph.instructions]  # two chunks a rank
    assert kinds.count("forward") == kinds.count("backward") == 2 * ranks * MICRO_BATCHES
    assert ("weight" in kinds) == (package == "torch"), "halves of a backward"
