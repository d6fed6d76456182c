"""Train a pipeline of stages on simulated GPUs: one process a stage, schedule 1F1B.

    zeus-stream run --device simulated:a100x4 --control graphics_clock -- python examples/pipeline.py

The model is an idea: activations and gradients are counters that travel from process to process, and the work
of each instruction is done by a simulated GPU, whose power and speed follow its clock. The stages are not
equal, as those of real models are. The analyzer measures every instruction at some clocks, then has clocks
follow a plan that saves energy without making an iteration longer.

With ``--replicas 2`` there are two such pipelines, which wait for each other after each iteration; the last
one becomes slower with ``--straggler 1.2 --from 120 --until 150``.
"""

import argparse
import os
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from pathlib import Path

import zeus_stream

WEIGHTS = (0.8, 1.0, 0.9, 1.1)
"""Work of a stage, repeated if there are more."""


def order(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Return the instructions of a stage in the order of the schedule 1F1B."""
    warmup = min(stages - 1 - stage, micro_batches)
    found = [("forward", each) for each in range(warmup)]
    for each in range(micro_batches):
        if warmup + each < micro_batches:
            found.append(("forward", warmup + each))
        found.append(("backward", each))
    return found


def train(
    rank: int,
    asked: argparse.Namespace,
    before: Connection | None,
    after: Connection | None,
    all_ranks: Barrier,
    last: "Synchronized[int]",
) -> None:
    """Run one stage of one replica to iteration ``last``. ``before`` and ``after`` lead to its neighbours."""
    ranks, stages, (replica, stage) = all_ranks.parties, asked.stages, divmod(rank, asked.stages)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(ranks), "ZEUS_STREAM_GPUS": str(rank)}
    usual = WEIGHTS[stage % len(WEIGHTS)] * asked.work_ms / 1000
    slow = range(asked.begin, asked.until) if replica == asked.replicas - 1 else range(0)
    pipe = zeus_stream.pipeline(stage=stage, stages=stages, micro_batches=asked.micro_batches)
    with zeus_stream.simulated.attach("imagenet", gpus=[rank]) as gpu:
        for iteration in zeus_stream.steps(range(asked.iterations)):
            weight = usual * asked.straggler if iteration in slow else usual
            for kind, micro_batch in order(stage, stages, asked.micro_batches):
                source, target = (before, after) if kind == "forward" else (after, before)
                received = source.recv() if source is not None else 0
                with pipe.instruction(kind, micro_batch):
                    if kind == "forward":
                        gpu.run(weight, "squad")
                    else:
                        gpu.run(2 * weight)
                if target is not None:
                    target.send(received + 1)
            if rank == 0 and asked.end_when is not None and asked.end_when.exists():
                last.value = min(last.value, iteration + 1)
            all_ranks.wait()
            if iteration >= last.value:
                break


def main() -> None:
    """Start a process for each stage of each replica, and wait for all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=1, help="pipelines that train the same model")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=600)
    parser.add_argument("--end-when", type=Path, help="a file: once it exists, training ends")
    parser.add_argument("--work-ms", type=float, default=20.0, help="of a forward; a backward has twice that")
    parser.add_argument(
        "--straggler", type=float, default=1.0, help="work of the last replica, times the usual"
    )
    parser.add_argument("--from", type=int, default=0, dest="begin", help="its first slow iteration")
    parser.add_argument("--until", type=int, default=sys.maxsize, help="its first usual iteration after that")
    asked = parser.parse_args()
    context = get_context("spawn")
    all_ranks = context.Barrier(asked.replicas * asked.stages)
    last = context.Value("q", asked.iterations)
    ranks = []
    for replica in range(asked.replicas):
        links = [context.Pipe() for _ in range(asked.stages - 1)]
        for stage in range(asked.stages):
            before = links[stage - 1][1] if stage else None
            after = links[stage][0] if stage < asked.stages - 1 else None
            number = replica * asked.stages + stage
            # daemon: a Ctrl-C that only this process receives ends the stages too
            rank = context.Process(
                target=train, args=(number, asked, before, after, all_ranks, last), daemon=True
            )
            rank.start()
            ranks.append(rank)
    for rank in ranks:
        rank.join()
    if failed := [rank.exitcode for rank in ranks if rank.exitcode]:
        raise SystemExit(f"{len(failed)} of {len(ranks)} stages failed.")


if __name__ == "__main__":
    main()
