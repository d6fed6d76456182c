"""One stage of a pipeline, as a training script describes it: which instruction runs when.

Each instruction is stamped where it begins and where it ends, and a message of 13 bytes says so, without a
wait. Times travel once an iteration. The messages tell the collector of this host where the stage is: it can
then follow a plan of clocks (`collectors.controls.frequency_plan`).

Where the GPU has a queue, both are done when the GPU gets there (`event_watch`), not when Python dispatches
it. What is captured into a CUDA graph is no instruction.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import SettingsError
from zeus_stream.paths import publish_candidates
from zeus_stream.protocol.pipelines import (
    KINDS,
    MAX_CHUNKS,
    MAX_MICRO_BATCHES,
    MAX_ROWS,
    MAX_STAGES,
    POSITION,
    IterationRan,
    PipelineBegan,
    encode_instruction,
    pack_rows,
)
from zeus_stream.training.steps.event_watch import EventWatch

if TYPE_CHECKING:
    import socket

MAX_SCHEDULE = 64
"""Letters of a schedule's name."""


class InstructionContext:
    """A context that is one instruction. The same object serves it in every iteration."""

    __slots__ = ("_code", "_pipeline", "_runs")

    def __init__(self, pipeline: "Pipeline", code: int) -> None:
        self._pipeline, self._code, self._runs = pipeline, code, False

    def __enter__(self) -> None:
        self._runs = self._pipeline._begin(self._code)  # noqa: SLF001  (its own part)

    def __exit__(self, *_: object) -> None:
        if self._runs:
            self._pipeline._end()  # noqa: SLF001


class Pipeline:
    """One stage of a pipeline, made by `zeus_stream.pipeline`. For one thread.

    Example:
        >>> pipe = zeus_stream.pipeline(stage=rank, stages=4, micro_batches=8)
        >>> with pipe.instruction("forward", 0):
        ...     output = model(inputs)
    """

    def __init__(
        self,
        put: Callable[[tuple[Any, ...]], None],
        watch: EventWatch,
        *,
        stage: int,
        stages: int,
        micro_batches: int,
        schedule: str = "1f1b",
        chunks: int = 1,
        tensor_parallel: int = 1,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Raise SettingsError for arguments that make no pipeline: see `zeus_stream.pipeline`."""
        for name, value, least, most in (
            ("stages", stages, 1, MAX_STAGES),
            ("stage", stage, 0, stages - 1),
            ("micro_batches", micro_batches, 1, MAX_MICRO_BATCHES - 1),
            ("chunks", chunks, 1, MAX_CHUNKS),
            ("tensor_parallel", tensor_parallel, 1, MAX_STAGES),
            ("the length of schedule", len(schedule), 1, MAX_SCHEDULE),
        ):
            if not least <= value <= most:
                raise SettingsError(f"pipeline: could not begin: {name} is {value}. Give {least} to {most}.")
        self.micro_batches, self.chunks = micro_batches, chunks
        self._at = f"stage {stage} of {stages}, {micro_batches} micro-batches"
        self._put, self._watch = put, watch
        self._places = [path.with_name("position") for path in publish_candidates(environ)]
        self._socket: socket.socket | None = None
        """To the collector of this host, while there is one."""
        self._contexts: dict[tuple[str, int, int], InstructionContext] = {}
        self._seen: set[int] = set()
        self._spans: list[tuple[int, int, int]] = []
        """Of the iteration that the device runs: code, begin and end."""
        self._begun = 0, 0, 0
        """Iteration, code and begin of the instruction that the device runs."""
        self.iteration = 0
        """Number of the iteration under way, from 0."""
        self.unsent = 0
        """Positions that the collector did not take: a plan ends where one is missing."""
        put(
            (
                lambda t_ns: PipelineBegan(
                    t_ns=t_ns, stage=stage, stages=stages, micro_batches=micro_batches, chunks=chunks,
                    tensor_parallel=tensor_parallel, schedule=schedule,
                ),
                monotonic_ns(),
            )
        )  # fmt: skip
        self._connect()

    def __repr__(self) -> str:
        return f"<Pipeline {self._at}: iteration {self.iteration}>"

    def instruction(self, kind: str, micro_batch: int, chunk: int = 0) -> InstructionContext:
        """Return a context that is one instruction.

        An instruction that comes again begins the next iteration.

        Args:
            kind: ``forward``, ``backward``, ``weight`` (gradients of weights, where they are apart) or
                ``recompute``.
            micro_batch: from 0.
            chunk: model part of this stage, from 0.

        Raises:
            SettingsError: the pipeline has no such instruction.

        Example:
            >>> with pipe.instruction("forward", 3):
            ...     output = stage(inputs)
        """
        known = self._contexts.get((kind, micro_batch, chunk))
        return known if known is not None else self._add(kind, micro_batch, chunk)

    def close(self) -> None:
        """Hand over the iteration under way. Idempotent."""
        self._hand_over()
        self._watch.mark(self._disconnect, timed=False)

    def _add(self, kind: str, micro_batch: int, chunk: int) -> InstructionContext:
        fits = 0 <= micro_batch < self.micro_batches and 0 <= chunk < self.chunks
        if kind not in KINDS or not fits:
            raise SettingsError(
                f"instruction: could not begin {kind} {micro_batch} of chunk {chunk}: the pipeline has none."
                f" Give one of {', '.join(KINDS)}, a micro-batch below {self.micro_batches} and a chunk below"
                f" {self.chunks}."
            )
        if len(self._contexts) >= MAX_ROWS:
            raise SettingsError(
                f"instruction: could not begin: a stage has at most {MAX_ROWS} instructions in an iteration."
                " Use fewer micro-batches."
            )
        made = InstructionContext(self, encode_instruction(kind, micro_batch, chunk))
        self._contexts[kind, micro_batch, chunk] = made
        return made

    def _begin(self, code: int) -> bool:
        """Mark the begin of an instruction. False: it is captured, and does not run."""
        if code in self._seen:
            self._hand_over()
        first = not self._seen
        if first:
            self._watch.look()
        runs = self._watch.mark(partial(self._reach, self.iteration, code, connects=first))
        if runs:
            self._seen.add(code)
        return runs

    def _end(self) -> None:
        self._watch.mark(self._leave)

    def _hand_over(self) -> None:
        """End the iteration under way; its times are packed where they are sent."""
        if self._seen:
            self._seen.clear()
            self._watch.mark(partial(self._put_iteration, self.iteration, self._watch.by_device), timed=False)
            self.iteration += 1

    # ---- once the device has come so far

    def _reach(self, iteration: int, code: int, t_ns: int, *, connects: bool) -> None:
        self._begun = iteration, code, t_ns
        if connects and self._socket is None:
            self._connect()
        self._say(iteration, code, ends=False)

    def _leave(self, t_ns: int) -> None:
        iteration, code, begin_ns = self._begun
        self._spans.append((code, begin_ns, t_ns))
        self._say(iteration, code, ends=True)

    def _say(self, iteration: int, code: int, *, ends: bool) -> None:
        if self._socket is not None:
            try:
                self._socket.send(POSITION.pack(iteration, code, ends))
            except BlockingIOError:
                self.unsent += 1
            except OSError:  # the collector has ended; the next iteration looks for another
                self.unsent += 1
                self._disconnect()

    def _put_iteration(self, iteration: int, by_device: bool, _t_ns: int) -> None:  # noqa: FBT001  (of a partial)
        spans, self._spans = self._spans, []
        if spans:
            self._put((_ran, iteration, spans, by_device))

    def _connect(self) -> None:
        """Connect to the first collector that is there."""
        import socket  # noqa: PLC0415  (a script without a pipeline has none)

        for place in self._places:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            try:
                made.connect(str(place))
            except OSError:
                made.close()
            else:
                self._socket = made
                return

    def _disconnect(self, _t_ns: int = 0) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _ran(iteration: int, spans: Sequence[tuple[int, int, int]], by_device: bool) -> IterationRan:  # noqa: FBT001
    (_, t_ns, _), (_, _, ended_ns) = spans[0], spans[-1]
    rows = pack_rows(t_ns, spans)
    return IterationRan(t_ns=t_ns, ended_ns=ended_ns, iteration=iteration, rows=rows, by_device=by_device)
