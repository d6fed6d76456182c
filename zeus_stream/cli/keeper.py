"""The keeper: a process that runs a collector and an analyzer while scripts ask for them.

    python -m zeus_stream.cli.keeper

`zeus_stream.start()` starts it. Each script holds a shared lock; when none is left, the keeper takes the lock
alone and stops the services. If the keeper is killed, the kernel ends them.
"""

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from zeus_stream.cli.running.child_services import VERBS
from zeus_stream.errors import RefusedError, UnreachableError
from zeus_stream.own_services import KEEPER, READY, SCRIPTS
from zeus_stream.paths import Places, claim, holder, places, prepare
from zeus_stream.service_packages import python_child
from zeus_stream.transport.client import ask_now

LINGER_S = 5.0
"""After the last script: its run is measured to the end, and the next script finds the services running."""
STOPS_S = 10.0
LOOK_S = 0.1


def main() -> None:
    """Keep the services until no script asks for them. Another keeper's setup is left to it."""
    where = places(os.environ)
    prepare(where)
    try:
        lock = claim(where.run / KEEPER, "keeper")
    except RefusedError:
        return
    ready = where.run / READY
    ready.unlink(missing_ok=True)
    with (where.run / SCRIPTS).open("r+") as scripts, lock, ExitStack() as held:
        held.callback(ready.unlink, missing_ok=True)
        # They set a limit if a script asks, unless somebody chose.
        environment = {"ZEUS_STREAM_SELECT": "script", **os.environ}
        locks = {verb: where.run / f"{name}.lock" for name, verb in VERBS.items()}
        started = {
            verb: held.enter_context(_service(verb, environment))
            for verb, lock in locks.items()
            if holder(lock) is None
        }

        def ended() -> bool:
            return any(
                own.poll() is not None and holder(locks[verb]) is None for verb, own in started.items()
            )

        if _answer(where, scripts, ended):
            ready.touch()
        if not ended():
            _wait_for_scripts(scripts)


def _answer(where: Places, scripts: IO[str], ended: Callable[[], bool]) -> bool:
    """Wait until both services answer and the collector has looked for devices, or one has ``ended``."""
    while not _free(scripts) and not ended():
        try:
            now = ask_now(where, process="collector", timeout_s=1.0)
            ask_now(where, timeout_s=1.0)
        except UnreachableError:
            pass
        else:
            if now.gpus or now.parts or any(host.trouble for host in now.hosts):
                return True
        time.sleep(LOOK_S)
    return False


def _free(scripts: IO[str]) -> bool:
    """Tell whether no script holds its lock, and let go of it."""
    if taken := _take(scripts):
        fcntl.flock(scripts, fcntl.LOCK_UN)
    return taken


def _take(scripts: IO[str]) -> bool:
    try:
        fcntl.flock(scripts, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_scripts(scripts: IO[str]) -> None:
    """Return once no script has held its lock for `LINGER_S`. The lock is this process's then."""
    while True:
        fcntl.flock(scripts, fcntl.LOCK_EX)
        fcntl.flock(scripts, fcntl.LOCK_UN)
        time.sleep(LINGER_S)
        if _take(scripts):
            return


@contextmanager
def _service(verb: str, environment: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(  # noqa: S603  (this interpreter, this package)
        python_child("zeus_stream", verb, "--parent-pid", str(os.getpid())),
        env=environment,
        cwd=Path("/"),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOPS_S)
        except subprocess.TimeoutExpired:
            process.kill()  # what it changed is restored by its watchdog
            process.wait()


if __name__ == "__main__":
    main()
