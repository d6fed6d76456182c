"""Real pipelines of DeepSpeed and Megatron with gloo on CPU, two processes: their instructions and losses."""

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from analyzers.pipeline.graph import PipelineInstruction, from_orders
from benchmarks.pipeline.schedules import make_graph
from tests.directories import short_directory
from tests.frameworks.told import LONGEST_S, ROOT, need

need("torch")
RANKS, MICRO_BATCHES, ITERATIONS = 2, 4, 3
PACKAGE = {"deepspeed": "deepspeed", "megatron": "megatron", "interleaved": "megatron"}


def ran(framework: str) -> list[dict[str, Any]]:
    """Return what each rank printed last."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with short_directory():
        ranks = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.frameworks.trainings.engines"),
                    *(str(rank), str(RANKS), framework, str(port)),
                ],
                cwd=ROOT,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            outputs = [rank.communicate(timeout=LONGEST_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    for rank, (_, errors) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, errors[-3000:]
    return [json.loads(printed.splitlines()[-1]) for printed, _ in outputs]


@pytest.mark.sweep
@pytest.mark.parametrize("framework", list(PACKAGE))
def test_every_pass_of_a_training_is_an_instruction_and_an_evaluation_is_none(framework: str) -> None:
    if find_spec(PACKAGE[framework]) is None:
        pytest.skip(f"{PACKAGE[framework]} not installed here: `make test-frameworks` has an environment")
    ranks = ran(framework)
    assert len(ranks[-1]["ours"]) == ITERATIONS + 1, "three iterations and an evaluation"
    assert [rank["ours"] for rank in ranks] == [rank["plain"] for rank in ranks]
    orders = []
    for rank in ranks:
        first, *others = rank["ran"]
        assert others == [first] * (ITERATIONS - 1)
        orders.append([PipelineInstruction(rank["rank"], *each) for each in first])
    if framework == "interleaved":
        of = [(each.kind, each.micro_batch, each.chunk) for each in orders[0]]
        kinds = ("forward", "backward")
        assert sorted(of) == sorted(
            (kind, each, part) for kind in kinds for each in range(4) for part in (0, 1)
        )
        assert len(from_orders(orders).instructions) == 2 * len(of)
        return
    expected = make_graph("1f1b", RANKS, MICRO_BATCHES)
    assert orders == [[expected.instructions[index] for index in chain] for chain in expected.orders]
