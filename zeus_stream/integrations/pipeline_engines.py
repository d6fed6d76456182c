"""Pipelines of PyTorch, DeepSpeed and Megatron: their passes are instructions of a `zeus_stream.pipeline`.

    pipe = zeus_stream.pipeline(stage=rank, stages=4, micro_batches=8)
    follow_torch(pipe, stage)               # a torch.distributed.pipelining.PipelineStage
    follow_deepspeed(pipe, engine)          # a deepspeed PipelineEngine
    follow_megatron(pipe, schedules)        # the module megatron.core.pipeline_parallel.schedules

Each replaces methods of the object that it is given, by what calls them within an instruction. Nothing of the
frameworks is imported. Call it once, before the first iteration. A forward without gradients is of an
evaluation: it is no instruction.
"""

import sys
from collections.abc import Callable
from functools import wraps
from itertools import count, cycle
from typing import Any

from zeus_stream.errors import SettingsError
from zeus_stream.training.steps.pipeline_recorder import Pipeline


def follow_torch(pipe: Pipeline, stage: Any, chunk: int = 0) -> None:
    """Follow a stage of ``torch.distributed.pipelining``. ``chunk``: of several on this rank, from 0."""
    passes = (
        ("forward", "forward_one_chunk"),
        ("backward", "backward_one_chunk"),
        ("weight", "backward_weight_one_chunk"),
    )
    for kind, name in passes:
        if kind == "weight" and not hasattr(stage, name):
            continue  # older versions have no split backward
        setattr(stage, name, _instruction(pipe, kind, _method(stage, name), lambda given: given[0], chunk))


def follow_deepspeed(pipe: Pipeline, engine: Any) -> None:
    """Follow a DeepSpeed ``PipelineEngine``. Its buffers have no micro-batch: passes are counted.

    Its schedule calls the functions of ``_INSTRUCTION_MAP``, a dictionary of the class, and no attribute of
    the engine. The engine gets a dictionary of its own.
    """
    passes = {"_exec_forward_pass": "forward", "_exec_backward_pass": "backward"}
    own, found = dict(getattr(engine, "_INSTRUCTION_MAP", {})), set[str]()
    for command, function in tuple(own.items()):
        name = getattr(function, "__name__", "")
        if name in passes:
            own[command] = _instruction(pipe, passes[name], function, _numbers(pipe.micro_batches))
            found.add(name)
    for name in passes.keys() - found:
        raise _not_followed(engine, f"its _INSTRUCTION_MAP has no {name}")
    engine._INSTRUCTION_MAP = own  # noqa: SLF001  (its schedule calls what is in it)


def follow_megatron(pipe: Pipeline, schedules: Any) -> None:
    """Follow Megatron's ``forward_step`` and ``backward_step`` of a module.

    A forward says its micro-batch and its chunk (``current_microbatch``, ``vp_stage``). A backward is given
    the output of its forward. Where a version says neither, passes are counted, and there is one chunk.
    """
    forward, backward = _method(schedules, "forward_step"), _method(schedules, "backward_step")
    of_output: dict[int, tuple[int, int]] = {}
    forwards, backwards = count(), count()

    @wraps(forward)
    def forward_step(*arguments: Any, **named: Any) -> Any:
        if _evaluates():
            return forward(*arguments, **named)
        number, micro_batch = next(forwards), named.get("current_microbatch")
        at = number % pipe.micro_batches if micro_batch is None else micro_batch
        chunk = named.get("vp_stage") or 0
        with pipe.instruction("forward", at, chunk):
            result = forward(*arguments, **named)
        if len(of_output) >= pipe.micro_batches * pipe.chunks:
            of_output.clear()  # forwards without a backward
        of_output[id(result[0] if isinstance(result, tuple) else result)] = at, chunk
        return result

    @wraps(backward)
    def backward_step(*arguments: Any, **named: Any) -> Any:
        output = named.get("output_tensor", arguments[1] if len(arguments) > 1 else None)
        counted = next(backwards) % pipe.micro_batches, 0
        with pipe.instruction("backward", *of_output.pop(id(output), counted)):
            return backward(*arguments, **named)

    schedules.forward_step, schedules.backward_step = forward_step, backward_step


def _evaluates() -> bool:
    """Tell whether PyTorch keeps no gradients now."""
    torch = sys.modules.get("torch")
    return torch is not None and not torch.is_grad_enabled()


def _method(owner: Any, name: str) -> Callable[..., Any]:
    found = getattr(owner, name, None)
    if not callable(found):
        raise _not_followed(owner, f"it has no {name}")
    return found  # type: ignore[no-any-return]


def _not_followed(owner: Any, why: str) -> SettingsError:
    return SettingsError(
        f"{type(owner).__name__}: could not be followed: {why}."
        " Wrap its passes by hand: with pipe.instruction(kind, micro_batch)."
    )


def _numbers(micro_batches: int) -> Callable[[tuple[Any, ...]], int]:
    """Return a function that counts micro-batches, again and again."""
    numbers = cycle(range(micro_batches))
    return lambda _: next(numbers)


def _instruction(
    pipe: Pipeline,
    kind: str,
    function: Callable[..., Any],
    number: Callable[[tuple[Any, ...]], int],
    chunk: int = 0,
) -> Callable[..., Any]:
    """Return a pass as an instruction. ``number`` returns its micro-batch, given its arguments."""

    @wraps(function)
    def instruction(*arguments: Any, **named: Any) -> Any:
        if kind == "forward" and _evaluates():
            return function(*arguments, **named)
        with pipe.instruction(kind, number(arguments), chunk):
            return function(*arguments, **named)

    return instruction
