"""Starts a collector and an analyzer of this user, if none run, for as long as a script asks for them.

Each script that asks holds a shared lock on one file. The kernel releases it however the script ends. A
keeper process (`zeus_stream.cli.keeper`) starts the services, waits for the lock, and stops them.
"""

import fcntl
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from zeus_stream.clock import monotonic_ns
from zeus_stream.own_files import open_own, read_own
from zeus_stream.paths import ROOT_RUN, Places, holder, places, trusted
from zeus_stream.service_packages import absent_packages, install_command, python_child

SCRIPTS = "scripts.lock"
"""Held by each script that asked; taken alone by the keeper once none is left."""
KEEPER = "keeper.lock"
READY = "keeper.ready"
"""Exists while the keeper's services answer."""
LOG = "keeper.log"
LOG_BYTES = 100_000
"""Of it that are read."""
LOOK_S = 0.05
STARTS_S = 20.0
"""Longest wait of a script for a collector that starts beside it."""
YES = {"1", "true", "yes", "on"}
"""Values of a variable of the environment that switch something on."""
_held: dict[Path, int] = {}
"""Descriptors of the locks that this process holds: to its end."""


def start(timeout_s: float = 60.0, *, stop_at: str | None = None) -> bool:
    """Start a collector and an analyzer for this user, if none run, and wait until they answer.

    They end a few seconds after the last script that called this, also if that was killed. They measure, and
    set a limit only if a script asks for it or ``ZEUS_STREAM_SELECT`` says so. With
    ``ZEUS_STREAM_START=1`` in the environment, a script need not call this. It never raises into a training:
    what goes wrong is logged.

    Args:
        timeout_s: seconds to wait at most.
        stop_at: energy budget of this script's run, such as ``500Wh``: see `over_budget`.

    Returns:
        Whether a collector and an analyzer run.

    Example:
        >>> zeus_stream.start()
        True
        >>> with zeus_stream.window("validation") as w:
        ...     evaluate()
        >>> w.energy().energy_j
        812.4
    """
    if stop_at is not None:
        os.environ["ZEUS_STREAM_STOP_AT"] = stop_at
    until_ns = monotonic_ns() + round(timeout_s * 1e9)
    where = places(os.environ)
    try:
        if not os.environ.get("ZEUS_STREAM_DIR") and _run(Places(ROOT_RUN, ROOT_RUN)):
            return True  # root's services serve everybody
        if not _hold(where, until_ns):
            return _failed(where, f"the services did not stop within {timeout_s:g} s")
        if not _run(where):
            if absent := absent_packages():
                return _failed(
                    where,
                    f"the services are not installed here: {', '.join(absent)} are absent."
                    f" {install_command('services')} installs them",
                )
            _spawn_keeper(where)
        while monotonic_ns() < until_ns:
            if _run(where) and (holder(where.run / KEEPER) is None or (where.run / READY).exists()):
                return True
            time.sleep(LOOK_S)
    except OSError as wrong:
        return _failed(where, str(wrong))
    return _failed(where, f"they did not answer within {timeout_s:g} s")


def start_if_asked() -> bool:
    """Start the services if ``ZEUS_STREAM_START`` says so. Return whether this script has asked for them."""
    wait_for_starting()
    if os.environ.get("ZEUS_STREAM_START", "").lower() in YES:
        start()
    return bool(_held)


def wait_for_starting() -> None:
    """Wait for `STARTS_S` at most until the collector of `zeus-stream run`, if it starts, has its devices."""
    until_ns = monotonic_ns() + round(STARTS_S * 1e9)
    starting = os.environ.get("ZEUS_STREAM_STARTING")
    while starting and Path(starting).exists() and monotonic_ns() < until_ns:
        time.sleep(LOOK_S)


def print_cost(run: str) -> None:
    """Print in one line what a run cost, if a keeper has the services, unless ``ZEUS_STREAM_QUIET``."""
    where = places(os.environ)
    if os.environ.get("ZEUS_STREAM_QUIET", "").lower() in YES or holder(where.run / KEEPER) is None:
        return
    import subprocess  # noqa: PLC0415  (few scripts come here)

    with suppress(OSError, subprocess.TimeoutExpired):
        command = python_child("zeus_stream.cli.running.run_summary", run)
        subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60, check=False)  # noqa: S603  (ours)


def _run(where: Places) -> bool:
    """Tell whether both services run there."""
    locks = (where.run / "collector.lock", where.run / "analyzer.lock")
    return all(os.access(lock, os.R_OK | os.W_OK) and holder(lock) is not None for lock in locks)


def _hold(where: Places, until_ns: int) -> bool:
    """Take part in the lock of the scripts. It waits while a keeper stops its services."""
    path = where.run / SCRIPTS
    where.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not trusted(path):
        raise PermissionError(f"{where.run} belongs to another user")
    if path in _held:
        return True
    lock = open_own(path, os.O_RDWR | os.O_CREAT)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic_ns() > until_ns:
                os.close(lock)
                return False
            time.sleep(LOOK_S)
        else:
            _held[path] = lock
            return True


def _spawn_keeper(where: Places) -> None:
    """Start a keeper, unless there is one: a second one ends at once."""
    log = open_own(where.run / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
        actions = [*nothing, (os.POSIX_SPAWN_DUP2, log, 2)]
        command = python_child("zeus_stream.cli.keeper")
        os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsid=True)
    finally:
        os.close(log)


def _failed(where: Places, why: str) -> bool:
    import logging  # noqa: PLC0415  (few scripts come here)

    try:
        last = read_own(where.run / LOG, LOG_BYTES).decode(errors="replace").strip().splitlines()[-1:]
    except OSError:
        last = []
    logging.getLogger("zeus_stream").warning(
        "zeus-stream: start: could not start a collector and an analyzer: %s. Training goes on unmeasured."
        " Try `zeus-stream doctor`. %s", why, *last or ("",),
    )  # fmt: skip
    return False
