import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.directories import short_directory
from zeus_stream.errors import SettingsError
from zeus_stream.protocol.pipelines import (
    POSITION,
    IterationRan,
    PipelineBegan,
    decode_instruction,
    encode_instruction,
    unpack_rows,
)
from zeus_stream.training.hooks import WindowHooks
from zeus_stream.training.steps.pipeline_recorder import Pipeline


class Published:
    """What a pipeline hands over, and the positions that it sends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.entries: list[Any] = []
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
        def never(*_: Any) -> Any:
            raise AssertionError("a pipeline asks for no energy")

        hooks = WindowHooks(
            numbers=iter(range(9)), put=self.entries.append, warn=never, energy=never, later=never
        )
        settings = {"stage": 0, "stages": 2, "micro_batches": 2, **arguments}
        return Pipeline(hooks, environ={"ZEUS_STREAM_DIR": str(self.directory)}, **settings)

    def events(self) -> list[Any]:
        """Return the events as the courier makes them."""
        return [make(*fields) for make, *fields in self.entries]

    def positions(self) -> list[tuple[int, tuple[str, int, int]]]:
        found: list[tuple[int, tuple[str, int, int]]] = []
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
            iteration, code = POSITION.unpack(data)
            found.append((iteration, decode_instruction(code)))


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


def test_an_instruction_that_comes_again_begins_the_next_iteration(published: Published) -> None:
    published.listen()
    pipe = published.pipeline(stage=1)
    run(pipe, *ORDER, *ORDER)
    pipe.close()
    began, first, second = published.events()
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
    assert len(published.events()) == 3


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
        ({"stage": 2}, "stage 2 of 2. Number stages from 0 to 1."),
        ({"stages": 0}, "0 stages. Give 1 to"),
        ({"micro_batches": 0}, "0 micro-batches. Give 1 or more."),
        ({"chunks": 1000}, "1000 chunks. Give 1 to 256."),
        ({"schedule": "dualpipe"}, "'dualpipe' is no schedule. Choose one of 1f1b"),
        ({"schedule": [("forwards", 0)]}, "('forwards', 0) is no instruction"),
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


def test_a_given_order_is_a_schedule_of_its_own(published: Published) -> None:
    pipe = published.pipeline(schedule=list(ORDER))
    pipe.close()
    assert published.events()[0].schedule == "given"


def test_codes_name_their_instruction() -> None:
    for instruction in (("forward", 0, 0), ("backward", 1000, 3), ("weight", 7, 255), ("recompute", 1, 1)):
        assert decode_instruction(encode_instruction(*instruction)) == instruction
