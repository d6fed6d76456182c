"""Every error this project raises, named after what the caller should do about it.

    ZeusStreamError
    ├── SettingsError       correct the setting that the sentence names
    ├── UnreachableError    start the process that did not answer, or look where it listens
    ├── RefusedError        the other side understood and refused; the sentence says why
    ├── MalformedError      drop the message, count it, name its sender; never die of it
    ├── StorageError        make room, or mend or move the file that the sentence names
    └── DeviceError         a GPU did not do what was asked
        ├── RetryError          ask again at the next turn
        ├── UnsupportedError    this device cannot; do not ask again
        ├── PermissionMissingError   give the process the privilege that the sentence names
        └── LostError           leave the device alone until it comes back

The text of each reads: who: could not what: why. What to do.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager


def printable(text: str, keep: str = "") -> str:
    """Return text for a terminal: control characters not to ``keep`` become question marks."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else "?" for letter in text)


MASK = "***"
"""Stands in the place of a password."""
_PASSWORD = re.compile(
    r"(?P<begin>://)[^\s/,]+(?=@)|(?P<name>password\s*=\s*)(?:'(?:[^'\\]|\\.)*'|[^\s'&]+)", re.IGNORECASE
)
"""Of an address, all before the @; of a connection text of PostgreSQL, the password."""


def without_passwords(text: str) -> str:
    """Return a text with `MASK` for the passwords in the addresses of brokers and databases."""
    return _PASSWORD.sub(lambda found: (found["begin"] or found["name"]) + MASK, text)


class ZeusStreamError(Exception):
    """Base of all errors of zeus-stream."""

    def __str__(self) -> str:
        """Return the text without control characters and passwords."""
        return without_passwords(printable(super().__str__(), keep="\n\t"))


class SettingsError(ZeusStreamError):
    """A setting is wrong. The text names where it was set and what it may be."""


class UnreachableError(ZeusStreamError):
    """Another process did not answer in time."""


class RefusedError(ZeusStreamError):
    """Another process answered with a refusal."""


class MalformedError(ZeusStreamError):
    """A message from outside is not one of ours, or is out of its bounds."""


class StorageError(ZeusStreamError):
    """A file could not be opened, read or written as what it should be."""


class DeviceError(ZeusStreamError):
    """A device did not do what was asked."""


class RetryError(DeviceError):
    """Passing trouble: a timeout, an impossible value. The next read may succeed."""


class UnsupportedError(DeviceError):
    """The device has no such feature."""


class PermissionMissingError(DeviceError):
    """The process lacks the privilege for this."""


class LostError(DeviceError):
    """The device is gone (fell off the bus, needs a reset, driver unloaded). It may return."""


def leaves(wrong: BaseException) -> list[BaseException]:
    """Return the errors in a group of groups; of another error that alone."""
    if not isinstance(wrong, BaseExceptionGroup):
        return [wrong]
    return [leaf for each in wrong.exceptions for leaf in leaves(each)]


@contextmanager
def explaining(kind: type[ZeusStreamError], could_not: str, cure: str) -> Iterator[None]:
    """Raise what the system refuses in the block as an error of ours.

    Args:
        kind: of error.
        could_not: who, and what could not be done: ``/a/file: could not be written``.
        cure: what to do about it, as a sentence.
    """
    try:
        yield
    except (OSError, UnicodeDecodeError) as wrong:
        why = (wrong.strerror if isinstance(wrong, OSError) else None) or wrong
        raise kind(f"{could_not}: {why}. {cure}") from wrong
