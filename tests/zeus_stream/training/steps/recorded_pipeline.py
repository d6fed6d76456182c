"""A pipeline that keeps what it hands over, in place of a publisher that sends it."""

from pathlib import Path
from typing import Any

from zeus_stream.protocol.pipelines import IterationRan, decode_instruction, unpack_rows
from zeus_stream.training.steps.event_watch import EventWatch
from zeus_stream.training.steps.pipeline_recorder import Pipeline


def never(*_: Any) -> Any:
    """Fail: a pipeline asks for no energy."""
    raise AssertionError


class RecordedPipeline:
    """A pipeline, and its events."""

    def __init__(
        self, watch: EventWatch | None = None, directory: Path = Path("/nowhere"), **arguments: Any
    ) -> None:
        """``directory``: of the collector's sockets; ``arguments``: of `Pipeline`."""
        self.entries: list[Any] = []
        given = {"stage": 0, "stages": 2, "micro_batches": 2, **arguments}
        watch = watch or EventWatch(lambda: None, never)
        self.pipe = Pipeline(self.entries.append, watch, environ={"ZEUS_STREAM_DIR": str(directory)}, **given)

    def events(self) -> list[Any]:
        """Return the events as the sender makes them."""
        return [make(*fields) for make, *fields in self.entries]

    def iterations(self) -> list[list[tuple[str, int, int]]]:
        """End the pipeline, and return kind, micro-batch and chunk of what each iteration ran."""
        self.pipe.close()
        return [
            [decode_instruction(code) for code, _, _ in unpack_rows(event)]
            for event in self.events()
            if isinstance(event, IterationRan)
        ]
