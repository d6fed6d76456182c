"""Sockets that listen: at a file, with its mode and who the kernel says has connected; or at a TCP port."""

import errno
import os
import shutil
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import SettingsError, StorageError, explaining
from zeus_stream.paths import endpoint

BACKLOG = 1_024
FILE_BACKLOG = 128
"""At a file, where the queue is one for all users: a full one is left within a turn."""
ACCEPT_NS = 1_500_000
"""A turn of accepting lasts so long at most: a flood delays those that are there by that much."""
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_NO_FILES = {errno.EMFILE, errno.ENFILE}


class Accepted(Struct, frozen=True):
    """A connection, and the process on this host that made it."""

    socket: socket.socket
    uid: int
    pid: int


class ListeningSocket:
    """A socket that listens. Without a free descriptor, those who connect are turned away."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self._spare = _open_spare()

    def take_all(self) -> Iterator[socket.socket]:
        """Yield the connections that wait, which do not block, for ACCEPT_NS at most."""
        until_ns = monotonic_ns() + ACCEPT_NS
        while (opened := self._take()) is not None:
            yield opened
            if monotonic_ns() > until_ns:
                return

    def _take(self) -> socket.socket | None:
        """Return the next connection. None: there is none, or no descriptor for it."""
        try:
            opened, _ = self.socket.accept()
        except OSError as wrong:
            if wrong.errno in _NO_FILES:
                self._turn_away()
            return None
        opened.setblocking(False)  # noqa: FBT003  (the socket's own signature)
        return opened

    def _turn_away(self) -> None:
        """Close the next connection, by the descriptor that is kept for this."""
        os.close(self._spare)
        try:
            self.socket.accept()[0].close()
        except OSError:
            pass
        finally:
            self._spare = _open_spare()

    def close(self) -> None:
        if self.socket.fileno() >= 0:
            self.socket.close()
            os.close(self._spare)


class SocketFile(ListeningSocket):
    """A Unix socket at a file."""

    def __init__(
        self, path: Path, mode: int, group: str | None = None, kind: int = socket.SOCK_STREAM
    ) -> None:
        """Listen, in place of a file that is there; ``group`` gets it, with 0660.

        Raises SettingsError and StorageError.
        """
        endpoint(path)
        self._path = path
        super().__init__(socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK))
        try:
            self._bind(mode, group)
        except BaseException:
            self.close()
            raise

    def _bind(self, mode: int, group: str | None) -> None:
        cure = "Move away what is there, or set ZEUS_STREAM_DIR to another directory."
        with explaining(StorageError, f"{self._path}: could not be made a socket", cure):
            self._path.unlink(missing_ok=True)
            mask = os.umask(0o777 & ~mode)
            try:
                self.socket.bind(str(self._path))
            finally:
                os.umask(mask)
        if group is not None:
            try:
                shutil.chown(self._path, group=group)
                self._path.chmod(0o660)
            except (LookupError, OSError) as wrong:
                raise SettingsError(
                    f"group: could not give {self._path} to {group!r}: {wrong}."
                    " Name a group that there is, and that this user belongs to."
                ) from wrong
        self.socket.listen(FILE_BACKLOG)

    def accept_all(self) -> Iterator[Accepted]:
        """Yield the connections that wait, for ACCEPT_NS at most."""
        for opened in self.take_all():
            credentials = opened.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, uid, _ = _CREDENTIALS.unpack(credentials)
            yield Accepted(opened, uid, pid)

    def close(self) -> None:
        bound = self.socket.fileno() >= 0 and self.socket.getsockname()
        super().close()
        if bound:
            with suppress(OSError):
                self._path.unlink()


def _open_spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
