"""One rank of a pipeline of ``torch.distributed.pipelining`` on CPU: prints what its instructions were.

python pipelining.py RANK RANKS SCHEDULE STORE
"""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from zeus_stream.integrations.pipeline_engines import follow_torch
from zeus_stream.protocol.pipelines import IterationRan, decode_instruction, unpack_rows
from zeus_stream.training.answers import WindowHooks
from zeus_stream.training.steps.event_watch import EventWatch
from zeus_stream.training.steps.pipeline_recorder import Pipeline

MICRO_BATCHES, ITERATIONS, WIDTH = 4, 3, 8


def never(*_: Any) -> Any:
    """Fail: a pipeline asks for no energy."""
    raise AssertionError


def losses(rank: int, ranks: int, name: str, *, followed: bool) -> tuple[list[float], list[Any]]:
    """Train, and return the losses of the last stage with the instructions of each iteration."""
    entries: list[Any] = []
    hooks = WindowHooks(numbers=iter(range(9)), put=entries.append, warn=never, energy=never, later=never)
    chunks = 2 if name.startswith("ScheduleInterleaved") else 1
    stages = []
    for chunk in range(chunks):
        torch.manual_seed(rank + chunk * ranks)
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
        stages.append(PipelineStage(model, rank + chunk * ranks, ranks * chunks, torch.device("cpu")))
    pipe = Pipeline(
        hooks, EventWatch(lambda: None, never), stage=rank, stages=ranks, micro_batches=MICRO_BATCHES,
        chunks=chunks, environ={"ZEUS_STREAM_DIR": "/nowhere"},
    )  # fmt: skip
    if followed:
        for chunk, stage in enumerate(stages):
            follow_torch(pipe, stage, chunk)
    make = getattr(pipelining, name)
    of = stages if chunks > 1 else stages[0]
    schedule = make(of, n_microbatches=MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)
    torch.manual_seed(99)
    found = []
    for _ in range(ITERATIONS):
        inputs, target = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
        kept: list[torch.Tensor] = []
        given = {"target": target, "losses": kept} if rank == ranks - 1 else {}
        schedule.step(*((inputs,) if rank == 0 else ()), **given)
        found += [float(torch.stack(kept).mean())] if kept else []
    pipe.close()
    events = [make(*fields) for make, *fields in entries]
    ran = [
        [decode_instruction(code) for code, _, _ in unpack_rows(event)]
        for event in events
        if isinstance(event, IterationRan)
    ]
    return found, ran


def main() -> None:
    """Train twice, with and without our hooks."""
    rank, ranks, name, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    plain, _ = losses(rank, ranks, name, followed=False)
    ours, ran = losses(rank, ranks, name, followed=True)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({"rank": rank, "plain": plain, "ours": ours, "ran": ran}))


if __name__ == "__main__":
    main()
