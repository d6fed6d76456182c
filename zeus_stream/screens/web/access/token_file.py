"""The token of the page, made once, in a file that only its user can read; and the keys of jobs."""

import os
import secrets
import tomllib
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, ValidationError, convert

from zeus_stream.errors import StorageError
from zeus_stream.own_files import open_own, read_own
from zeus_stream.screens.web.access.security import JobKey

BYTES = 24
"""Random ones of a token."""
MAX_FILE = 1_000_000


def read_token(path: Path) -> str:
    """Return the token of a file, made for this user alone if there is none. Raises StorageError."""
    try:
        return _read(path)
    except FileNotFoundError:
        return _create(path)
    except OSError as wrong:
        raise _unusable(path, wrong) from wrong


def _read(path: Path) -> str:
    try:
        token = read_own(path, 1_000).decode("ascii", errors="replace").strip()
    except PermissionError as wrong:
        raise StorageError(
            f"{path}: could not be used as the token: {wrong.strerror}. Delete it; a new one is made at the"
            " next start."
        ) from wrong
    if len(token) < BYTES or not token.isascii() or not token.isprintable():
        raise StorageError(f"{path}: could not be used as the token: it is too short. Delete it.")
    return token


def _create(path: Path) -> str:
    token = secrets.token_urlsafe(BYTES)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = open_own(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(handle, "w", encoding="ascii") as file:  # noqa: PTH123  (a descriptor)
            file.write(token + "\n")
        try:
            os.link(partial, path)  # never replaces a token that another process has just made
        except FileExistsError:
            return _read(path)
        finally:
            partial.unlink()
    except OSError as wrong:
        raise _unusable(path, wrong) from wrong
    return token


def _unusable(path: Path, wrong: OSError) -> StorageError:
    return StorageError(
        f"{path}: could not be used as the token: {wrong.strerror}. Set ZEUS_STREAM_DIR to a directory that"
        " this user can write."
    )


class _Written(Struct, frozen=True, forbid_unknown_fields=True):
    token: Annotated[str, Meta(min_length=BYTES, max_length=1000, pattern=r"^[!-~]+$")]
    jobs: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=500)], ...], Meta(min_length=1, max_length=100)
    ]


def read_job_keys(path: Path) -> tuple[JobKey, ...]:
    """Return the keys of a file. Raises StorageError: it cannot be read, or others can read or write it."""
    try:
        written = convert(tomllib.loads(read_own(path, MAX_FILE).decode()), dict[str, _Written])
    except OSError as wrong:
        raise StorageError(
            f"{path}: could not be used as keys: {wrong.strerror}. Give a file that only this user can read"
            " and write."
        ) from wrong
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValidationError) as wrong:
        raise StorageError(
            f"{path}: could not be used as keys: {wrong}. Write a table for each key, with a token of at"
            f" least {BYTES} characters, and jobs."
        ) from wrong
    return tuple(JobKey(name, key.token, key.jobs) for name, key in written.items())
