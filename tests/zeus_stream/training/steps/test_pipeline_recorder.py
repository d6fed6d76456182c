import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.directories import short_directory
from tests.waiting import until
from tests.zeus_stream.training.steps.recorded_pipeline import RecordedPipeline
from tests.zeus_stream.training.steps.stepped_gpu import SteppedGpu
from zeus_stream.errors import SettingsError
from zeus_stream.protocol.pipelines import (
    POSITION,
    IterationRan,
    PipelineBegan,
    decode_instruction,
    encode_instruction,
    unpack_rows,
)
from zeus_stream.training.steps.event_watch import EventWatch
from zeus_stream.training.steps.pipeline_recorder import Pipeline


class Published:
    """What a pipeline hands over, and the positions that it sends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.queue: SteppedGpu | None = None
        self.said: list[str] = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.accepted: socket.socket | None = None

    def listen(self) -> None:
        self.socket.bind(str(self.directory / "position"))
        self.socket.listen()

    def close(self) -> None:
        self.socket.close()
        if self.accepted is not None:
            self.accepted.close()

    def pipeline(self, **arguments: Any) -> Pipeline:
        watch = EventWatch(lambda: self.queue, lambda _cause, sentence: self.said.append(sentence))
        self.recorded = RecordedPipeline(watch, self.directory, **arguments)
        return self.recorded.pipe

    def positions(self, *, ends: bool = False) -> list[tuple[int, tuple[str, int, int]]]:
        """Return the instructions that began since the last time, or that ended."""
        return [(iteration, decode_instruction(code)) for iteration, code, end in self.sent() if end == ends]

    def sent(self) -> list[tuple[int, int, bool]]:
        found: list[tuple[int, int, bool]] = []
        if self.accepted is None:
            self.accepted, _ = self.socket.accept()
            self.accepted.settimeout(0)
        while True:
            try:
                data = self.accepted.recv(64)
            except BlockingIOError:
                return found
            if not data:
                return found
            found.append(POSITION.unpack(data))


@pytest.fixture
def published() -> Iterator[Published]:
    with short_directory() as directory:
        made = Published(directory)
        yield made
        made.close()


def run(pipe: Pipeline, *order: tuple[str, int]) -> None:
    for kind, micro_batch in order:
        with pipe.instruction(kind, micro_batch):
            pass


ORDER = (("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1))


def test_positions_are_sent_and_instructions_stamped_when_the_gpu_reaches_them(published: Published) -> None:
    gpu = published.queue = SteppedGpu()
    published.listen()
    pipe = published.pipeline()
    for _ in range(2):
        run(pipe, *ORDER)
    assert published.positions() == [], "Python has dispatched two iterations, the GPU has begun none"
    assert len(gpu.marks) == 16
    found: list[Any] = []
    instants = gpu.reach(3)

    def take() -> bool:
        found.extend(published.sent())
        return len(found) == 3

    until(take)
    first, second = (encode_instruction("forward", each) for each in (0, 1))
    assert found == [(0, first, False), (0, first, True), (0, second, False)]
    instants += gpu.reach(13)
    pipe.close()
    until(lambda: len(published.recorded.entries) == 3)
    _, ran, later = published.recorded.events()
    assert [ran.iteration, later.iteration] == [0, 1]
    assert ran.by_device
    stamps = [stamp for _, *pair in unpack_rows(ran) for stamp in pair]
    assert len(stamps) == 8
    for stamp_ns, done_ns in zip(stamps, instants, strict=False):
        assert stamp_ns >= done_ns - 2_000, "never before the GPU was there (a stamp has 1 us)"
    assert stamps == sorted(stamps)
    assert published.said == []


def test_what_is_captured_into_a_graph_is_no_instruction(published: Published) -> None:
    gpu = published.queue = SteppedGpu()
    pipe = published.pipeline()
    run(pipe, *ORDER)
    gpu.captures = True
    run(pipe, *ORDER)
    gpu.captures = False
    run(pipe, *ORDER)
    gpu.reach(16)
    pipe.close()
    until(lambda: len(published.recorded.entries) == 3)
    assert len(gpu.marks) == 16


def test_a_gpu_that_fails_is_said_once_and_stamps_are_those_of_python_then(
    published: Published,
) -> None:
    gpu = published.queue = SteppedGpu()
    pipe = published.pipeline()
    run(pipe, *ORDER)
    gpu.reach(8)
    gpu.is_lost = True
    for _ in range(2):
        run(pipe, *ORDER)
    pipe.close()
    until(lambda: len(published.recorded.entries) == 4)
    assert [event.by_device for event in published.recorded.events()[1:]] == [True, False, False]
    [sentence] = set(published.said)  # the publisher says one of a cause
    assert "device lost" in sentence
    assert "ZEUS_STREAM_BOUNDARY=dispatch" in sentence


def test_an_instruction_that_comes_again_begins_the_next_iteration(published: Published) -> None:
    published.listen()
    pipe = published.pipeline(stage=1)
    run(pipe, *ORDER, *ORDER)
    pipe.close()
    began, first, second = published.recorded.events()
    assert isinstance(began, PipelineBegan)
    assert (began.stage, began.stages, began.micro_batches, began.schedule) == (1, 2, 2, "1f1b")
    for number, ran in enumerate((first, second)):
        assert isinstance(ran, IterationRan)
        assert ran.iteration == number
        rows = list(unpack_rows(ran))
        assert [decode_instruction(code)[:2] for code, _, _ in rows] == list(ORDER)
        assert ran.t_ns == rows[0][1]
        assert all(begin <= end <= ran.ended_ns + 1000 for _, begin, end in rows)
        assert all(one[2] <= two[1] + 1000 for one, two in pairwise(rows))
    assert published.positions() == [
        (iteration, (kind, micro_batch, 0)) for iteration in (0, 1) for kind, micro_batch in ORDER
    ]


def test_without_a_collector_instructions_run_and_one_that_comes_later_is_found(published: Published) -> None:
    pipe = published.pipeline()
    run(pipe, *ORDER)
    published.listen()
    run(pipe, *ORDER)
    pipe.close()
    assert [iteration for iteration, _ in published.positions()] == [1, 1, 1, 1]
    assert len(published.recorded.events()) == 3


def test_a_collector_that_does_not_read_makes_nobody_wait(published: Published) -> None:
    published.listen()
    pipe = published.pipeline()
    for _ in range(200):
        run(pipe, *ORDER)
    assert pipe.unsent > 0
    assert pipe.iteration == 199
    pipe.close()


def test_an_instruction_costs_the_training_thread_little(published: Published) -> None:
    """`benchmarks.cost.step_cost` measures it; here only an order of magnitude is sure on a busy machine."""
    published.listen()
    pipe = published.pipeline(micro_batches=64)
    least_ns = min(_cost_ns(pipe, published) for _ in range(30))
    pipe.close()
    assert least_ns < 50_000


def _cost_ns(pipe: Pipeline, published: Published) -> float:
    begin_ns = time.perf_counter_ns()
    run(pipe, *((kind, each) for kind in ("forward", "backward") for each in range(4)))
    cost_ns = (time.perf_counter_ns() - begin_ns) / 8
    published.positions()
    return cost_ns


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"stage": 2}, "stage is 2. Give 0 to 1."),
        ({"stages": 0}, "stages is 0. Give 1 to"),
        ({"micro_batches": 0}, "micro_batches is 0. Give 1 to"),
        ({"chunks": 1000}, "chunks is 1000. Give 1 to 256."),
        ({"schedule": ""}, "the length of schedule is 0. Give 1 to 64."),
    ],
)
def test_a_pipeline_that_cannot_be_is_refused(
    published: Published, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingsError, match="pipeline: could not begin: ") as wrong:
        published.pipeline(**arguments)
    assert sentence in str(wrong.value)


@pytest.mark.parametrize("instruction", [("sideways", 0, 0), ("forward", 2, 0), ("forward", 0, 1)])
def test_an_instruction_that_the_pipeline_does_not_have_is_refused(
    published: Published, instruction: tuple[str, int, int]
) -> None:
    pipe = published.pipeline()
    with pytest.raises(SettingsError, match=r"the pipeline has none\. Give one of forward, backward, weight"):
        pipe.instruction(*instruction)
    pipe.close()


def test_codes_name_their_instruction() -> None:
    for instruction in (("forward", 0, 0), ("backward", 1000, 3), ("weight", 7, 255), ("recompute", 1, 1)):
        assert decode_instruction(encode_instruction(*instruction)) == instruction
