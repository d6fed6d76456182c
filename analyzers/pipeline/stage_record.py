"""One rank's stage of a pipeline, and what it ran at one clock. Pure."""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from analyzers.fleet.session import Session
from analyzers.measurement.timeline import Timeline
from analyzers.pipeline.graph import PipelineInstruction
from analyzers.pipeline.profile import EnergyWindow, InstructionSpan, cut_windows
from analyzers.results.pipeline_rows import InstructionSpanRow
from zeus_stream.protocol.pipelines import ROW, IterationRan, PipelineBegan, decode_instruction, unpack_rows

KEPT = 200
"""Iterations remembered."""


class StageRecord:
    """One rank."""

    def __init__(self, session: Session, began: PipelineBegan) -> None:
        self.session, self.began = session, began
        self.ran: deque[IterationRan] = deque(maxlen=KEPT)
        """Of the order under way; iterations of another one are left out."""
        self.order: tuple[int, ...] = ()
        """Codes of an iteration, in their order."""
        self.iteration = -1
        """Number of the last iteration that is known; -1: none."""
        self.others = 0
        """Iterations in a row that had another order."""
        self._other: tuple[int, ...] = ()
        """That order."""

    def take(self, ran: IterationRan) -> bool:
        """Take in an iteration. False: it ran other instructions than those before, or in another order."""
        codes = tuple(code for code, _, _ in unpack_rows(ran))
        self.order, self.iteration = self.order or codes, ran.iteration
        if codes == self.order:
            self.others = 0
            self.ran.append(ran)
            return True
        self.others, self._other = self.others + 1 if codes == self._other else 1, codes
        return False

    def learn(self) -> None:
        """Take the order of the latest iterations for that of those to come."""
        self.order, self.others = self._other, 0
        self.ran.clear()

    def instructions(self) -> list[PipelineInstruction]:
        return [
            PipelineInstruction(self.began.stage, kind, micro_batch, chunk)  # type: ignore[arg-type]
            for kind, micro_batch, chunk in map(decode_instruction, self.order)
        ]


def spans_of(iterations: list[IterationRan]) -> list[InstructionSpan]:
    spans = []
    for ran in iterations:
        for code, begin_ns, end_ns in unpack_rows(ran):
            kind, _, chunk = decode_instruction(code)
            spans.append(InstructionSpan(kind, chunk, begin_ns, end_ns))
    return spans


def windows_of(spans: list[InstructionSpan], clock_mhz: int, timeline: Timeline) -> list[EnergyWindow]:
    knots = timeline.knots()
    within = (knots.mid_ns >= spans[0].begin_ns) & (knots.mid_ns <= spans[-1].end_ns)
    if not within.any() or len(np.unique(knots.epoch[within])) != 1:
        return []  # the counter was reset
    mid_ns, energy_uj = knots.mid_ns[within], knots.energy_uj[within]
    rising = np.diff(mid_ns, prepend=mid_ns[0] - 1) > 0
    return cut_windows(clock_mhz, spans, mid_ns[rising].tolist(), (energy_uj[rising] / 1e6).tolist())


MOST_ROWS = 5_000
"""Instructions of one iteration that are kept; a larger one is left out."""


def span_rows(
    run: str,
    number: int,
    stages: Sequence[StageRecord],
    after: int,
    clock_mhz: Callable[[int, int], int],
) -> list[InstructionSpanRow]:
    """Return the latest iteration after this one that all stages of a replica ran.

    Empty: there is none, or it has too many instructions. ``number``: of its plan; 0: none. ``clock_mhz``:
    of an instruction, by stage and position in its order.
    """
    stages = tuple({stage.began.stage: stage for stage in reversed(stages)}.values())  # of each one rank
    iterations = [{each.iteration: each for each in stage.ran if each.iteration > after} for stage in stages]
    iteration = max(set.intersection(*map(set, iterations)), default=None)
    if iteration is None:
        return []
    ran = [(stage, of[iteration]) for stage, of in zip(stages, iterations, strict=True)]
    if sum(len(each.rows) for _, each in ran) > MOST_ROWS * ROW.size:
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
