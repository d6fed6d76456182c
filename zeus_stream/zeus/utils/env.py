"""`get_env`: an environment variable of a type, with Zeus's name."""

import os
from typing import TypeVar

T = TypeVar("T")


def get_env(name: str, valtype: type[T], default: T | None = None) -> T:
    """Return an environment variable as a type, or ``default``. A ``bool`` is ``true`` or ``false``.

    Raises ValueError: it is not set and has no default, or its text is not of the type.
    """
    text = os.environ.get(name)
    if text is None:
        if default is None:
            raise ValueError(f"{name}: could not be read: the environment variable is not set. Set it.")
        return default
    if valtype is not bool:
        return valtype(text)  # type: ignore[call-arg]
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{name} = {text!r}: could not be used: it is true or false.")
    return valtype(text.lower() == "true")  # type: ignore[call-arg]
