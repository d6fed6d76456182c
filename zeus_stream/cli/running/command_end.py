"""The end of a command: stored if it failed, and explained if it published nothing."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from zeus_stream.clock import monotonic_ns
from zeus_stream.paths import Places
from zeus_stream.protocol.events import RunEnded
from zeus_stream.screens.html.questions import COMMAND
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.run_started import describe_command
from zeus_stream.training.sender import EventSender

ANSWERS_S = 5.0
_PYTHON = re.compile(r"python\d*(\.\d+)?")


def record_exit(where: Places, run: str, program: str, how: str, say: Callable[[str], None]) -> None:
    """Store how a command failed, in ``runs``, under the name of its run and `COMMAND`."""
    outbox = Outbox(describe_command(f"{run}{COMMAND}", program), lambda: os.urandom(12).hex())
    sender = EventSender(
        outbox, (where.publish,), lambda _cause, sentence: say(sentence), lambda wrong: say(repr(wrong))
    )
    sender.start()
    outbox.close((RunEnded, monotonic_ns(), how))
    sender.stop()


def lacking_package(command: Sequence[str]) -> str | None:
    """Return the Python of a command if it cannot import zeus_stream. None: it can, or there is no Python."""
    program = shutil.which(command[0]) or command[0]
    if not _PYTHON.fullmatch(PurePath(program).name):
        try:
            with Path(program).open("rb") as file:
                line = file.readline(500)
        except OSError:
            return None
        words = line.removeprefix(b"#!").decode(errors="replace").split() if line.startswith(b"#!") else []
        found = [word for word in words if _PYTHON.fullmatch(PurePath(word).name)]
        if not found:
            return None
        program = found[0]
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('zeus_stream') is None)"
    try:
        done = subprocess.run([program, "-c", ask], capture_output=True, timeout=ANSWERS_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return program if done.returncode == 1 else None
