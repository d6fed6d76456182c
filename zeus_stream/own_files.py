"""Opens files in folders where other users may write: what they put there neither blocks nor is followed.

A link is not followed, a FIFO does not block, and a file that is no regular file of this user's alone is
refused. What is read has a limit: a sparse file of another size takes no memory.
"""

import os
import stat
from contextlib import suppress
from errno import EACCES
from pathlib import Path

from zeus_stream.errors import StorageError, explaining


def open_own(path: Path, flags: int = os.O_RDONLY, *, others_may: int = 0, owner: int | None = None) -> int:
    """Open a regular file of this user's, and return its descriptor.

    ``O_CREAT`` makes it for this user alone; ``O_TRUNC`` takes effect once it is known to be ours.
    ``others_may``: permissions of others, such as ``0o044``. ``owner``: uid of its user; None: this one.
    Raises PermissionError and OSError.
    """
    guarded = flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        opened = os.open(path, guarded, 0o600)
    except OSError as wrong:
        if path.is_symlink():
            raise PermissionError(EACCES, "it is a link", str(path)) from wrong
        raise
    try:
        state = os.fstat(opened)
        if not stat.S_ISREG(state.st_mode):
            raise PermissionError(EACCES, "it is no regular file", str(path))
        if state.st_uid != (os.geteuid() if owner is None else owner):
            raise PermissionError(EACCES, f"it belongs to user {state.st_uid}", str(path))
        if state.st_mode & 0o077 & ~others_may:
            raise PermissionError(EACCES, "other users can read or write it", str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(opened, 0)
        os.set_blocking(opened, True)
    except OSError:
        os.close(opened)
        raise
    return opened


def read_own(path: Path, max_bytes: int, *, others_may: int = 0) -> bytes:
    """Return at most ``max_bytes`` of a file. Raises OSError: see `open_own`."""
    opened = open_own(path, others_may=others_may)
    try:
        return os.pread(opened, max_bytes, 0)
    finally:
        os.close(opened)


def own_secret(path: Path, size: int) -> bytes:
    """Return the random bytes in a file of this user's alone, made whole and private at the first call.

    Raises StorageError: it can be neither read nor made, or is no secret of ``size`` bytes.
    """
    with explaining(StorageError, f"{path}: could not be used", "Make it readable for this user alone."):
        if not path.exists():
            with suppress(FileExistsError):  # another process was faster: its secret is the one
                write_new(path, os.urandom(size))
        secret = read_own(path, size + 1)
    if len(secret) != size:
        raise StorageError(f"{path}: could not be used: it is no key. Move it aside for another.")
    return secret


def write_new(path: Path, content: bytes) -> None:
    """Make a file that is whole and this user's alone from the first moment.

    Raises FileExistsError: there is one of this name, which stays as it is. Raises OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{os.urandom(8).hex()}")
    try:
        with open(open_own(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a loss of power leaves a whole key or none
        path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)
