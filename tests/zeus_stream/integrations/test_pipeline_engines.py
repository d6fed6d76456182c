"""Hooks of pipeline engines, on stand-ins with the signatures that the frameworks publish."""

import sys
from types import MethodType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.zeus_stream.training.steps.recorded_pipeline import RecordedPipeline
from zeus_stream.errors import SettingsError
from zeus_stream.integrations.pipeline_engines import follow_deepspeed, follow_megatron, follow_torch


class TorchStage:
    """The passes of ``torch.distributed.pipelining.PipelineStage``."""

    def forward_one_chunk(self, fwd_chunk_id: int, args: Any, kwargs: Any = None) -> str:
        return f"f{fwd_chunk_id}{args}{kwargs}"

    def backward_one_chunk(self, bwd_chunk_id: int, loss: Any = None, *passed: Any) -> str:
        return f"b{bwd_chunk_id}{loss}{passed}"

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *passed: Any) -> str:
        return f"w{bwd_chunk_id}{passed}"


def test_passes_of_a_torch_stage_are_instructions_with_their_micro_batch() -> None:
    recorded, stage = RecordedPipeline(chunks=2), TorchStage()
    follow_torch(recorded.pipe, stage, chunk=1)
    assert stage.forward_one_chunk(0, "x") == "f0xNone"
    assert stage.backward_one_chunk(0, "l", 1) == "b0l(1,)"
    assert stage.backward_weight_one_chunk(0) == "w0()"
    stage.forward_one_chunk(0, "x")
    assert recorded.iterations() == [
        [("forward", 0, 1), ("backward", 0, 1), ("weight", 0, 1)],
        [("forward", 0, 1)],
    ]


class DeepSpeedEngine:
    """The passes of DeepSpeed's ``PipelineEngine``, and the way in which its schedule calls them."""

    def _exec_forward_pass(self, buffer_id: int) -> int:
        return buffer_id

    def _exec_backward_pass(self, buffer_id: int) -> int:
        return -buffer_id

    _INSTRUCTION_MAP: ClassVar[dict[str, Any]] = {
        "ForwardPass": _exec_forward_pass, "BackwardPass": _exec_backward_pass,
    }  # fmt: skip

    def execute(self, *commands: tuple[str, int]) -> list[int]:
        return [MethodType(self._INSTRUCTION_MAP[name], self)(buffer_id=at) for name, at in commands]


def test_passes_of_a_deepspeed_engine_are_counted() -> None:
    recorded, engine, other = RecordedPipeline(chunks=2), DeepSpeedEngine(), DeepSpeedEngine()
    follow_deepspeed(recorded.pipe, engine)
    passes = [("ForwardPass", 1), ("ForwardPass", 0), ("BackwardPass", 1), ("BackwardPass", 0)]
    for _ in range(2):
        assert engine.execute(*passes) == other.execute(*passes) == [1, 0, -1, 0]
    order = [("forward", 0, 0), ("forward", 1, 0), ("backward", 0, 0), ("backward", 1, 0)]
    assert recorded.iterations() == [order, order]


def test_a_deepspeed_engine_whose_schedule_calls_others_is_refused() -> None:
    class Other(DeepSpeedEngine):
        _INSTRUCTION_MAP: ClassVar[dict[str, Any]] = {"ForwardPass": DeepSpeedEngine._exec_forward_pass}

    with pytest.raises(SettingsError, match="its _INSTRUCTION_MAP has no _exec_backward_pass"):
        follow_deepspeed(RecordedPipeline(chunks=2).pipe, Other())


def test_steps_of_megatron_are_counted() -> None:
    recorded = RecordedPipeline(chunks=2)
    schedules = SimpleNamespace(
        forward_step=lambda step, *rest, **named: (step, rest, named), backward_step=lambda *rest: rest
    )
    follow_megatron(recorded.pipe, schedules)
    assert schedules.forward_step("f", 1, config=2) == ("f", (1,), {"config": 2})
    assert schedules.backward_step(3, 4) == (3, 4)
    assert recorded.iterations() == [[("forward", 0, 0), ("backward", 0, 0)]]


def test_a_step_of_megatron_says_its_micro_batch_and_a_backward_is_that_of_its_output() -> None:
    recorded, first, second = RecordedPipeline(chunks=2), object(), object()
    outputs = iter((first, second))
    schedules = SimpleNamespace(
        forward_step=lambda **_: (next(outputs), 5), backward_step=lambda *given: given
    )
    follow_megatron(recorded.pipe, schedules)
    assert schedules.forward_step(current_microbatch=1, vp_stage=1) == (first, 5)
    assert schedules.forward_step(current_microbatch=0, vp_stage=0) == (second, 5)
    schedules.backward_step("in", second, "gradient")
    schedules.backward_step("in", first, "gradient")
    assert recorded.iterations() == [
        [("forward", 1, 1), ("forward", 0, 0), ("backward", 0, 0), ("backward", 1, 1)]
    ]


def test_a_forward_without_gradients_is_no_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, torch = RecordedPipeline(chunks=2), SimpleNamespace(is_grad_enabled=lambda: False)
    stage, engine = TorchStage(), DeepSpeedEngine()
    schedules = SimpleNamespace(forward_step=lambda: 1, backward_step=lambda: 2)
    follow_torch(recorded.pipe, stage)
    follow_deepspeed(recorded.pipe, engine)
    follow_megatron(recorded.pipe, schedules)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert stage.forward_one_chunk(0, "x") == "f0xNone"
    assert engine.execute(("ForwardPass", 1)) == [1]
    assert schedules.forward_step() == 1
    torch.is_grad_enabled = lambda: True
    assert engine.execute(("ForwardPass", 1)) == [1]
    assert recorded.iterations() == [[("forward", 0, 0)]]


def test_a_pass_that_fails_fails_as_it_would_have() -> None:
    def fail() -> None:
        raise ValueError("no memory")

    schedules = SimpleNamespace(forward_step=fail, backward_step=fail)
    follow_megatron(RecordedPipeline(chunks=2).pipe, schedules)
    with pytest.raises(ValueError, match="no memory"):
        schedules.forward_step()


def test_what_has_no_such_passes_is_refused_with_what_to_do() -> None:
    with pytest.raises(SettingsError, match=r"it has no forward_one_chunk\. Wrap its passes by hand"):
        follow_torch(RecordedPipeline(chunks=2).pipe, object())
