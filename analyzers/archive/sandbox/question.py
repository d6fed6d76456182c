"""A query from outside, what answers it, and the parts of its answer in a pipe. Pure."""

import struct
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

HEAD = struct.Struct("<cI")
"""Kind and length of a part of the answer."""
DATA, DONE, REFUSED = b"D", b"E", b"R"


class Question(Struct, frozen=True):
    """A query from outside, and what its answer may take."""

    sql: str
    rows: int
    seconds: float
    memory_mb: int
    answer_bytes: int
    jobs: tuple[str, ...] = ()
    """Patterns of the jobs that it may be about; none: everything."""


class Answering(Protocol):
    """Data that can be asked."""

    def query(self, question: Question, out: int) -> Callable[[], None]:
        """Have a query answered into a pipe; return what ends it."""


def out_of_memory(question: Question) -> str:
    return (
        f"query: could not be answered: Out of Memory: it needs more than memory_mb = {question.memory_mb}."
        " Ask for less, or raise memory_mb of the analyzer."
    )
