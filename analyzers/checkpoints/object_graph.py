"""Objects of state classes to bytes and back, with every reference between them. Pure.

MessagePack ``[VERSION, version, shapes, objects]``: `state_classes.version` of the writer, the class and
attributes of each shape of object, then the objects. A scalar is itself; anything else is ``[tag, ...]``, and
a second reference to an object is the number of the first. No code is in it: a reader makes objects of
`state_classes`, and of no other class, and sets their attributes.
"""

import types
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from functools import cache
from typing import Any

import msgpack
import numpy as np
from msgspec import Struct

from analyzers.checkpoints.state_classes import UnregisteredError, class_of, name_of, version
from zeus_stream.errors import MalformedError

VERSION = 1
"""Of this encoding."""
FACTORIES: Mapping[str, Callable[[], Any]] = {"dict": dict, "list": list, "set": set, "int": int}
"""Of `defaultdict`, beside state classes."""
_DAMAGE = (ArithmeticError, AttributeError, ImportError, LookupError, RecursionError, TypeError, ValueError)
_SCALARS = frozenset((type(None), bool, int, float, str, bytes))


class Tag(IntEnum):
    """The kinds of nodes."""

    AGAIN = 0
    LIST = 1
    PLAIN_LIST = 2
    """Of scalars."""
    TUPLE = 3
    PLAIN_TUPLE = 4
    DICT = 5
    DEFAULT_DICT = 6
    COUNTER = 7
    DEQUE = 8
    SET = 9
    FROZEN_SET = 10
    ARRAY = 11
    NUMBER = 12
    """Of numpy."""
    OBJECT = 13
    STRUCT = 14
    ENUM = 15
    OUTSIDE = 16
    """An object that the reader has already, by its name."""
    SPECIAL = 17
    """An object that is made again from a text."""


class UnknownObjectError(TypeError):
    """An object that cannot be encoded: a function, or an instance of a class of another package."""


def encode(
    roots: Sequence[Any],
    outside: Mapping[int, str] | None = None,
    special: Mapping[type, Callable[[Any], str]] | None = None,
) -> bytes:
    """Return objects as bytes, with all that they refer to.

    Args:
        roots: the objects.
        outside: by `id`, the names of objects that the reader has already.
        special: by class, a function that returns the text from which the reader makes an instance again.

    Raises:
        UnknownObjectError: they refer to something that cannot be encoded.
    """
    writer = _Writer(outside or {}, special or {})
    nodes = [writer.node(root) for root in roots]
    writer.check_views()
    shapes = [[*name_of(kind), list(names)] for kind, names in writer.shapes]
    try:
        packed: bytes = msgpack.packb([VERSION, version(), shapes, nodes])
    except OverflowError as wrong:
        raise UnknownObjectError("a number has more than 64 bits") from wrong
    return packed


def decode(
    data: bytes,
    outside: Mapping[str, Any] | None = None,
    special: Mapping[str, Callable[[str], Any]] | None = None,
) -> list[Any]:
    """Return the objects that `encode` was given.

    Args:
        data: of `encode`.
        outside: by name, objects that are here already.
        special: by the name of a class, a function that makes an instance from its text.

    Raises:
        MalformedError: a class in them has changed or is no state class, or they are damaged.
    """
    try:
        form, classes, shapes, nodes = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as wrong:
        raise MalformedError("state: could not be read: it is damaged.") from wrong
    if (form, classes) != (VERSION, version()):
        raise MalformedError("state: could not be read: its classes consist of other parts by now.")
    try:
        reader = _Reader(shapes, outside or {}, special or {})
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
    if issubclass(kind, Struct):
        return kind.__struct_fields__
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
        self._views: list[int] = []

    def node(self, value: Any) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value
        key = id(value)
        if (name := self._outside.get(key)) is not None:
            return [Tag.OUTSIDE, name]
        if (number := self._numbers.get(key)) is not None:
            if number < 0:
                raise UnknownObjectError(f"a tuple or set of {kind.__name__} contains itself")
            return [Tag.AGAIN, number]
        if kind not in self._special and (kind in (tuple, frozenset) or issubclass(kind, tuple | Struct)):
            return self._value(value, kind)
        self._number(value)
        if issubclass(kind, np.ndarray):
            return self._array(value)
        if kind in self._special:
            return [Tag.SPECIAL, kind.__name__, self._special[kind](value)]
        return self._container(value, kind)

    def _number(self, value: Any) -> None:
        self._numbers[id(value)] = len(self._kept)
        self._kept.append(value)

    def _value(self, value: Any, kind: type) -> list[Any]:
        """Return the node of an object that is complete only with its parts: it is numbered after them."""
        if kind is tuple and _SCALARS.issuperset(map(type, value)):
            self._number(value)
            return [Tag.PLAIN_TUPLE, list(value)]
        self._numbers[id(value)] = -1
        of: Iterable[Any] = attributes(value).values() if isinstance(value, Struct) else value
        parts = [self.node(part) for part in of]
        self._number(value)
        if kind is tuple:
            return [Tag.TUPLE, parts]
        if kind is frozenset:
            return [Tag.FROZEN_SET, parts]
        names = value.__struct_fields__ if isinstance(value, Struct) else value._fields
        return [Tag.STRUCT, self._shape(kind, names), parts]

    def _container(self, value: Any, kind: type) -> list[Any]:
        if kind is list:
            plain = _SCALARS.issuperset(map(type, value))
            return [Tag.PLAIN_LIST, list(value)] if plain else [Tag.LIST, [self.node(part) for part in value]]
        if kind is dict:
            return [Tag.DICT, self._pairs(value)]
        if kind is defaultdict:
            return [Tag.DEFAULT_DICT, self._factory(value.default_factory), self._pairs(value)]
        if kind is Counter:
            return [Tag.COUNTER, self._pairs(value)]
        if kind is deque:
            return [Tag.DEQUE, value.maxlen, [self.node(part) for part in value]]
        if kind is set:
            return [Tag.SET, [self.node(part) for part in value]]
        if issubclass(kind, np.generic):
            return [Tag.NUMBER, value.dtype.str, value.tobytes()]
        if issubclass(kind, Enum):
            return [Tag.ENUM, self._shape(kind, ()), value.value]
        if isinstance(value, types.FunctionType | types.MethodType | type):
            raise UnknownObjectError(f"{value!r} cannot be encoded")
        found = attributes(value)
        return [
            Tag.OBJECT, self._shape(kind, tuple(found)), [self.node(part) for part in found.values()]
        ]  # fmt: skip

    def _pairs(self, value: Mapping[Any, Any]) -> list[Any]:
        if _SCALARS.issuperset(map(type, value)) and _SCALARS.issuperset(map(type, value.values())):
            return [part for pair in value.items() for part in pair]
        return [self.node(part) for pair in value.items() for part in pair]

    def _factory(self, factory: Any) -> Any:
        if (name := next((name for name, each in FACTORIES.items() if each is factory), None)) is not None:
            return name
        if isinstance(factory, type):
            return self._shape(factory, ())
        raise UnknownObjectError(f"the factory {factory!r} of a defaultdict cannot be encoded")

    def _shape(self, kind: type, names: tuple[str, ...]) -> int:
        try:
            name_of(kind)
        except UnregisteredError as wrong:
            raise UnknownObjectError(str(wrong)) from wrong
        return self.shapes.setdefault((kind, names), len(self.shapes))

    def _array(self, value: np.ndarray[Any, Any]) -> list[Any]:
        if value.dtype.hasobject:
            raise UnknownObjectError("an array of objects cannot be encoded")
        if isinstance(value.base, np.ndarray):
            self._views.append(id(value.base))
        dtype = value.dtype.str if value.dtype.names is None else [list(each) for each in value.dtype.descr]
        return [Tag.ARRAY, dtype, list(value.shape), np.ascontiguousarray(value).tobytes()]

    def check_views(self) -> None:
        """Refuse two arrays of one memory: they would be apart when they are read."""
        if any(base in self._numbers for base in self._views):
            raise UnknownObjectError("an array and a view of it cannot both be encoded")


class _Reader:
    def __init__(
        self,
        shapes: Iterable[tuple[str, str, list[str]]],
        outside: Mapping[str, Any],
        special: Mapping[str, Callable[[str], Any]],
    ) -> None:
        self._shapes = [(class_of(module, name), tuple(names)) for module, name, names in shapes]
        self._outside = outside
        self._special = special
        self._numbered: list[Any] = []

    def object_of(self, node: Any) -> Any:
        """Return the object of a node."""
        if type(node) is not list:
            return node
        match node:
            case [Tag.AGAIN, number]:
                return self._numbered[number]
            case [Tag.OUTSIDE, name]:
                return self._outside[name]
            case [Tag.OBJECT, shape, parts]:
                return self._instance(shape, parts)
            case [Tag.DICT | Tag.COUNTER as tag, pairs]:
                return self._filled({} if tag == Tag.DICT else Counter(), pairs)
            case [Tag.DEFAULT_DICT, factory, pairs]:
                make = FACTORIES[factory] if isinstance(factory, str) else self._shapes[factory][0]
                return self._filled(defaultdict(make), pairs)
            case [Tag.PLAIN_LIST | Tag.PLAIN_TUPLE as tag, parts]:
                return self._keep(parts if tag == Tag.PLAIN_LIST else tuple(parts))
            case [Tag.ARRAY, dtype, shape, content]:
                kind = np.dtype(dtype if isinstance(dtype, str) else [tuple(each) for each in dtype])
                return self._keep(np.frombuffer(content, kind).reshape(shape).copy())
            case [Tag.NUMBER, dtype, content]:
                return self._keep(np.frombuffer(content, dtype)[0])
            case [Tag.SPECIAL, name, text]:
                return self._keep(self._special[name](text))
            case [Tag.ENUM, shape, value]:
                return self._keep(self._shapes[shape][0](value))
            case _:
                return self._collection(node)

    def _collection(self, node: Any) -> Any:
        match node:
            case [Tag.LIST, parts]:
                made: Any = self._keep([])
                made += [self.object_of(part) for part in parts]
                return made
            case [Tag.DEQUE, most, parts]:
                made = self._keep(deque(maxlen=most))
                made.extend(self.object_of(part) for part in parts)
                return made
            case [Tag.SET, parts]:
                made = self._keep(set())
                made.update(self.object_of(part) for part in parts)
                return made
            case [Tag.TUPLE, parts]:
                return self._keep(tuple([self.object_of(part) for part in parts]))
            case [Tag.FROZEN_SET, parts]:
                return self._keep(frozenset([self.object_of(part) for part in parts]))
            case [Tag.STRUCT, shape, parts]:
                kind, names = self._shapes[shape]
                values = [self.object_of(part) for part in parts]
                return self._keep(kind(**dict(zip(names, values, strict=True))))
            case _:
                raise ValueError(f"no kind of node: {str(node)[:80]}")

    def _keep(self, made: Any) -> Any:
        self._numbered.append(made)
        return made

    def _filled(self, made: Any, pairs: Sequence[Any]) -> Any:
        self._numbered.append(made)
        parts = iter(pairs)
        for key in parts:
            name = self.object_of(key)
            made[name] = self.object_of(next(parts))
        return made

    def _instance(self, shape: int, parts: Sequence[Any]) -> Any:
        kind, names = self._shapes[shape]
        made: Any = object.__new__(kind)
        self._numbered.append(made)
        for name, part in zip(names, parts, strict=True):
            object.__setattr__(made, name, self.object_of(part))
        return made
