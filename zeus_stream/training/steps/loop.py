"""An iterable whose loop is recorded."""

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Loop(Generic[T]):
    """An iterable each of whose turns is recorded, as a step or an epoch. It has the iterable's length.

    Example:
        >>> len(zeus_stream.steps(range(3)))
        3
    """

    def __init__(self, iterable: Iterable[T], turns: Callable[[Iterable[T]], Iterator[T]]) -> None:
        self._iterable = iterable
        self._turns = turns

    def __len__(self) -> int:
        return len(cast("Sized", self._iterable))

    def __iter__(self) -> Iterator[T]:
        return self._turns(self._iterable)

    def __repr__(self) -> str:
        return f"Loop({self._iterable!r})"
