"""Objects of state classes to bytes and back, with every reference between them. Pure.

MessagePack ``[version, shapes, objects]``: the version of `state_classes`, the class and attributes of each
shape of object, then the objects. A scalar is itself; anything else is ``[tag, ...]``, and a second reference
to an object is the number of the first. No code is in it: a reader makes objects of `state_classes`, of
containers and of arrays, and of nothing else.
"""

import io
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from functools import cache
from typing import Any

import msgpack
import numpy as np
from msgspec import Struct

from analyzers.checkpoints.state_classes import UnregisteredError, class_of, name_of, version
from zeus_stream.errors import MalformedError

_DAMAGE = (ArithmeticError, AttributeError, ImportError, LookupError, RecursionError, TypeError, ValueError)
_SCALARS = frozenset((type(None), bool, int, float, str, bytes))
_VALUES = (tuple, frozenset, Struct, Enum)
"""Complete only with their parts, so they are numbered after them."""


class Tag(IntEnum):
    """The kinds of nodes."""

    AGAIN = 0
    OUTSIDE = 1
    """An object that the reader has already, by its name."""
    SPECIAL = 2
    """An object that is made again from a text."""
    ARRAY = 3
    VALUE = 4
    SEQUENCE = 5
    MAPPING = 6
    OBJECT = 7


class UnknownObjectError(TypeError):
    """An object that cannot be encoded: a function, or an instance of a class of another package."""


def encode(
    roots: Sequence[Any],
    outside: Mapping[int, str] | None = None,
    special: Mapping[type, Callable[[Any], str]] | None = None,
) -> bytes:
    """Return objects as bytes, with all that they refer to. Raises UnknownObjectError.

    ``outside``: by `id`, the names of objects that the reader has already. ``special``: by class, a function
    that returns the text from which the reader makes an instance again.
    """
    writer = _Writer(outside or {}, special or {})
    try:
        nodes = [writer.node(root) for root in roots]
        shapes = [[*name_of(kind), names] for kind, names in writer.shapes]
        packed: bytes = msgpack.packb([version(), shapes, nodes])
    except OverflowError as wrong:
        raise UnknownObjectError("a number has more than 64 bits") from wrong
    except UnregisteredError as wrong:
        raise UnknownObjectError(str(wrong)) from wrong
    return packed


def decode(
    data: bytes,
    outside: Mapping[str, Any] | None = None,
    special: Mapping[str, Callable[[str], Any]] | None = None,
) -> list[Any]:
    """Return the objects that `encode` was given. Raises MalformedError: other classes, or damage.

    ``outside``: by name, objects that are here already. ``special``: by class name, makes one from its text.
    """
    try:
        classes, shapes, nodes = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as wrong:
        raise MalformedError("state: could not be read: it is damaged.") from wrong
    if classes != version():
        raise MalformedError("state: could not be read: its classes consist of other parts by now.")
    try:
        reader = _ObjectReader(shapes, outside or {}, special or {})
        return [reader.object_of(node) for node in nodes]
    except _DAMAGE as wrong:
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


class _Writer:
    def __init__(self, outside: Mapping[int, str], special: Mapping[type, Callable[[Any], str]]) -> None:
        self.shapes: dict[tuple[type, tuple[str, ...]], int] = {}
        self._outside = outside
        self._special = special
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        """Objects with a number: none may be freed, or another would have its `id`."""
        self._memories: set[int] = set()
        """The memory of arrays: two of one memory would be apart when they are read."""

    def node(self, value: Any) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value
        if (name := self._outside.get(id(value))) is not None:
            return [Tag.OUTSIDE, name]
        if (number := self._numbers.get(id(value))) is not None:
            if number < 0:
                raise UnknownObjectError(f"a tuple or set of {kind.__name__} contains itself")
            return [Tag.AGAIN, number]
        if issubclass(kind, _VALUES) and kind not in self._special:
            self._numbers[id(value)] = -1
            node = [Tag.VALUE, *self._value(value, kind)]
            self._number(value)
            return node
        self._number(value)
        return self._object(value, kind)

    def _number(self, value: Any) -> None:
        self._numbers[id(value)] = len(self._kept)
        self._kept.append(value)

    def _parts(self, parts: Iterable[Any]) -> list[Any]:
        return [part if type(part) in _SCALARS else self.node(part) for part in parts]

    def _value(self, value: Any, kind: type) -> tuple[int, list[Any]]:
        if isinstance(value, Struct):
            names = value.__struct_fields__
            return self._shape(kind, names), self._parts([getattr(value, name) for name in names])
        return self._shape(kind), [value.value] if isinstance(value, Enum) else self._parts(value)

    def _object(self, value: Any, kind: type) -> list[Any]:
        if kind in self._special:
            return [Tag.SPECIAL, kind.__name__, self._special[kind](value)]
        if isinstance(value, np.ndarray | np.generic):
            return [Tag.ARRAY, self._array(value)]
        if isinstance(value, list | set | deque):
            most = value.maxlen if isinstance(value, deque) else None
            return [Tag.SEQUENCE, self._shape(kind), most, self._parts(value)]
        if isinstance(value, dict):
            make = self._shape(value.default_factory) if isinstance(value, defaultdict) else None
            pairs = self._parts(part for pair in value.items() for part in pair)
            return [Tag.MAPPING, self._shape(kind), make, pairs]
        found = attributes(value)
        return [Tag.OBJECT, self._shape(kind, tuple(found)), self._parts(found.values())]

    def _shape(self, kind: Any, names: tuple[str, ...] = ()) -> int:
        name_of(kind)
        return self.shapes.setdefault((kind, names), len(self.shapes))

    def _array(self, value: np.ndarray[Any, Any] | np.generic) -> bytes:
        memory = id(value.base if isinstance(value.base, np.ndarray) else value)
        if memory in self._memories:
            raise UnknownObjectError("an array and a view of it cannot both be encoded")
        self._memories.add(memory)
        content = io.BytesIO()
        try:
            np.save(content, value, allow_pickle=False)
        except ValueError as wrong:
            raise UnknownObjectError("an array of objects cannot be encoded") from wrong
        return content.getvalue()


class _ObjectReader:
    def __init__(
        self,
        shapes: Iterable[tuple[str, str, list[str]]],
        outside: Mapping[str, Any],
        special: Mapping[str, Callable[[str], Any]],
    ) -> None:
        self._shapes = [(class_of(module, name), names) for module, name, names in shapes]
        self._outside = outside
        self._special = special
        self._numbered: list[Any] = []

    def object_of(self, node: Any) -> Any:
        if type(node) is not list:
            return node
        match node:
            case [Tag.AGAIN, number]:
                return self._numbered[number]
            case [Tag.OUTSIDE, name]:
                return self._outside[name]
            case [Tag.SPECIAL, name, text]:
                return self._keep(self._special[name](text))
            case [Tag.ARRAY, content]:
                array = np.load(io.BytesIO(content), allow_pickle=False)
                return self._keep(array if array.ndim else array[()])
            case [Tag.VALUE, shape, parts]:
                return self._keep(self._value(*self._shapes[shape], self._parts(parts)))
            case [Tag.SEQUENCE, shape, most, parts]:
                kind, _ = self._shapes[shape]
                made = self._keep(kind() if most is None else kind(maxlen=most))
                (made.update if kind is set else made.extend)(self._parts(parts))
                return made
            case [Tag.MAPPING, shape, make, pairs]:
                kind, _ = self._shapes[shape]
                made = self._keep(kind() if make is None else kind(self._shapes[make][0]))
                parts = self._parts(pairs)
                dict.update(made, zip(parts[::2], parts[1::2], strict=True))  # a Counter's own one counts
                return made
            case [Tag.OBJECT, shape, parts]:
                kind, names = self._shapes[shape]
                made = self._keep(object.__new__(kind))
                for name, part in zip(names, self._parts(parts), strict=True):
                    object.__setattr__(made, name, part)
                return made
            case _:
                raise ValueError(f"no kind of node: {str(node)[:80]}")

    def _parts(self, parts: Iterable[Any]) -> list[Any]:
        return [self.object_of(part) if type(part) is list else part for part in parts]

    def _value(self, kind: Any, names: Sequence[str], parts: Sequence[Any]) -> Any:
        if issubclass(kind, Struct):
            return kind(**dict(zip(names, parts, strict=True)))
        if kind in (tuple, frozenset):
            return kind(parts)
        if not issubclass(kind, _VALUES):
            raise TypeError(f"a {kind.__name__} is no value")
        return kind(*parts)

    def _keep(self, made: Any) -> Any:
        self._numbered.append(made)
        return made
