"""Schedules of a pipeline as graphs of instructions. Pure.

A stage runs its instructions one after another, in the order of its schedule. Between stages, a forward
waits for the forward of the stage before, and a backward for the backward of the stage after. A ``weight`` is
the part of a backward that no other stage waits for. With several chunks, stage ``s`` holds the parts ``s``,
``s + stages``, ... of the model (interleaved schedule).
"""

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Literal, TypeAlias

from msgspec import Struct

from zeus_stream.errors import SettingsError

Kind: TypeAlias = Literal["forward", "backward", "weight", "recompute"]
MAX_INSTRUCTIONS = 20_000
"""Of one iteration, all stages together."""


class PipelineInstruction(Struct, frozen=True):
    """One computation of one stage for one micro-batch."""

    stage: int
    kind: Kind
    micro_batch: int
    chunk: int = 0


class PipelineGraph(Struct, frozen=True):
    """Instructions of one iteration, in an order in which each comes after all that it waits for."""

    stages: int
    instructions: tuple[PipelineInstruction, ...]
    edges: tuple[tuple[int, int], ...]
    """Pairs (before, after) of positions in `instructions`."""
    orders: tuple[tuple[int, ...], ...]
    """By stage: its instructions in the order in which it runs them."""
    successors: tuple[tuple[int, ...], ...]
    """By instruction."""

    def starts_s(self, durations_s: Sequence[float], reserves_s: Sequence[float] = ()) -> list[float]:
        """Return the earliest start of each of `instructions`; ``reserves_s``: see `make_plans`."""
        starts_s = [0.0] * len(self.instructions)
        for index, after in enumerate(self.successors):
            end_s = starts_s[index] + durations_s[index]
            for later in after:
                ready_s = end_s
                if reserves_s and self.instructions[index].stage != self.instructions[later].stage:
                    ready_s += reserves_s[index]
                starts_s[later] = max(starts_s[later], ready_s)
        return starts_s

    def makespan_s(self, durations_s: Sequence[float], reserves_s: Sequence[float] = ()) -> float:
        starts_s = self.starts_s(durations_s, reserves_s)
        return max(start_s + length_s for start_s, length_s in zip(starts_s, durations_s, strict=True))


def from_orders(orders: Sequence[Sequence[PipelineInstruction]]) -> PipelineGraph:
    """Return the graph of a schedule given as the order of each stage's instructions.

    Raises SettingsError: an instruction is there twice, of another stage, or waits for one that is not.
    """
    instructions = [each for order in orders for each in order]
    if not 0 < len(instructions) <= MAX_INSTRUCTIONS:
        raise _wrong(
            f"there are {len(instructions)} instructions", f"Give 1 to {MAX_INSTRUCTIONS} per iteration"
        )
    place: dict[PipelineInstruction, int] = {}
    for index, each in enumerate(instructions):
        if place.setdefault(each, index) != index:
            raise _wrong(f"{spell(each)} is there twice", "Give each instruction once")
    chunks = max(each.chunk for each in instructions) + 1
    pairs = set()
    for stage, order in enumerate(orders):
        if {each.stage for each in order} != {stage}:
            raise _wrong(f"order {stage} is not of stage {stage}", "Give the order of each stage, from 0 on")
        pairs |= {(place[one], place[two]) for one, two in pairwise(order)}
    for each in instructions:
        for needed in _inputs(each, len(orders), chunks):
            if needed in place:
                pairs.add((place[needed], place[each]))
            elif needed.kind != "recompute":
                raise _wrong(f"{spell(each)} waits for {spell(needed)}, which no stage runs", "Add it")
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(instructions)), ()))
    for before, after in sorted(pairs):
        sorter.add(after, before)
    try:
        ordered = tuple(sorter.static_order())
    except CycleError as stuck:
        first = min(stuck.args[1])
        raise _wrong(f"{spell(instructions[first])} waits for itself", "Remove the cycle") from None
    rank = {index: position for position, index in enumerate(ordered)}
    ranked = sorted((rank[before], rank[after]) for before, after in pairs)
    successors: list[list[int]] = [[] for _ in ordered]
    for one, two in ranked:
        successors[one].append(two)
    return PipelineGraph(
        len(orders),
        tuple(instructions[index] for index in ordered),
        tuple(ranked),
        tuple(tuple(rank[place[each]] for each in order) for order in orders),
        tuple(map(tuple, successors)),
    )


def spell(each: PipelineInstruction) -> str:
    chunk = f" of chunk {each.chunk}" if each.chunk else ""
    return f"{each.kind} {each.micro_batch}{chunk} on stage {each.stage}"


def _wrong(why: str, cure: str) -> SettingsError:
    return SettingsError(f"pipeline: could not make a graph: {why}. {cure}.")


def _inputs(each: PipelineInstruction, stages: int, chunks: int) -> list[PipelineInstruction]:
    """Return what an instruction waits for, besides those before it on its stage."""
    part, parts = each.chunk * stages + each.stage, chunks * stages

    def at(kind: Kind, part: int) -> PipelineInstruction:
        return PipelineInstruction(part % stages, kind, each.micro_batch, part // stages)

    match each.kind:
        case "forward":
            return [at("forward", part - 1)] if part else []
        case "recompute":
            return [at("forward", part)]
        case "backward":
            own = [at("forward", part), at("recompute", part)]
            return own if part == parts - 1 else [*own, at("backward", part + 1)]
        case "weight":
            return [at("backward", part)]
