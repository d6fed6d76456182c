"""Schedules of pipelines as published, as graphs of instructions."""

from typing import Literal, TypeAlias, get_args

from analyzers.pipeline.graph import Kind, PipelineGraph, PipelineInstruction, from_orders

Schedule: TypeAlias = Literal["1f1b", "gpipe", "interleaved", "zero_bubble"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


def make_graph(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> PipelineGraph:
    """Return the graph of one iteration of a schedule.

    Args:
        schedule: one of SCHEDULES.
        stages: at least 1.
        micro_batches: at least 1; a multiple of ``stages`` for the interleaved schedule.
        chunks: model parts per stage; more than 1 for the interleaved schedule only.
    """
    assert schedule in SCHEDULES, schedule
    if schedule == "interleaved":
        assert chunks > 1, "an interleaved schedule has at least 2 chunks"
        assert not micro_batches % stages, "an interleaved schedule needs a multiple of the stages"
        return from_orders([_interleaved(stage, stages, micro_batches, chunks) for stage in range(stages)])
    assert chunks == 1, f"{schedule} has one chunk per stage"
    if schedule == "gpipe":
        return from_orders([_gpipe(stage, micro_batches) for stage in range(stages)])
    split = schedule == "zero_bubble"
    return from_orders([_one_f_one_b(stage, stages, micro_batches, split=split) for stage in range(stages)])


def _gpipe(stage: int, micro_batches: int) -> list[PipelineInstruction]:
    forwards = [PipelineInstruction(stage, "forward", each) for each in range(micro_batches)]
    return forwards + [PipelineInstruction(stage, "backward", each) for each in range(micro_batches)]


def _one_f_one_b(stage: int, stages: int, micro_batches: int, *, split: bool) -> list[PipelineInstruction]:
    """Return the 1F1B order. ``split``: weight gradients apart, later on later stages (Qi et al. 2024)."""
    warmup = min(stages - 1 - stage, micro_batches)
    order = [PipelineInstruction(stage, "forward", each) for each in range(warmup)]
    weights = 0
    for backward in range(micro_batches):
        if warmup + backward < micro_batches:
            order.append(PipelineInstruction(stage, "forward", warmup + backward))
        order.append(PipelineInstruction(stage, "backward", backward))
        held = min(stage, micro_batches - 1 - backward)  # cool-down: one backward, one weight
        while split and weights <= backward - held:
            order.append(PipelineInstruction(stage, "weight", weights))
            weights += 1
    return order


def _interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> list[PipelineInstruction]:
    """Return the order of interleaved 1F1B (Narayanan et al. 2021, figure 4)."""
    total = micro_batches * chunks

    def at(kind: Kind, turn: int) -> PipelineInstruction:
        group, within = divmod(turn, stages * chunks)
        chunk = within // stages if kind == "forward" else chunks - 1 - within // stages
        return PipelineInstruction(stage, kind, group * stages + within % stages, chunk)

    warmup = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    order = [at("forward", turn) for turn in range(warmup)]
    for turn in range(total - warmup):
        order += [at("forward", warmup + turn), at("backward", turn)]
    return order + [at("backward", turn) for turn in range(total - warmup, total)]
