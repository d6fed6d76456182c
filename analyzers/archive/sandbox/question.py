"""A query from outside, and what answers it. Pure."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct


class Question(Struct, frozen=True):
    """A query from outside, and what its answer may take."""

    sql: str
    rows: int
    seconds: float
    memory_mb: int
    answer_bytes: int


class Answering(Protocol):
    """Data that can be asked."""

    def start_query(self, question: Question, out: int) -> Callable[[], None]:
        """Have a query answered into a pipe; return what ends it."""
