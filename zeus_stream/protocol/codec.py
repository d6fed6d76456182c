"""Messages to bytes and back. Knows bytes, not sockets.

A message is MessagePack ``[VERSION, kind, {field: value}]``. Inside it, a struct is a map of its fields, and
one of several kinds names its own as ``type``. Bytes from outside become a message of this package with every
field of its type and within its bounds, or `MalformedError`. Unknown fields are ignored, so that a newer
sender is understood; an unknown kind in a list of events or notes becomes `Unknown`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints, overload

import msgpack
from msgspec import ValidationError, convert, to_builtins

from zeus_stream.errors import MalformedError
from zeus_stream.protocol.fields import VERSION, Unknown

MAX_BYTES = 4 * 1024 * 1024
"""Largest message part on any socket."""

_UNPACK_BOUNDS = {
    "max_str_len": 200_000,
    "max_bin_len": MAX_BYTES,
    "max_array_len": 10_000,
    "max_map_len": 64,
    "max_ext_len": 0,
}
_BINARY = (bytes, bytearray, memoryview)
"""Types that MessagePack has, and JSON has not: else they become text."""
_MAX_REASON = 300
"""Characters of a reason that a sender may have a part in."""
_ABSENT = re.compile(r"Object missing required field `(\w+)`")

M = TypeVar("M")
N = TypeVar("N")
P = TypeVar("P")


def encode(message: object) -> bytes:
    """Return a message as bytes."""
    packed: bytes = msgpack.packb([VERSION, *_plain(message)])
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
    outer = unpack(data)
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
            return build(cls, content, f"message {kind}")
    names = ", ".join(cls.__name__ for cls in expected)
    raise MalformedError(f"message: could not be read: kind {kind[:40]!r}, expected {names}.")


def encode_records(records: Sequence[object]) -> bytes:
    """Return many messages as bytes."""
    packed: bytes = msgpack.packb([VERSION, [_plain(record) for record in records]])
    return packed


def decode_records(data: bytes | memoryview, expected: Sequence[type[M]]) -> tuple[M | Unknown, ...]:
    """Return the messages of `encode_records`; those of other kinds are `Unknown`. Raises MalformedError."""
    match unpack(data):
        case [int(version), list(records)] if version == VERSION:
            pass
        case _:
            raise MalformedError(f"records: could not be read: they are not [{VERSION}, records].")
    kinds = {kind.__name__: kind for kind in expected}
    return tuple(_record(record, kinds) for record in records)


def _record(record: object, kinds: Mapping[str, type[M]]) -> M | Unknown:
    match record:
        case [str(kind), content] if kind in kinds:
            if not _is_finite(content):
                raise MalformedError(f"records: could not be read: {kind}: a number is not finite.")
            return build(kinds[kind], content, "records")
        case [str(kind), _]:
            return Unknown(kind[:40])
        case _:
            raise MalformedError(f"records: could not be read: expected one of {', '.join(kinds)}.")


def _is_finite(content: object) -> bool:
    """Tell whether no number of a record is infinite or NaN. Fields of rows have no bounds of their own."""
    if isinstance(content, dict):
        return all(map(_is_finite, content.values()))
    if isinstance(content, list):
        return all(map(_is_finite, content))
    return not isinstance(content, float) or math.isfinite(content)


def _plain(message: object) -> tuple[str, Any]:
    return type(message).__name__, to_builtins(message, builtin_types=_BINARY)


def build(cls: type[M], content: Any, what: str) -> M:
    """Return the message of these fields. Raises MalformedError, which names the field that is wrong."""
    for name, kinds in _lists_of_kinds(cast("type", cls)).items():
        if isinstance(content, dict) and isinstance(content.get(name), list):
            content[name] = [_mark_unknown(item, kinds) for item in content[name]]
    try:
        return convert(content, cls, builtin_types=_BINARY)
    except ValidationError as wrong:
        raise MalformedError(f"{what}: could not be read: {_reason(wrong)}.") from wrong


@cache
def _lists_of_kinds(cls: type) -> Mapping[str, frozenset[str]]:
    """Return the fields that hold messages of several kinds, each with the kinds that are known here."""
    found = {}
    for name, hint in get_type_hints(cls).items():
        kinds = get_args(next(iter(get_args(hint)), None))
        if Unknown in kinds:
            found[name] = frozenset(kind.__name__ for kind in kinds) - {"Unknown"}
    return found


def _mark_unknown(item: Any, kinds: frozenset[str]) -> Any:
    if isinstance(item, dict) and isinstance(kind := item.get("type"), str) and kind not in kinds:
        return {"type": "Unknown", "kind": kind[:40]}
    return item


def _reason(wrong: ValidationError) -> str:
    """Return field and reason of a refusal, as ``events[3].index: expected `int` >= 0``."""
    text, _, place = str(wrong).partition(" - at `$")
    field = place.rstrip("`").removeprefix(".")
    if absent := _ABSENT.match(text):
        field, text = f"{field}.{absent[1]}".removeprefix("."), "absent"
    reason = f"{field}: {text[0].lower()}{text[1:]}" if field else f"{text[0].lower()}{text[1:]}"
    return reason[:_MAX_REASON]


def unpack(data: bytes | memoryview) -> Any:
    """Return what MessagePack has within our bounds. Raises MalformedError."""
    if len(data) > MAX_BYTES:
        raise MalformedError(f"message: could not be read: {len(data)} bytes, at most {MAX_BYTES} are taken.")
    try:
        return msgpack.unpackb(data, use_list=True, strict_map_key=True, **_UNPACK_BOUNDS)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as wrong:
        raise MalformedError("message: could not be read: not MessagePack within our bounds.") from wrong
