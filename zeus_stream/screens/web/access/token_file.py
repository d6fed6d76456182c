"""The token of the page, made once, in a file that only its user can read; and the keys of jobs."""

import secrets
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, ValidationError, convert

from zeus_stream.errors import StorageError, explaining
from zeus_stream.own_files import read_own, write_new
from zeus_stream.screens.web.access.security import JobKey

BYTES = 24
"""Random ones of a token."""
MAX_FILE = 1_000_000


def read_token(path: Path) -> str:
    """Return the token of a file, made for this user alone if there is none. Raises StorageError."""
    cure = "Set ZEUS_STREAM_DIR to a directory that this user can write."
    with explaining(StorageError, f"{path}: could not be used as the token", cure):
        if not path.exists():
            with suppress(FileExistsError):  # another process has just made one
                write_new(path, f"{secrets.token_urlsafe(BYTES)}\n".encode())
        return _read(path)


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
