"""Messages to bytes and back. Knows bytes, not sockets.

A message is MessagePack ``[VERSION, kind, {field: value}]``; one inside another is ``[kind, {...}]``.
Bytes from outside become a message of this package with every field of its type and within its bounds,
or `MalformedError`. Unknown fields are ignored, so that a newer sender is understood; an unknown kind
inside a batch becomes `Unknown`.
"""

import math
import types
from collections.abc import Callable, Sequence
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgpack
from msgspec import Struct
from msgspec.structs import fields

from zeus_stream.errors import MalformedError
from zeus_stream.protocol.fields import VERSION, Unknown, Within
from zeus_stream.protocol.old_kinds import modernize

if TYPE_CHECKING:
    from zeus_stream.protocol.frames import Frame

MAX_BYTES = 4 * 1024 * 1024
"""Largest message part on any socket."""

_UNPACK_BOUNDS = {
    "max_str_len": 200_000,
    "max_bin_len": MAX_BYTES,
    "max_array_len": 10_000,
    "max_map_len": 64,
    "max_ext_len": 0,
}

M = TypeVar("M")
N = TypeVar("N")
P = TypeVar("P")

Check = Callable[[Any], Any]
"""Takes what MessagePack decoded, returns the value, or raises ValueError saying what was expected."""


def encode(message: Any) -> bytes:
    """Return a message as bytes."""
    kind, content = _plain(message)
    packed: bytes = msgpack.packb([VERSION, kind, content])
    return packed


@overload
def decode(data: bytes | memoryview, expected: type[M], /) -> M: ...
@overload
def decode(data: bytes | memoryview, first: type[M], second: type[N], /) -> M | N: ...
@overload
def decode(data: bytes | memoryview, first: type[M], second: type[N], third: type[P], /) -> M | N | P: ...
@overload
def decode(data: bytes | memoryview, /, *expected: type) -> Any: ...
def decode(data: bytes | memoryview, /, *expected: type) -> Any:
    """Return the message in ``data``, one of the ``expected`` kinds.

    Raises:
        MalformedError: not MessagePack, another version, another kind, or a field out of its bounds.
    """
    outer = _unpack(data)
    match outer:
        case [int(version), str(kind), dict(content)]:
            pass
        case _:
            raise MalformedError("message: could not be read: it is not [version, kind, fields].")
    if version != VERSION:
        raise MalformedError(
            f"message: could not be read: schema version {version}, this process speaks {VERSION}."
            " Run the same version of zeus-stream on both sides."
        )
    for cls in expected:
        if cls.__name__ == kind:
            return _build(cls, content, f"message {kind}")
    names = ", ".join(cls.__name__ for cls in expected)
    raise MalformedError(f"message: could not be read: kind {kind[:40]!r}, expected {names}.")


def encode_records(records: Sequence[Any]) -> bytes:
    """Return many messages as bytes."""
    packed: bytes = msgpack.packb([VERSION, [_plain(record) for record in records]])
    return packed


def decode_records(data: bytes | memoryview, expected: Sequence[type[M]]) -> tuple[M | Unknown, ...]:
    """Return the messages of `encode_records`; those of other kinds are `Unknown`. Raises MalformedError."""
    match _unpack(data):
        case [int(version), list(records)] if version == VERSION:
            pass
        case _:
            raise MalformedError(f"records: could not be read: they are not [{VERSION}, records].")
    check = _either((*expected, Unknown))
    try:
        return tuple(check(record) for record in records)
    except ValueError as wrong:
        raise MalformedError(f"records: could not be read: {wrong}.") from wrong


def encode_frame(frame: "Frame") -> tuple[bytes, bytes, bytes]:
    """Return a frame's message parts: topic (what subscribers match), envelope, body as it is."""
    envelope: bytes = msgpack.packb([frame.log_id, frame.offset, frame.host, frame.t_ns])
    return frame.topic.encode(), envelope, frame.body


def decode_frame(topic: bytes, envelope: bytes, body: bytes) -> "Frame":
    """Return the frame in three message parts. Raises MalformedError."""
    from zeus_stream.protocol.frames import Frame  # noqa: PLC0415  (a training script has none: 30 ms less)

    outer = _unpack(envelope)
    if not isinstance(outer, list) or len(outer) != 4:
        raise MalformedError("frame: could not be read: its envelope is not [log, offset, host, time].")
    log_id, offset, host, t_ns = outer
    words = topic.decode(errors="replace")
    # In the order of the fields, so that it is built at once.
    content = {"log_id": log_id, "offset": offset, "host": host, "t_ns": t_ns, "topic": words, "body": body}
    return _build(Frame, content, "frame")


def _build(cls: type[M], content: dict[str, Any], what: str) -> M:
    check: Check = _checker(cast("type", cls))
    try:
        built: M = check(content)
    except ValueError as wrong:
        raise MalformedError(f"{what}: could not be read: {wrong}.") from wrong
    return built


def _unpack(data: bytes | memoryview) -> Any:
    if len(data) > MAX_BYTES:
        raise MalformedError(f"message: could not be read: {len(data)} bytes, at most {MAX_BYTES} are taken.")
    try:
        return msgpack.unpackb(data, use_list=True, strict_map_key=True, **_UNPACK_BOUNDS)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as wrong:
        raise MalformedError("message: could not be read: not MessagePack within our bounds.") from wrong


def _plain(message: Any) -> tuple[str, dict[str, Any]]:
    cls: type = type(message)
    return cls.__name__, {name: _plain_value(getattr(message, name)) for name in _field_names(cls)}


def _plain_value(value: Any) -> Any:
    if value is None or type(value) in _SCALARS:
        return value
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    return _plain(value) if isinstance(value, Struct) else value


def _is_struct(option: Any) -> bool:
    return isinstance(option, type) and issubclass(option, Struct)


@cache
def _field_names(cls: type[Struct]) -> tuple[str, ...]:
    return cls.__struct_fields__


@cache
def _checker(cls: type) -> Check:
    """Return the check that builds a message of class ``cls`` from its decoded fields."""
    hints = get_type_hints(cls, include_extras=True)
    required = {field.name for field in fields(cls) if field.required}
    checks = {name: _check(hints[name]) for name in _field_names(cls)}
    at_once = _at_once(cls, hints, tuple(checks.values()))

    def build(content: Any) -> Any:
        if not isinstance(content, dict):
            raise ValueError(f"{cls.__name__}: expected its fields")  # noqa: TRY004  (one error a caller catches)
        try:
            built = at_once(content)
        except ValueError:
            built = None
        return cls(**checked(content)) if built is None else built  # which names the field that is wrong

    def checked(content: dict[str, Any]) -> dict[str, Any]:
        values = {}
        for name, check in checks.items():
            if name in content:
                try:
                    values[name] = check(content[name])
                except ValueError as wrong:
                    raise ValueError(f"{name}: {wrong}") from wrong
            elif name in required:
                raise ValueError(f"{name}: absent")
        return values

    return build


def _at_once(cls: type, hints: dict[str, Any], checks: Sequence[Check]) -> Check:
    """Return the function that builds a message as a sender of this version writes it, else returns None.

    Compiled, for events come by the thousand: only fields that are not plain have their check called.
    """
    values, names = [f"v{number}" for number in range(len(checks))], list(_field_names(cls))
    known: dict[str, Any] = {"cls": cls, "names": names}
    for number, check in enumerate(checks):
        known[f"check{number}"] = check
    conditions, parts = ["True"], []
    for name, value in zip(names, values, strict=True):
        if (condition := _condition(hints[name], value)) is not None:
            conditions.append(condition)
        part = value if condition is not None else f"check{value[1:]}({value})"
        parts.append(f"{name}={part}")
    source = f"""def at_once(content):
    if type(content) is dict and list(content) == names:
        [{", ".join(values)}] = content.values()
        if {" and ".join(conditions)}:
            return cls({", ".join(parts)})"""
    exec(source, known)  # noqa: S102  (made of the names of our own fields)
    return cast("Check", known["at_once"])


def _condition(hint: Any, value: str) -> str | None:
    """Return the condition under which a value is one of a plain type as it is. None: it needs its check."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated and args[0] in (int, str):
        bounds = [extra for extra in args[1:] if isinstance(extra, Within)]
        size = value if args[0] is int else f"len({value})"
        parts = [f"{bound.least!r} <= {size} <= {bound.most!r}" for bound in bounds]
        return " and ".join((f"type({value}) is {args[0].__name__}", *parts))
    if origin is Literal:
        return f"type({value}) is str and {value} in {args!r}"
    if origin in (Union, types.UnionType) and len(args) == 2 and types.NoneType in args:
        (other,) = (arg for arg in args if arg is not types.NoneType)
        condition = _condition(other, value)
        return None if condition is None else f"({value} is None or {condition})"
    return f"type({value}) is {hint.__name__}" if hint in (int, str, bool, bytes) else None


def _check(hint: Any) -> Check:
    """Return the check for one type as the message classes write them."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [extra for extra in args[1:] if isinstance(extra, Within)]
        if args[0] in (int, str) and len(bounds) == 1:
            return _bounded_scalar(args[0], bounds[0])
        return _bounded(_check(args[0]), bounds)
    if origin is Literal:
        return _one_of(args)
    if origin in (Union, types.UnionType):
        return _either(args)
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        return _named(hint)
    if origin is tuple:
        return _many(_check(args[0])) if args[-1] is Ellipsis else _each([_check(arg) for arg in args])
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _either((hint,))
    return _SCALARS[hint]


def _bounded(check: Check, bounds: list[Within]) -> Check:
    def checked(value: Any) -> Any:
        value = check(value)
        size = len(value) if isinstance(value, str | bytes | tuple) else value
        for bound in bounds:
            if not bound.least <= size <= bound.most:
                raise ValueError(f"{size} is not within {bound.least:g} to {bound.most:g}")
        return value

    return checked


def _bounded_scalar(cls: type, bound: Within) -> Check:
    """Return the check of most fields: in one call, since events come by the thousand."""
    least, most, whole = bound.least, bound.most, _SCALARS[cls]
    if cls is str:

        def checked(value: Any) -> Any:
            if type(value) is str and least <= len(value) <= most:
                return value
            return _bounded(whole, [bound])(value)
    else:

        def checked(value: Any) -> Any:
            if type(value) is int and least <= value <= most:
                return value
            return _bounded(whole, [bound])(value)

    return checked


def _one_of(allowed: tuple[Any, ...]) -> Check:
    known = frozenset(allowed)

    def checked(value: Any) -> Any:
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return value

    return checked


def _either(options: Sequence[Any]) -> Check:
    """Return the check for a union: of messages (distinguished by kind), or of a scalar and None."""
    kinds = {str(option.__name__): option for option in options if _is_struct(option)}
    others = [_check(o) for o in options if o is not types.NoneType and not _is_struct(o)]
    optional = types.NoneType in options
    builders: dict[str, Check] = {}
    """By kind, of those that came already."""

    def message(value: Any) -> Any:
        match value:
            case [str(kind), content] if kind in kinds and kind != "Unknown":
                builders[kind] = _checker(kinds[kind])
                return builders[kind](content)
            case [str(kind), content] if (today := modernize(kind, content)) and today[0] in kinds:
                return _checker(kinds[today[0]])(today[1])
            case [str(kind), _] if Unknown in options:
                return Unknown(kind[:40])
            case _:
                raise ValueError(f"expected one of {', '.join(kinds)}")

    if not kinds:
        (scalar,) = others

        def scalar_or_none(value: Any) -> Any:
            return None if value is None and optional else scalar(value)

        return scalar_or_none

    def checked(value: Any) -> Any:
        if value is None and optional:
            return None
        if type(value) is list and len(value) == 2 and type(value[0]) is str and value[0] in builders:
            return builders[value[0]](value[1])
        return message(value)

    return checked


def _many(check: Check) -> Check:
    def checked(value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError("expected an array")  # noqa: TRY004
        return tuple([check(item) for item in value])

    return checked


def _each(checks: list[Check]) -> Check:
    def checked(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(checks):
            raise ValueError(f"expected an array of {len(checks)}")
        return tuple(check(item) for check, item in zip(checks, value, strict=True))

    return checked


def _named(hint: type) -> Check:
    each = _each([_check(part) for part in get_type_hints(hint, include_extras=True).values()])
    return lambda value: hint(*each(value))


def _integer(value: Any) -> Any:
    if type(value) is not int:
        raise ValueError("expected an integer")
    return value


def _number(value: Any) -> Any:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("expected a finite number")
    return float(value)


def _exactly(cls: type, word: str) -> Check:
    def checked(value: Any) -> Any:
        if type(value) is not cls:
            raise ValueError(f"expected {word}")
        return value

    return checked


_SCALARS: dict[Any, Check] = {
    int: _integer,
    float: _number,
    str: _exactly(str, "a string"),
    bool: _exactly(bool, "true or false"),
    bytes: _exactly(bytes, "bytes"),
}
