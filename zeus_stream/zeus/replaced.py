"""Names of Zeus that zeus-stream replaces: each imports, and its first use says what to use."""

from typing import Any

from zeus_stream.errors import ZeusStreamError


class ReplacedError(ZeusStreamError):
    """A name of Zeus was used that has another form here. The sentence names it."""


class _Replaced(type):
    """The kind of class that stands for such a name: a use of the class itself raises as well."""

    cure: str

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise ReplacedError(f"{cls.__name__}: could not be used: zeus-stream has another form. {cls.cure}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # what pickle, inspect and dataclasses look for
            raise AttributeError(name)
        return cls()


def replaced(name: str, cure: str) -> Any:
    """Return a class of Zeus's name that may be imported and subclassed, and names the cure when used."""
    return _Replaced(name, (), {"cure": cure})
