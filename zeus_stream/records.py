"""Frozen records: what ``@dataclass(frozen=True, slots=True)`` makes, in a third of the time.

A process of ours makes up to 400 such classes when it starts. The standard library compiles six functions for
each; here one is compiled, the constructor, at its first use, and the others are shared (docs/decisions/036).
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def record(cls: type[T], /) -> type[T]: ...
@overload
def record(*, kw_only: bool) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T] | None = None, /, *, kw_only: bool = False) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass with slots. `dataclasses.fields`, `replace` and `asdict` work on it."""

    def made(cls: type[T]) -> type[T]:
        cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard library writes the signature: slow
        plain = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
        for name, method in _methods(plain).items():
            if plain.__dict__.get(name) is None:
                setattr(plain, name, method)
        if "__init__" not in plain.__dict__:
            type.__setattr__(plain, "__init__", _Constructor(plain))
        return plain

    return made if cls is None else made(cls)


def _methods(cls: type) -> dict[str, Callable[..., Any]]:
    all_fields = fields(cls)
    shown = [each.name for each in all_fields if each.repr]
    values = _values([each.name for each in all_fields if each.compare])

    def is_equal(self: object, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_of(self: object) -> int:
        return hash(values(self))

    def text(self: object) -> str:
        content = ", ".join([f"{name}={getattr(self, name)!r}" for name in shown])
        return f"{self.__class__.__qualname__}({content})"

    return {
        "__repr__": text,
        "__eq__": is_equal,
        "__hash__": hash_of,
        "__setattr__": _refuse_assignment,
        "__delattr__": _refuse_deletion,
        "__getstate__": _state,
        "__setstate__": _set_state,
    }


def _values(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """Return the function that gives the values of these fields."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda of: tuple(getattr(of, name) for name in names)


def _refuse_assignment(_self: object, name: str, _value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(_self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


class _Constructor:
    """The place of a constructor that nobody has used yet: most records of a process are never made."""

    __slots__ = ("_cls",)

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, of: object | None, owner: type | None = None) -> Callable[..., None]:
        """Compile the constructor, and put it where this was."""
        constructor = _constructor(self._cls, fields(self._cls))
        type.__setattr__(self._cls, "__init__", constructor)
        return constructor.__get__(of, owner)  # type: ignore[no-any-return]


class _Made:
    """The default of a parameter whose value is made for each record."""

    def __repr__(self) -> str:
        """Return what the standard library shows in a signature."""
        return "<factory>"


def _constructor(cls: type, all_fields: tuple[Field[Any], ...]) -> Callable[..., None]:
    """Compile ``__init__``. It writes through the slots, since assignment is refused."""
    known: dict[str, Any] = {"_made": _Made()}
    positional, keywords, lines = ["self"], list[str](), list[str]()
    for number, each in enumerate(all_fields):
        name = each.name
        default, value = "", name
        if each.default is not MISSING:
            known[f"_default{number}"] = each.default
            default, value = f"=_default{number}", name if each.init else f"_default{number}"
        elif each.default_factory is not MISSING:
            known[f"_make{number}"] = each.default_factory
            default = "=_made"
            value = f"_make{number}() if {name} is _made else {name}" if each.init else f"_make{number}()"
        elif not each.init:
            continue
        if each.init:
            (keywords if each.kw_only else positional).append(name + default)
        known[f"_set{number}"] = getattr(cls, name).__set__
        lines.append(f"_set{number}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({parameters}):\n    " + "\n    ".join(lines or ["pass"]), known)  # noqa: S102
    constructor: Callable[..., None] = known["__init__"]
    constructor.__qualname__ = f"{cls.__qualname__}.__init__"
    constructor.__module__ = cls.__module__
    types = {each.name: each.type for each in all_fields if each.init}
    constructor.__annotations__ = types | {"return": None}
    return constructor
