"""The file of keys that may ask SQL over HTTP, each about some jobs.

[grafana-team-a]
token = "at least 24 characters"
jobs = ["team-a-*", "shared"]
"""

import tomllib
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, ValidationError, convert

from zeus_stream.errors import StorageError
from zeus_stream.own_files import read_own
from zeus_stream.screens.web.access.security import JobKey
from zeus_stream.screens.web.access.token_file import BYTES

MAX_FILE = 1_000_000


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
