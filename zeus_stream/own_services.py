"""Starts a collector and an analyzer of this user, if none run, for as long as a script asks for them.

Each script that asks holds a shared lock on one file. The kernel releases it however the script ends. A
keeper process (`zeus_stream.cli.keeper`) starts the services, waits for the lock, and stops them.
"""

import fcntl
import os
import sys
import time
from collections.abc import Iterator
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
SAYS_S = 1.0
"""A wait that takes longer is named."""
COST_S = 60.0
"""Longest wait for the line at the end: the process that asks for it has deadlines of its own."""
YES = {"1", "true", "yes", "on"}
"""Values of a variable of the environment that switch something on."""
_held: dict[Path, int] = {}
"""Descriptors of the locks that this process holds: to its end."""
_served: set[Path] = set()
"""Setups whose services have answered this script."""


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
        if not os.environ.get("ZEUS_STREAM_DIR") and where.run != ROOT_RUN and _listens(ROOT_RUN / "publish"):
            return True  # root's services serve everybody
        if not _hold(where, until_ns):
            return _failed(where, f"the services did not stop within {timeout_s:g} s")
        keeper = None
        if not _run(where):
            if absent := absent_packages():
                return _failed(
                    where,
                    f"the services are not installed here: {', '.join(absent)} are absent."
                    f" {install_command('services')} installs them",
                )
            keeper = _spawn_keeper(where)
        for _ in _looks(until_ns, "the collector and the analyzer to start"):
            if _run(where) and (holder(where.run / KEEPER) is None or (where.run / READY).exists()):
                _served.add(where.run)
                return True
            if keeper is not None and _has_ended(keeper):
                keeper = None  # another one is first, or its services have ended
            if keeper is None and not _run(where) and holder(where.run / KEEPER) is None:
                return _failed(where, "they have ended")
    except OSError as wrong:
        return _failed(where, str(wrong))
    return _failed(where, f"they did not answer within {timeout_s:g} s")


def start_if_asked() -> bool:
    """Start the services if ``ZEUS_STREAM_START`` says so. Return whether those asked for have answered."""
    if os.environ.get("ZEUS_STREAM_START", "").lower() in YES:
        start()
    return bool(_served)


def print_cost(run: str) -> None:
    """Print in one line what a run cost, unless ``ZEUS_STREAM_QUIET``."""
    if _quiet():
        return
    import subprocess  # noqa: PLC0415  (few scripts come here)

    command = python_child("zeus_stream.cli.running.run_summary", run)
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, timeout=COST_S, check=False)  # noqa: S603  (ours)
    except (OSError, subprocess.TimeoutExpired) as wrong:
        say(f"the cost of this run is not known yet: {wrong}. More: zeus-stream report {run}")


def _quiet() -> bool:
    return os.environ.get("ZEUS_STREAM_QUIET", "").lower() in YES


def say(sentence: str) -> None:
    """Print a sentence to stderr, under our name."""
    with suppress(OSError, ValueError, AttributeError):  # the script has closed its stderr
        sys.stderr.write(f"zeus-stream: {sentence}\n")
        sys.stderr.flush()


def _looks(until_ns: int, waited_for: str) -> Iterator[None]:
    """Yield again and again until then, and print once what is waited for."""
    began_ns = monotonic_ns()
    said = _quiet()
    while (now_ns := monotonic_ns()) < until_ns:
        if not said and now_ns - began_ns > SAYS_S * 1e9:
            said = True
            say(f"waiting for {waited_for}: {(until_ns - began_ns) / 1e9:.0f} s at most ...")
        yield
        time.sleep(LOOK_S)


def _listens(path: Path) -> bool:
    """Tell whether a process listens at a socket file that this user may use."""
    import socket  # noqa: PLC0415  (few scripts come here)

    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(str(path))
        except OSError:
            return False
    return True


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
    for _ in _looks(until_ns, "the services of a script before to stop"):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            _held[path] = lock
            return True
    os.close(lock)
    return False


def _spawn_keeper(where: Places) -> int:
    """Start a keeper, and return its process. If there is one already, the new one ends at once."""
    log = open_own(where.run / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
        actions = [*nothing, (os.POSIX_SPAWN_DUP2, log, 2)]
        command = python_child("zeus_stream.cli.keeper")
        return os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsid=True)
    finally:
        os.close(log)


def _has_ended(keeper: int) -> bool:
    try:
        return os.waitpid(keeper, os.WNOHANG)[0] != 0
    except ChildProcessError:  # the script has the kernel wait for its children, or has waited for it
        return True


def _failed(where: Places, why: str) -> bool:
    import logging  # noqa: PLC0415  (few scripts come here)

    try:
        lines = read_own(where.run / LOG, LOG_BYTES).decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    reasons = [line.removeprefix("zeus-stream: ") for line in lines if line.startswith("zeus-stream: ")]
    logging.getLogger("zeus_stream").warning(
        "zeus-stream: start: could not start a collector and an analyzer: %s."
        " Training goes on unmeasured. Try `zeus-stream doctor`.",
        ": ".join((why, *(reasons or lines)[-1:])).rstrip("."),
    )
    return False
