"""The classes whose objects are the state of an analyzer, and a digest of what they consist of. Pure.

A checkpoint constructs objects of these classes and of no other. It is read as long as they consist of what
they consisted of when it was written: an upgrade that changes what they do, not what they hold, reads it.
"""

import inspect
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from hashlib import sha256
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

PLACES = (
    "analyzers.batch_size",
    "analyzers.dispatch.pending",
    "analyzers.fleet",
    "analyzers.interpreter",
    "analyzers.live",
    "analyzers.measurement",
    "analyzers.pipeline",
    "analyzers.power_budget",
    "analyzers.power_limit",
    "analyzers.results",
    "zeus_stream.live.latest",
    "zeus_stream.protocol",
)
"""Packages and modules with state classes. None of them opens, reads or sends anything."""
STANDARD: Mapping[tuple[str, str], type] = {
    (kind.__module__, kind.__name__): kind
    for kind in (dict, frozenset, int, list, set, tuple, Counter, defaultdict, deque)
}
"""Containers, and what a `defaultdict` makes."""


class UnregisteredError(ValueError):
    """A class that is no state class."""


@cache
def name_of(kind: type) -> tuple[str, str]:
    """Return module and name of a state class. Raises UnregisteredError."""
    name = getattr(kind, "__module__", ""), getattr(kind, "__qualname__", repr(kind))
    if not (isinstance(kind, type) and (_has_state(name[0]) or name in STANDARD)):
        raise UnregisteredError(f"{name[0]}.{name[1]} is no state class")
    return name


@cache
def class_of(module: str, name: str) -> Any:
    """Return the state class of this name. Raises UnregisteredError."""
    if (module, name) in STANDARD:
        return STANDARD[module, name]
    if not _has_state(module):
        raise UnregisteredError(f"{module}.{name} is no state class")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or found.__module__ != module:
        raise UnregisteredError(f"{module}.{name} is no state class")
    return found


@cache
def version() -> str:
    """Return a digest of what objects of all state classes consist of, and the parts of an interpreter."""
    digest = sha256()
    for module in _modules():
        members = vars(import_module(module)).values()
        kinds = {each for each in members if isinstance(each, type) and each.__module__ == module}
        for kind in sorted(kinds, key=lambda each: each.__qualname__):
            digest.update("\n".join((module, kind.__qualname__, *_contents(kind))).encode())
    return digest.hexdigest()[:16]


def _has_state(module: str) -> bool:
    return any(f"{module}.".startswith(f"{place}.") for place in PLACES)


def _modules() -> Iterator[str]:
    for place in PLACES:
        yield place
        paths = getattr(import_module(place), "__path__", None)
        yield from sorted(found.name for found in walk_packages(paths, f"{place}.")) if paths else ()


def _contents(kind: type) -> Iterable[str]:
    """Yield the values of an enumeration, fields and their types, and what a constructor sets."""
    if issubclass(kind, Enum):
        yield from (f"{each.name} = {each.value!r}" for each in kind)
    else:
        yield from (f"{name}: {hint}" for name, hint in inspect.get_annotations(kind).items())
        yield from sorted(vars(kind).get("NOT_STATE", ()))
        constructor = vars(kind).get("__init__")
        if inspect.isfunction(constructor) and not is_dataclass(kind):
            yield inspect.getsource(constructor)
