"""``python -m zeus_stream`` and ``zeus-stream``: the command line."""

import os
import signal
import sys
import threading
from typing import NoReturn

from zeus_stream.service_packages import (
    ANALYZER,
    COLLECTOR,
    SCREENS,
    absent_packages,
    collect_seldom,
    import_services_first,
    install_command,
)

AGAIN_S = 0.01
"""After which a Ctrl-C comes again that Python has dropped."""


def main() -> None:
    """Run the command line in a process that finds our services first."""
    if starting := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during imports: no traceback
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by who started this, it would lose exit codes
    import_services_first()
    collect_seldom()
    if absent := absent_packages(COLLECTOR):
        _fail(*absent)
    from zeus_stream.cli.main import main as run  # noqa: PLC0415  (it may import the services)

    if starting:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = repeat_interrupt
    try:
        run(prog_name="zeus-stream")
    except ModuleNotFoundError as wrong:
        if wrong.name is None or wrong.name.partition(".")[0] not in (*ANALYZER, *SCREENS):
            raise
        _fail(*absent_packages((*ANALYZER, *SCREENS)))
    finally:
        if starting:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # the same while Python ends


def repeat_interrupt(dropped: "sys.UnraisableHookArgs") -> None:
    """Send a Ctrl-C again that came where Python drops an exception, as in a callback of its imports.

    It would be without effect, and Python would print a traceback. Other exceptions are printed as usual.
    """
    if isinstance(dropped.exc_value, KeyboardInterrupt):
        threading.Timer(AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(dropped)


def _fail(*absent: str) -> NoReturn:
    sys.exit(
        f"zeus-stream: could not start: {sys.executable} lacks {', '.join(absent)}."
        f" Install the command and its services: {install_command('services')}."
    )


if __name__ == "__main__":
    main()
