"""One rank of a pipeline of PyTorch, DeepSpeed or Megatron on CPU: prints losses, and its instructions.

python engines.py RANK RANKS ENGINE STORE

Megatron asks for CUDA by name. Here its tensors are made on the CPU instead, by a mode of PyTorch; schedules
and communication are its own.
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tests.zeus_stream.training.steps.recorded_pipeline import RecordedPipeline
from zeus_stream.integrations.pipeline_engines import follow_deepspeed, follow_megatron, follow_torch
from zeus_stream.training.steps.pipeline_recorder import Pipeline

MICRO_BATCHES, ITERATIONS, EVALUATED_AFTER, WIDTH, ROWS = 4, 3, 1, 8, 2


def batches(rows: int = ROWS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    while True:
        yield torch.randn(rows, WIDTH, generator=generator), torch.randn(rows, WIDTH, generator=generator)


def train_torch(rank: int, ranks: int, chunks: int, name: str, pipe: Pipeline | None) -> list[float]:
    """Return the losses of a schedule of ``torch.distributed.pipelining``; the last stage has them."""
    from torch.distributed import pipelining

    stages = []
    for chunk in range(chunks):
        torch.manual_seed(rank + chunk * ranks)
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
        at = rank + chunk * ranks
        stages.append(pipelining.PipelineStage(model, at, ranks * chunks, torch.device("cpu")))
        if pipe is not None:
            follow_torch(pipe, stages[-1], chunk)
    schedule = getattr(pipelining, name)(
        stages if chunks > 1 else stages[0],
        n_microbatches=MICRO_BATCHES,
        loss_fn=torch.nn.functional.mse_loss,
    )
    data, losses = batches(ROWS * MICRO_BATCHES), []
    for _ in range(ITERATIONS):
        inputs, target = next(data)
        kept: list[torch.Tensor] = []
        given = {"target": target, "losses": kept} if rank == ranks - 1 else {}
        schedule.step(*((inputs,) if rank == 0 else ()), **given)
        losses += [float(torch.stack(kept).mean())] if kept else []
    return losses


def train_deepspeed(ranks: int, pipe: Pipeline | None) -> list[float]:
    """Return the losses of a `PipelineEngine`; an evaluation comes between two iterations."""
    import deepspeed
    from deepspeed.pipe import PipelineModule

    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(2 * ranks)]
    net = PipelineModule(
        layers=layers, num_stages=ranks, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform"
    )
    config = {
        "train_batch_size": ROWS * MICRO_BATCHES,
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=list(net.parameters()), config=config)
    if pipe is not None:
        follow_deepspeed(pipe, engine)
    data, losses = batches(), []
    for iteration in range(ITERATIONS):
        losses.append(float(engine.train_batch(data)))
        if iteration == EVALUATED_AFTER:
            losses.append(float(engine.eval_batch(data)))
    return losses


class OnCpu(TorchFunctionMode):
    """Tensors that are asked for on CUDA are made on the CPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = "cpu"
        return function(*args, **named)


def train_megatron(rank: int, ranks: int, chunks: int, pipe: Pipeline | None) -> list[float]:
    """Return the losses of Megatron's own schedule; an evaluation comes between two iterations."""
    from megatron.core import parallel_state
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.transformer import TransformerConfig

    class Part(torch.nn.Module):
        """What Megatron asks of a model part."""

        def __init__(self, config: Any, at: int) -> None:
            super().__init__()
            self.config, self.model_type, self.vp_stage = config, ModelType.encoder_or_decoder, at
            self.linear, self.given = torch.nn.Linear(WIDTH, WIDTH), None

        def set_input_tensor(self, given: list[torch.Tensor | None]) -> None:
            self.given = given[0]

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.linear(inputs if self.given is None else self.given))

    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            pipeline_model_parallel_size=ranks,
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        )
    config = TransformerConfig(
        num_layers=ranks * chunks, num_attention_heads=1,
        pipeline_model_parallel_size=ranks,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        pipeline_dtype=torch.float32, hidden_size=WIDTH, batch_p2p_comm=False,
        microbatch_group_size_per_vp_stage=ranks,
    )  # fmt: skip
    torch.manual_seed(rank)
    parts = [Part(config, chunk) for chunk in range(chunks)]
    optimizer = torch.optim.SGD([each for part in parts for each in part.parameters()], lr=0.01)
    if pipe is not None:
        follow_megatron(pipe, schedules)
    run = schedules.get_forward_backward_func(pp_size=ranks, vp_size=chunks if chunks > 1 else None)

    def forward_step(data: Iterator[Any], model: Part) -> Any:
        inputs, target = next(data)
        output = model(inputs.reshape(1, ROWS, WIDTH))
        return output, lambda out: ((loss := ((out - target) ** 2).mean()), {"loss": loss.detach()})

    data, losses = [batches() for _ in parts], []
    for iteration in range(ITERATIONS):
        for training in (True, False) if iteration == EVALUATED_AFTER else (True,):
            optimizer.zero_grad()
            with torch.set_grad_enabled(training):
                found = run(
                    forward_step_func=forward_step, data_iterator=data if chunks > 1 else data[0],
                    model=parts if chunks > 1 else parts[0], num_microbatches=MICRO_BATCHES, seq_length=1,
                    micro_batch_size=ROWS, forward_only=not training,
                )  # fmt: skip
            losses += [float(torch.stack([each["loss"] for each in found]).mean())] if found else []
            if training:
                optimizer.step()
    return losses


def main() -> None:
    """Train twice, with and without our hooks."""
    rank, ranks, engine, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks)}
    torch.set_num_threads(1)
    chunks = 2 if "nterleaved" in engine else 1
    recorded = RecordedPipeline(stage=rank, stages=ranks, micro_batches=MICRO_BATCHES, chunks=chunks)
    if engine == "deepspeed":
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would compile for minutes
        deepspeed.init_distributed(
            "gloo", auto_mpi_discovery=False, init_method=f"file://{store}", rank=rank, world_size=ranks
        )
    else:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
        )

    def train(pipe: Pipeline | None) -> list[float]:
        if engine == "deepspeed":
            return train_deepspeed(ranks, pipe)
        if engine.startswith("Schedule"):
            return train_torch(rank, ranks, chunks, engine, pipe)
        torch.cuda.current_device = lambda: torch.device("cpu")
        torch.cuda.synchronize = lambda *_: None
        with OnCpu():
            return train_megatron(rank, ranks, chunks, pipe)

    plain, ours = train(None), train(recorded.pipe)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    print(json.dumps({"rank": rank, "plain": plain, "ours": ours, "ran": recorded.iterations()}))


if __name__ == "__main__":
    main()
