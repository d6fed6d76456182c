"""The keeper: a process that runs a collector and an analyzer while scripts ask for them.

    python -m zeus_stream.cli.keeper

`zeus_stream.start()` starts it. Each script holds a shared lock; when none is left, the keeper takes the lock
alone and stops the services. If the keeper is killed, the kernel ends them.
"""

import fcntl
import os
import time
from contextlib import ExitStack
from typing import IO

from zeus_stream.cli.running.child_services import STARTS_S, services
from zeus_stream.cli.running.signals import Signals
from zeus_stream.cli.running.waits import until
from zeus_stream.errors import RefusedError, UnreachableError, ZeusStreamError
from zeus_stream.own_services import KEEPER, READY, SCRIPTS, say
from zeus_stream.paths import Places, claim, places, prepare
from zeus_stream.transport.client import ask_now

LINGER_S = 5.0
"""After the last script: its run is measured to the end, and the next script finds the services running."""


def main() -> None:
    """Keep the services until no script asks for them. Another keeper's setup is left to it."""
    where = places(os.environ)
    prepare(where)
    try:
        lock = claim(where.run / KEEPER, "keeper")
    except RefusedError:
        return
    os.chdir("/")
    ready, signals = where.run / READY, Signals()  # it handles none: they end the keeper, and so the services
    ready.unlink(missing_ok=True)
    with (where.run / SCRIPTS).open("r+") as scripts, lock, ExitStack() as held:
        held.callback(ready.unlink, missing_ok=True)
        try:
            # They set a limit if a script asks, unless somebody chose.
            held.enter_context(services(where, {"ZEUS_STREAM_SELECT": "script", **os.environ}, signals))
            until(lambda: _has_looked(where), STARTS_S, signals)
        except ZeusStreamError as wrong:
            say(str(wrong))
            return
        ready.touch()
        _wait_for_scripts(scripts)


def _has_looked(where: Places) -> bool:
    """Tell whether the collector has looked for devices."""
    try:
        now = ask_now(where, process="collector")
    except UnreachableError:  # it is busy
        return False
    return bool(now.gpus or now.parts or any(host.trouble for host in now.hosts))


def _take(scripts: IO[str]) -> bool:
    """Take the lock of the scripts, unless one holds it."""
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


if __name__ == "__main__":
    main()
