"""The keeper: a process that runs a collector and an analyzer while scripts ask for them.

    python -m zeus_stream.cli.keeper

`zeus_stream.start()` starts it. Each script holds a shared lock; when none is left, the keeper takes the lock
alone and stops the services. A service that ends before is started again. If the keeper is killed, the kernel
ends them.
"""

import fcntl
import os
import time
from contextlib import ExitStack
from typing import IO

from zeus_stream.cli.running.child_services import STARTS_S, VERBS, services
from zeus_stream.cli.running.signals import Signals
from zeus_stream.cli.running.waits import until
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import RefusedError, UnreachableError, ZeusStreamError
from zeus_stream.own_services import KEEPER, READY, SCRIPTS, say
from zeus_stream.paths import Places, claim, holder, places, prepare
from zeus_stream.transport.client import ask_now

LINGER_S = 5.0
"""After the last script: its run is measured to the end, and the next script finds the services running."""
LOOK_S = 1.0
"""Between two looks at the scripts and the services."""
RESTARTS = 3
"""Times at most that services which end too soon are started again; then the next script that asks does."""


def main() -> None:
    """Keep the services until no script asks for them. Another keeper's setup is left to it."""
    where = places(os.environ)
    prepare(where)
    try:
        lock = claim(where.run / KEEPER, "keeper")
    except RefusedError:
        return
    os.chdir("/")
    signals = Signals()  # it handles none: they end the keeper, and so the services
    with (where.run / SCRIPTS).open("r+") as scripts, lock:
        try:
            for _ in range(1 + RESTARTS):
                if not _keep(where, scripts, signals):
                    return
        except ZeusStreamError as wrong:
            say(str(wrong))


def _keep(where: Places, scripts: IO[str], signals: Signals) -> bool:
    """Run the services until no script asks for them. Return whether one of them ended before."""
    ready = where.run / READY
    ready.unlink(missing_ok=True)
    with ExitStack() as held:
        # They set a limit if a script asks, unless somebody chose.
        held.enter_context(services(where, {"ZEUS_STREAM_SELECT": "script", **os.environ}, signals))
        until(lambda: _has_looked(where), STARTS_S, signals)
        held.callback(ready.unlink, missing_ok=True)
        ready.touch()
        return _wait_for_scripts(where, scripts)


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


def _wait_for_scripts(where: Places, scripts: IO[str]) -> bool:
    """Return False once no script has held its lock for `LINGER_S`: the lock is this process's then.

    True: a service has ended while a script asks for it.
    """
    used_ns = monotonic_ns()
    while True:
        time.sleep(LOOK_S)
        if not _take(scripts):
            used_ns = monotonic_ns()
            if any(holder(where.run / f"{name}.lock") is None for name in VERBS):
                return True
        elif monotonic_ns() - used_ns > LINGER_S * 1e9:
            return False
        else:
            fcntl.flock(scripts, fcntl.LOCK_UN)


if __name__ == "__main__":
    main()
