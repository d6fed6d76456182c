"""Hooks of pipeline engines, on stand-ins with the signatures that the frameworks publish."""

from types import SimpleNamespace
from typing import Any

import pytest

from zeus_stream.errors import SettingsError
from zeus_stream.integrations.pipeline_engines import follow_deepspeed, follow_megatron, follow_torch
from zeus_stream.protocol.pipelines import IterationRan, decode_instruction, unpack_rows
from zeus_stream.training.hooks import WindowHooks
from zeus_stream.training.steps.pipeline_recorder import Pipeline


class Recorded:
    """A pipeline that keeps what it hands over."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

        def never(*_: Any) -> Any:
            raise AssertionError("a pipeline asks for no energy")

        hooks = WindowHooks(
            numbers=iter(range(9)), put=self.entries.append, warn=never, energy=never, later=never
        )
        self.pipe = Pipeline(
            hooks, stage=0, stages=2, micro_batches=2, chunks=2, environ={"ZEUS_STREAM_DIR": "/nowhere"}
        )

    def iterations(self) -> list[list[tuple[str, int, int]]]:
        self.pipe.close()
        events = [make(*fields) for make, *fields in self.entries]
        return [
            [decode_instruction(code) for code, _, _ in unpack_rows(event)]
            for event in events
            if isinstance(event, IterationRan)
        ]


class TorchStage:
    """The passes of ``torch.distributed.pipelining.PipelineStage``."""

    def forward_one_chunk(self, fwd_chunk_id: int, args: Any, kwargs: Any = None) -> str:
        return f"f{fwd_chunk_id}{args}{kwargs}"

    def backward_one_chunk(self, bwd_chunk_id: int, loss: Any = None, *passed: Any) -> str:
        return f"b{bwd_chunk_id}{loss}{passed}"

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *passed: Any) -> str:
        return f"w{bwd_chunk_id}{passed}"


def test_passes_of_a_torch_stage_are_instructions_with_their_micro_batch() -> None:
    recorded, stage = Recorded(), TorchStage()
    follow_torch(recorded.pipe, stage, chunk=1)
    assert stage.forward_one_chunk(0, "x") == "f0xNone"
    assert stage.backward_one_chunk(0, "l", 1) == "b0l(1,)"
    assert stage.backward_weight_one_chunk(0) == "w0()"
    stage.forward_one_chunk(0, "x")
    assert recorded.iterations() == [
        [("forward", 0, 1), ("backward", 0, 1), ("weight", 0, 1)],
        [("forward", 0, 1)],
    ]


def test_passes_of_a_deepspeed_engine_are_counted() -> None:
    class PipelineEngine:
        def _exec_forward_pass(self, buffer_id: int) -> int:
            return buffer_id

        def _exec_backward_pass(self, buffer_id: int) -> int:
            return -buffer_id

    recorded, engine = Recorded(), PipelineEngine()
    follow_deepspeed(recorded.pipe, engine)
    for _ in range(2):
        assert [engine._exec_forward_pass(1), engine._exec_forward_pass(0)] == [1, 0]
        assert [engine._exec_backward_pass(1), engine._exec_backward_pass(0)] == [-1, 0]
    order = [("forward", 0, 0), ("forward", 1, 0), ("backward", 0, 0), ("backward", 1, 0)]
    assert recorded.iterations() == [order, order]


def test_steps_of_megatron_are_counted() -> None:
    recorded = Recorded()
    schedules = SimpleNamespace(
        forward_step=lambda step, *rest, **named: (step, rest, named), backward_step=lambda *rest: rest
    )
    follow_megatron(recorded.pipe, schedules)
    assert schedules.forward_step("f", 1, config=2) == ("f", (1,), {"config": 2})
    assert schedules.backward_step(3, 4) == (3, 4)
    assert recorded.iterations() == [[("forward", 0, 0), ("backward", 0, 0)]]


def test_a_pass_that_fails_fails_as_it_would_have() -> None:
    def fail() -> None:
        raise ValueError("no memory")

    schedules = SimpleNamespace(forward_step=fail, backward_step=fail)
    follow_megatron(Recorded().pipe, schedules)
    with pytest.raises(ValueError, match="no memory"):
        schedules.forward_step()


def test_what_has_no_such_passes_is_refused_with_what_to_do() -> None:
    with pytest.raises(SettingsError, match=r"it has no forward_one_chunk\. Wrap its passes by hand"):
        follow_torch(Recorded().pipe, object())
