"""Objects of state classes to bytes and back, with every reference between them. Pure.

The version of `state_classes`, then a pickle of restricted content: a writer takes objects of state classes,
containers and arrays, and a reader finds no other name. No code is in it, and none runs but constructors.
"""

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
from msgspec import Struct

from analyzers.checkpoints.state_classes import class_of, name_of, version
from zeus_stream.errors import MalformedError

_REFUSED = (
    ArithmeticError, AttributeError, EOFError, ImportError, LookupError, MemoryError, RecursionError,
    TypeError, ValueError, pickle.PickleError,
)  # fmt: skip
"""Errors of what cannot be written, and of damage."""


class UnknownObjectError(TypeError):
    """An object that cannot be encoded: a function, or an instance of a class of another package."""


def encode(
    roots: Sequence[Any],
    outside: Mapping[int, str] | None = None,
    special: Mapping[type, Callable[[Any], str]] | None = None,
) -> bytes:
    """Return objects as bytes, with all that they refer to. Raises UnknownObjectError.

    ``outside``: by `id`, the names of objects of our classes that the reader has already. ``special``: by
    class, a function that returns the text from which the reader makes an instance again.
    """
    content = io.BytesIO()
    try:
        _StatePickler(content, outside or {}, special or {}).dump(list(roots))
    except _REFUSED as wrong:
        raise UnknownObjectError(str(wrong)) from wrong
    return version().encode() + content.getvalue()


def decode(
    data: bytes,
    outside: Mapping[str, Any] | None = None,
    special: Mapping[str, Callable[[str], Any]] | None = None,
) -> list[Any]:
    """Return the objects that `encode` was given. Raises MalformedError: other classes, or damage.

    ``outside``: by name, objects that are here already. ``special``: by class name, makes one from its text.
    """
    head = version().encode()
    if not data.startswith(head):
        raise MalformedError(
            "state: could not be read: it is damaged, or its classes consist of other parts by now."
        )
    try:
        roots: list[Any] = _StateUnpickler(io.BytesIO(data[len(head) :]), outside or {}, special or {}).load()
        return list(roots)
    except _REFUSED as wrong:
        raise MalformedError(f"state: could not be read: {wrong}.") from wrong


def attributes(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object that are set."""
    found = {name: getattr(thing, name) for name in _slots(thing.__class__) if hasattr(thing, name)}
    found.update(getattr(thing, "__dict__", ()))
    return found


@cache
def _slots(kind: type) -> tuple[str, ...]:
    slots = (slot for base in reversed(kind.__mro__) for slot in base.__dict__.get("__slots__", ()))
    return tuple(slot for slot in slots if slot not in ("__dict__", "__weakref__"))


# ---- what stands for an object in the bytes


def _outside(name: str) -> Any:
    """Stand for an object that the reader has already."""
    raise NotImplementedError(name)


def _special(kind: str, text: str) -> Any:
    """Stand for an object that is made again from a text."""
    raise NotImplementedError(kind, text)


def _record(kind: Any, values: Sequence[Any]) -> Any:
    """Return a struct of these values of its fields."""
    return kind(**dict(zip(kind.__struct_fields__, values, strict=True)))


def _array(content: bytes) -> Any:
    """Return the array, or the number of NumPy, that `numpy.save` wrote."""
    made = np.load(io.BytesIO(content), allow_pickle=False)
    return made if made.ndim else made[()]


class _StatePickler(pickle.Pickler):
    def __init__(
        self, content: io.BytesIO, outside: Mapping[int, str], special: Mapping[type, Callable[[Any], str]]
    ) -> None:
        super().__init__(content, protocol=5)
        self._outside = outside
        self._special = special
        self._memories: set[int] = set()
        """The memory of arrays: two of one memory would be apart when they are read."""

    def reducer_override(self, value: Any) -> Any:
        """Return how an object that is no plain number, text or container is written."""
        if isinstance(value, FunctionType) and value.__module__ == __name__:
            return NotImplemented  # one of those that stand for an object
        if (name := self._outside.get(id(value))) is not None:
            return _outside, (name,)
        kind = type(value)
        if kind in self._special:
            return _special, (kind.__name__, self._special[kind](value))
        if isinstance(value, np.ndarray | np.generic):
            return _array, (self._saved(value),)
        name_of(value if isinstance(value, type) else kind)
        if isinstance(value, Struct):
            return _record, (kind, [getattr(value, name) for name in kind.__struct_fields__])
        if isinstance(value, Enum):
            return kind, (value.value,)  # by itself it names `getattr` in Python 3.11.0 to 3.11.3
        return NotImplemented

    def _saved(self, value: np.ndarray[Any, Any] | np.generic) -> bytes:
        memory = id(value.base if isinstance(value.base, np.ndarray) else value)
        if memory in self._memories:
            raise UnknownObjectError("an array and a view of it cannot both be encoded")
        self._memories.add(memory)
        content = io.BytesIO()
        np.save(content, value, allow_pickle=False)
        return content.getvalue()


class _StateUnpickler(pickle.Unpickler):
    def __init__(
        self, content: io.BytesIO, known: Mapping[str, Any], made: Mapping[str, Callable[[str], Any]]
    ) -> None:
        super().__init__(content)
        self._stand_ins: Mapping[str, Callable[..., Any]] = {
            "_outside": lambda name: known[name],
            "_special": lambda kind, text: made[kind](text),
            "_record": _record,
            "_array": _array,
        }

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name of the bytes stands for. Raises UnregisteredError."""
        if module == __name__:
            return self._stand_ins[name]
        return class_of(module, name)
