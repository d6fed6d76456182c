"""Where processes of one setup meet: directories, sockets, and who owns them.

| | sockets, locks | log, archive, restore records |
|---|---|---|
| root | ``/run/zeus-stream`` | ``/var/lib/zeus-stream`` |
| others | ``$XDG_RUNTIME_DIR/zeus-stream``, or 0700 under /tmp | ``$XDG_STATE_HOME/zeus-stream`` |
| ``ZEUS_STREAM_DIR`` | it | it |
"""

import fcntl
import os
import stat
from collections.abc import Mapping
from errno import EACCES
from pathlib import Path
from typing import IO

from msgspec import Struct

from zeus_stream.errors import RefusedError, SettingsError, StorageError, explaining
from zeus_stream.own_files import open_own

MAX_IPC_BYTES = 107
"""Longest path of a Unix socket."""
ROOT_RUN = Path("/run/zeus-stream")
PRIVATE_UMASK = 0o077
"""Files are for their user alone."""
OWN = "Run this as that user, or set ZEUS_STREAM_DIR to a directory of your own."
"""The cure of a directory of another user."""


class Places(Struct, frozen=True):
    """The paths of one setup."""

    run: Path
    state: Path

    @property
    def publish(self) -> Path:
        """Events of training processes come in here: the one socket that every user may use."""
        return self.run / "publish"

    @property
    def position(self) -> Path:
        """Where training processes say which instruction of a pipeline begins, for every user."""
        return self.run / "position"

    @property
    def control(self) -> Path:
        """Commands and fetches, for the collector's owner (and group)."""
        return self.run / "control"

    @property
    def feed(self) -> Path:
        """The directory of the collector's log."""
        return self.run / "feed"

    @property
    def query(self) -> Path:
        """SQL and status, answered by the analyzer."""
        return self.run / "query"

    @property
    def log(self) -> Path:
        return self.state / "log.sqlite"

    @property
    def epochs(self) -> Path:
        """The epochs of analyzers that share a site."""
        return self.state / "epochs.json"

    @property
    def records(self) -> Path:
        """One restore record a device."""
        return self.state / "restore"

    @property
    def keys(self) -> Path:
        """Keys that let other hosts in here, and this one in there."""
        return self.state / "keys"

    @property
    def cards(self) -> Path:
        """The sensor cards of GPUs, by UUID."""
        return self.state / "cards"

    @property
    def gains(self) -> Path:
        """The calibrations of GPUs, by UUID."""
        return self.state / "gains.json"

    @property
    def forgotten(self) -> Path:
        """Until when profiles are forgotten, by job."""
        return self.state / "forgotten.json"

    @property
    def budgets(self) -> Path:
        """The power budgets of groups of GPUs."""
        return self.state / "budgets.json"

    @property
    def signals(self) -> Path:
        """Prices and carbon intensities, a CSV file each."""
        return self.state / "signals"

    @property
    def archive(self) -> Path:
        return self.state / "energy.duckdb"


def places(environ: Mapping[str, str]) -> Places:
    """Return the paths that a collector or analyzer started now would use. Creates nothing.

    Raises SettingsError: nothing names a directory.
    """
    if chosen := environ.get("ZEUS_STREAM_DIR"):
        directory = Path(chosen).absolute()
        return Places(directory, directory)
    if os.geteuid() == 0:
        return Places(ROOT_RUN, Path("/var/lib/zeus-stream"))
    state = environ.get("XDG_STATE_HOME")
    try:
        directory = Path(state) if state else Path.home() / ".local" / "state"
    except RuntimeError as wrong:
        raise SettingsError(
            f"directory: could not be chosen: user {os.geteuid()} has no home. Set ZEUS_STREAM_DIR."
        ) from wrong
    return Places(_user_run(environ), directory / "zeus-stream")


def publish_candidates(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the sockets a training process tries, in order: a root collector serves everybody."""
    if environ.get("ZEUS_STREAM_DIR"):
        return (places(environ).publish,)
    return (ROOT_RUN / "publish", Places(_user_run(environ), Path()).publish)


def _user_run(environ: Mapping[str, str]) -> Path:
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "zeus-stream"
    import tempfile  # noqa: PLC0415  (few scripts come here, and it is a third of what they would load)

    return Path(tempfile.gettempdir()) / f"zeus-stream-{os.geteuid()}"


def prepare(where: Places, group: str | None = None) -> None:
    """Create the directories: 0755 for sockets (each socket has its own mode), 0700 for state.

    From here on this process makes files that only its user can read. Raises StorageError.
    """
    for directory, mode in ((where.state, 0o700), (where.run, 0o755)):
        cure = "Set ZEUS_STREAM_DIR to a directory that this user can write."
        with explaining(StorageError, f"{directory}: could not be created", cure):
            directory.mkdir(parents=True, exist_ok=True)
            owner = directory.stat().st_uid
            if (laid := directory.lstat().st_uid) != 0:  # another user may have put a link under /tmp
                owner = laid
            if owner != os.geteuid():
                raise StorageError(f"{directory}: could not be used: it belongs to user {owner}. {OWN}")
            directory.chmod(mode)
    os.umask(PRIVATE_UMASK)
    if group is not None:
        try:
            import shutil  # noqa: PLC0415  (of services only)

            shutil.chown(where.run, group=group)
        except (LookupError, OSError) as wrong:
            raise SettingsError(f"group: could not give {where.run} to {group!r}: {wrong}.") from wrong


def rewrite(path: Path, text: str) -> None:
    """Put a text in the place of a file, for this user alone: readers see old or new.

    Raises OSError; PermissionError also where the user of the directory could not read it.
    """
    fresh = path.with_name(f"{path.name}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    if (owner := path.parent.stat().st_uid) != os.geteuid():
        raise PermissionError(EACCES, f"its directory belongs to user {owner}")
    with os.fdopen(open_own(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)


def trusted(path: Path) -> bool:
    """Tell whether a socket file lies where no other user can have put it: in /tmp, only ours and root's."""
    directory = path.parent
    if directory.lstat().st_uid in (0, os.geteuid()):
        return True
    return not directory.parent.stat().st_mode & stat.S_IWOTH


def endpoint(path: Path) -> str:
    """Return the ZeroMQ address of a socket file. Raises SettingsError when the path is too long."""
    if len(os.fsencode(path)) > MAX_IPC_BYTES:
        raise SettingsError(
            f"{path}: could not be a socket: its path is over {MAX_IPC_BYTES} bytes."
            " Set ZEUS_STREAM_DIR to a shorter directory."
        )
    return f"ipc://{path}"


def claim(path: Path, what: str) -> IO[str]:
    """Become the one ``what`` of a setup: return the lock file, of this user alone, to be closed.

    Raises RefusedError: another process holds it; the sentence names its pid. StorageError.
    """
    lock = _open_lock(path)
    if not _flock(lock, fcntl.LOCK_EX):
        holder = _named(lock) or "unknown"
        lock.close()
        raise RefusedError(
            f"{what}: could not start: process {holder} already is the {what} of {path.parent}."
            " Stop it, or set ZEUS_STREAM_DIR to run another setup beside it."
        )
    if os.fstat(lock.fileno()).st_ino != path.stat().st_ino:
        lock.close()
        raise RefusedError(f"{what}: could not start: another {what} starts in {path.parent}. Start one.")
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def holder(path: Path) -> int | None:
    """Return the pid that holds a claim; None: no process of ours does. Root may ask about another user's."""
    try:
        opened = open_own(path, owner=path.parent.stat().st_uid if os.geteuid() == 0 else None)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    with os.fdopen(opened, encoding="ascii", errors="replace") as lock:
        return None if _flock(lock, fcntl.LOCK_SH) else _named(lock) or 0


def _open_lock(path: Path) -> IO[str]:
    with explaining(StorageError, f"{path}: could not be opened", OWN):
        descriptor = open_own(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    return os.fdopen(descriptor, "a+", encoding="ascii", errors="replace")


def _flock(lock: IO[str], kind: int) -> bool:
    """Return whether the lock could be taken."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _named(lock: IO[str]) -> int | None:
    """Return the pid that a lock file names."""
    lock.seek(0)
    word = lock.read(20).strip()
    return int(word) if word.isdecimal() else None
