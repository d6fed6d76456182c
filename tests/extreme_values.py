"""Messages whose fields have the least or the most that they may have, by their types."""

import types
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct

from zeus_stream.protocol.events import MARK
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.pipelines import ROW

M = TypeVar("M", bound=Struct)
FLOATS = (0.0, -0.0, 1.0, -1.0, 5e-324, 1e-300, 1e150, 1e308, -1e308)
WORDS = ("x", "J", "kWh", "\0", "\x1b[2J", "'; --", "%s{}", "../..", "\U0010ffff", "<script>", "e" * 2_000)


@cache
def hints_of(kind: type) -> Mapping[str, Any]:
    """Return the types of a message's fields, with their bounds."""
    return get_type_hints(kind, include_extras=True)


def extreme(rng: Random, hint: Any, like: Sequence[str] = ()) -> Any:
    """Return a value of a field that is at a bound of it, or nearly. ``like``: names that mean something."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [extra for extra in args[1:] if isinstance(extra, Meta)]
        return _within(rng, args[0], bounds[-1], like) if bounds else extreme(rng, args[0], like)
    if origin is Literal:
        return rng.choice(args)
    if origin in (Union, types.UnionType):
        return extreme(rng, rng.choice([arg for arg in args if arg is not Unknown]), like)
    if origin is tuple:
        return tuple(extreme(rng, args[0], like) for _ in range(rng.choice((0, 1, 3))))
    if isinstance(hint, type) and issubclass(hint, Struct):
        return any_of(rng, hint, like)
    if hint is types.NoneType:
        return None
    plain = {int: (0, 1, 2**53), float: FLOATS, bool: (False, True), str: WORDS, bytes: (b"",)}
    return rng.choice(plain[hint])


def _within(rng: Random, hint: Any, bound: Meta, like: Sequence[str]) -> Any:
    if hint is float:
        low, high = float(bound.ge or 0), float(bound.le or 0)
        inside = [value for value in FLOATS if low <= value <= high]
        return rng.choice((low, high, low + 1e-9, low / 2 + high / 2, *inside))
    if hint is int:
        least, most = int(bound.ge or 0), int(bound.le or 0)
        return rng.choice((least, least + 1, most, most - 1, (least + most) // 2, rng.randint(least, most)))
    least, most = bound.min_length or 0, bound.max_length or 0
    if hint is str:
        text = rng.choice((*like, *like, *WORDS))[:most]
        return text if len(text) >= least else "x" * least
    if hint is bytes:
        return _packed(rng, most)
    (of,) = {part for part in get_args(hint) if part is not Ellipsis}
    count = rng.choice((least, 1, 2, min(most, 300)))
    return tuple(extreme(rng, of, like) for _ in range(max(least, min(count, most))))


def _packed(rng: Random, most: int) -> bytes:
    """Return rows of instructions, or marks of phases."""
    numbers = (0, 1, 1023, 1 << 20, 2**31, 2**32 - 1)
    count = rng.choice((1, 2, 50))
    if rng.random() < 0.5:
        return b"".join(ROW.pack(*rng.choices(numbers, k=3)) for _ in range(count))[:most]
    return b"".join(MARK.pack(rng.choice(numbers), rng.choice((0, 1, 2, 255))) for _ in range(count))[:most]


def any_of(rng: Random, kind: type[M], like: Sequence[str] = ()) -> M:
    """Return a message all of whose fields are at a bound."""
    hints = hints_of(kind)
    return kind(**{name: extreme(rng, hints[name], like) for name in kind.__struct_fields__})
