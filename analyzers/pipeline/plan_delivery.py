"""Outputs of a pipeline: a plan for the collector of a rank, and rows of the profile. Pure."""

from collections.abc import Sequence
from math import ceil

from msgspec.structs import asdict

from analyzers.pipeline.frontier import PipelineProfile
from analyzers.pipeline.graph import PipelineGraph
from analyzers.pipeline.plan import overlaps_s
from analyzers.pipeline.profile import StageProfile
from analyzers.pipeline.stage_record import StageRecord
from analyzers.results.instructions import ApplyPlan
from analyzers.results.pipeline_rows import InstructionRow
from zeus_stream.protocol.pipelines import encode_instruction


def deliver(
    command: str,
    gpu: str,
    plan: str,
    number: int,
    stage: StageRecord,
    clocks_mhz: Sequence[int],
    graph: PipelineGraph,
    profile: PipelineProfile,
    *,
    first_iteration: int | None,
    switching_s: float,
) -> ApplyPlan:
    """Return the command that has a rank's collector follow its part of a plan.

    ``clocks_mhz``: of all instructions of the graph. ``first_iteration``: that follows it; None: not yet.
    """
    chain = graph.orders[stage.began.stage]
    lengths_s = [_time_s(graph, profile, clocks_mhz, index) for index in range(len(clocks_mhz))]
    clocks = [clocks_mhz[index] for index in chain]
    _, after_s = overlaps_s(graph, lengths_s, switching_s)
    raises = []
    for at, index in enumerate(chain):
        higher = clocks[(at + 1) % len(chain)] > clocks[at]
        raises.append(max(round((lengths_s[index] - after_s[index]) * 1e6), 1) if higher else 0)
    instructions = (graph.instructions[index] for index in chain)
    return ApplyPlan(
        command=command,
        run=stage.session.started.run,
        host=stage.session.host,
        gpu=gpu,
        plan=plan,
        number=number,
        first_iteration=first_iteration,
        iteration_ms=ceil(graph.makespan_s(lengths_s) * 1000),
        codes=tuple(encode_instruction(each.kind, each.micro_batch, each.chunk) for each in instructions),
        clocks_mhz=tuple(clocks),
        raise_after_us=tuple(raises),
    )


def _time_s(graph: PipelineGraph, profile: PipelineProfile, clocks_mhz: Sequence[int], index: int) -> float:
    options = profile.of(graph.instructions[index])
    return next(option.time_s for option in options if option.clock_mhz == clocks_mhz[index])


def instruction_rows(
    run: str, measured: Sequence[StageProfile], job: str, gpu_model: str, measured_wall_ns: int
) -> list[InstructionRow]:
    """Return the profile of all stages as rows."""
    return [
        InstructionRow(
            run=run,
            job=job,
            gpu_model=gpu_model,
            waiting_w=stage.waiting_w,
            measured_wall_ns=measured_wall_ns,
            **asdict(each),
        )
        for stage in measured
        for each in stage.instructions
    ]
