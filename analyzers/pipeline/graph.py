"""Schedules of a pipeline as graphs of instructions. Pure.

A stage runs its instructions one after another, in the order of its schedule. Between stages, a forward
waits for the forward of the stage before, and a backward for the backward of the stage after. A ``weight`` is
the part of a backward that no other stage waits for. With several chunks, stage ``s`` holds the parts ``s``,
``s + stages``, ... of the model (interleaved schedule).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from zeus_stream.errors import SettingsError

Kind: TypeAlias = Literal["forward", "backward", "weight", "recompute"]
Schedule: TypeAlias = Literal["1f1b", "gpipe", "interleaved", "zero_bubble"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
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
        """Return the earliest start of each instruction, for durations in the order of `instructions`.

        ``reserves_s``: by instruction, passes between it and those of other stages that wait for it.
        """
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
        """Return the duration of an iteration."""
        starts_s = self.starts_s(durations_s, reserves_s)
        return max(start_s + length_s for start_s, length_s in zip(starts_s, durations_s, strict=True))


def make_graph(schedule: Schedule | str, stages: int, micro_batches: int, chunks: int = 1) -> PipelineGraph:
    """Return the graph of one iteration of a named schedule.

    Args:
        schedule: one of SCHEDULES.
        stages: at least 1.
        micro_batches: at least 1; a multiple of ``stages`` for the interleaved schedule.
        chunks: model parts per stage; more than 1 for the interleaved schedule only.

    Raises:
        SettingsError: the sentence says which argument is wrong.
    """
    if schedule not in SCHEDULES:
        raise _wrong(f"{schedule!r} is no schedule", f"Choose one of {', '.join(SCHEDULES)}, or give a graph")
    if stages < 1 or micro_batches < 1:
        raise _wrong(
            f"{stages} stages and {micro_batches} micro-batches are too few", "Give at least 1 of each"
        )
    if schedule == "interleaved":
        if chunks < 2:
            raise _wrong(
                "an interleaved schedule has at least 2 chunks", "Give chunks=2 or more, or use 1f1b"
            )
        if micro_batches % stages:
            raise _wrong(
                f"{micro_batches} micro-batches are no multiple of {stages} stages",
                "An interleaved schedule needs a multiple",
            )
    elif chunks != 1:
        raise _wrong(
            f"{schedule} has one chunk per stage, not {chunks}", "Use interleaved for several chunks"
        )
    per_stage = 3 if schedule == "zero_bubble" else 2
    if stages * micro_batches * chunks * per_stage > MAX_INSTRUCTIONS:
        raise _wrong(
            f"an iteration would have more than {MAX_INSTRUCTIONS} instructions", "Use fewer micro-batches"
        )
    if schedule == "interleaved":
        orders = [_interleaved(stage, stages, micro_batches, chunks) for stage in range(stages)]
    elif schedule == "gpipe":
        orders = [_gpipe(stage, micro_batches) for stage in range(stages)]
    else:
        split = schedule == "zero_bubble"
        orders = [_one_f_one_b(stage, stages, micro_batches, split=split) for stage in range(stages)]
    return from_orders(orders)


def from_orders(orders: Sequence[Sequence[PipelineInstruction]]) -> PipelineGraph:
    """Return the graph of a schedule given as the order of each stage's instructions.

    Raises:
        SettingsError: a stage waits for an instruction that no stage runs, or that waits for it.
    """
    instructions = [each for order in orders for each in order]
    place = {each: index for index, each in enumerate(instructions)}
    last = max((each.stage for each in instructions), default=0)
    chunks = max((each.chunk for each in instructions), default=0) + 1
    edges = []
    for each in instructions:
        for needed in _inputs(each, last + 1, chunks):
            if needed in place:
                edges.append((place[needed], place[each]))
            elif needed.kind != "recompute":
                raise _wrong(f"{spell(each)} waits for {spell(needed)}, which no stage runs", "Add it")
    return from_edges(instructions, edges)


def from_edges(
    instructions: Sequence[PipelineInstruction], edges: Iterable[tuple[int, int]]
) -> PipelineGraph:
    """Return a graph given by hand. Instructions of one stage run in the order in which they are listed.

    Args:
        edges: pairs (before, after) of positions in ``instructions``; those within a stage are added.

    Raises:
        SettingsError: the graph is empty, repeats an instruction, names none, or has a cycle.
    """
    if not instructions:
        raise _wrong("there is no instruction", "Give at least one")
    if len(instructions) > MAX_INSTRUCTIONS:
        raise _wrong(
            f"there are {len(instructions)} instructions", f"Give at most {MAX_INSTRUCTIONS} per iteration"
        )
    if len(set(instructions)) != len(instructions):
        twice = next(each for each in instructions if list(instructions).count(each) > 1)
        raise _wrong(f"{spell(twice)} is there twice", "Give each instruction once")
    for each in instructions:
        if each.kind not in KINDS or min(each.stage, each.micro_batch, each.chunk) < 0:
            raise _wrong(f"{each} is no instruction", f"Use {', '.join(KINDS)} and numbers from 0 on")
    stages = max(each.stage for each in instructions) + 1
    chains: list[list[int]] = [[] for _ in range(stages)]
    for index, each in enumerate(instructions):
        chains[each.stage].append(index)
    if missing := [stage for stage, chain in enumerate(chains) if not chain]:
        raise _wrong(f"stage {missing[0]} has no instruction", "Number the stages from 0 without a hole")
    pairs = {(one, two) for chain in chains for one, two in pairwise(chain)}
    for before, after in edges:
        if not (0 <= before < len(instructions) and 0 <= after < len(instructions)):
            raise _wrong(f"the edge {before} -> {after} names no instruction", "Use positions in the list")
        pairs.add((before, after))
    order = _sorted(len(instructions), pairs)
    if len(order) < len(instructions):
        stuck = min(set(range(len(instructions))) - set(order))
        raise _wrong(f"{spell(instructions[stuck])} waits for itself", "Remove the cycle")
    rank = {index: position for position, index in enumerate(order)}
    ranked = sorted((rank[before], rank[after]) for before, after in pairs)
    successors: list[list[int]] = [[] for _ in order]
    for before, after in ranked:
        successors[before].append(after)
    return PipelineGraph(
        stages,
        tuple(instructions[index] for index in order),
        tuple(ranked),
        tuple(tuple(rank[index] for index in chain) for chain in chains),
        tuple(map(tuple, successors)),
    )


def spell(each: PipelineInstruction) -> str:
    """Return an instruction for a sentence."""
    chunk = f" of chunk {each.chunk}" if each.chunk else ""
    return f"{each.kind} {each.micro_batch}{chunk} on stage {each.stage}"


def _wrong(why: str, cure: str) -> SettingsError:
    return SettingsError(f"pipeline: could not make a graph: {why}. {cure}.")


def _sorted(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return positions in topological order; those in or after a cycle are left out."""
    after: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for one, two in sorted(pairs):
        after[one].append(two)
        waits[two] += 1
    order = [index for index in range(count) if not waits[index]]
    for index in order:
        for later in after[index]:
            waits[later] -= 1
            if not waits[later]:
                order.append(later)
    return order


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
