"""One iteration of a pipeline, instruction by instruction, as rows: for a drawing. Pure.

An iteration before the plans and one under each plan are kept, of the first replica. Hosts have clocks of
their own; instants of one drawing are compared as UTC.
"""

from collections.abc import Callable, Sequence

from analyzers.pipeline.stage_record import StageRecord
from analyzers.results.pipeline_rows import InstructionSpanRow
from zeus_stream.protocol.pipelines import IterationRan, decode_instruction, unpack_rows

MOST = 20
"""Iterations of a run that are kept as rows."""
MOST_ROWS = 5_000
"""Instructions of one iteration that are kept; a larger one is left out."""


class Timelines:
    """The iterations of one run that were kept."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._kept: set[int] = set()
        """Numbers of plans; 0: before them."""

    def keep(
        self, number: int, stages: Sequence[StageRecord], after: int, clock_mhz: Callable[[int, int], int]
    ) -> list[InstructionSpanRow]:
        """Keep the latest iteration after this one that every stage ran, once for each plan (0: none).

        ``clock_mhz``: clock of an instruction, by stage and position in its order.
        """
        if number in self._kept or len(self._kept) >= MOST:
            return []
        stages = tuple({stage.began.stage: stage for stage in reversed(stages)}.values())  # of each one rank
        known = [{ran.iteration for ran in stage.ran if ran.iteration > after} for stage in stages]
        iteration = max(set.intersection(*known), default=None) if known else None
        if iteration is None:
            return []
        self._kept.add(number)
        return _span_rows(self._run, number, stages, iteration, clock_mhz)


def _span_rows(
    run: str,
    number: int,
    stages: Sequence[StageRecord],
    iteration: int,
    clock_mhz: Callable[[int, int], int],
) -> list[InstructionSpanRow]:
    """Return the instructions of an iteration of one replica; for the arguments see `keep`."""
    ran = [(stage, _of(stage, iteration)) for stage in stages]
    if sum(len(each.rows) for _, each in ran) > MOST_ROWS * 12:
        return []
    origin_ns = min(stage.session.wall_ns(each.t_ns) for stage, each in ran)
    rows = []
    for stage, each in ran:
        for position, (code, begin_ns, end_ns) in enumerate(unpack_rows(each)):
            kind, micro_batch, chunk = decode_instruction(code)
            rows.append(
                InstructionSpanRow(
                    run=run,
                    plan=number,
                    iteration=iteration,
                    stage=stage.began.stage,
                    position=position,
                    kind=kind,
                    micro_batch=micro_batch,
                    chunk=chunk,
                    clock_mhz=clock_mhz(stage.began.stage, position),
                    begin_s=(stage.session.wall_ns(begin_ns) - origin_ns) / 1e9,
                    duration_s=(end_ns - begin_ns) / 1e9,
                )
            )
    return rows


def _of(stage: StageRecord, iteration: int) -> IterationRan:
    return next(ran for ran in stage.ran if ran.iteration == iteration)
