"""Parts of a command's run: its session, its web page, its energy budget, and why it published nothing."""

import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath

from zeus_stream.cli.running.child_services import ChildService
from zeus_stream.cli.running.signals import Signals
from zeus_stream.cli.running.waits import until
from zeus_stream.clock import monotonic_ns
from zeus_stream.integrations.run_budget import RunBudget
from zeus_stream.own_services import say
from zeus_stream.paths import Places
from zeus_stream.protocol.events import RunEnded, RunStarted
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.sender import EventSender
from zeus_stream.transport.client import Connection

PAGE_STARTS_S = 20.0
PAGE_STOPS_S = 3.0
OPEN = "web: open "
"""The line of the page that has its address begins so."""
EVERY_S = 5.0
"""Between two looks at the energy of a run."""
UNKNOWN_LOOKS = 4
"""In a row without an energy, until a warning: the analyzer and the first readings may take a while."""
ANSWERS_S = 5.0
_PYTHON = re.compile(r"python\d*(\.\d+)?")


@contextmanager
def session(
    where: Places, started: RunStarted, warn: Callable[[str, str], None], failure: str | None = None
) -> Iterator[Outbox]:
    """Publish a session of this process to the collector, until the end of the block.

    ``warn`` gets a cause and a sentence. ``failure``: how the command failed; None: it did not.
    """

    def fail(wrong: Exception) -> None:
        say(f"could not publish: {wrong!r}.")

    outbox = Outbox(started, lambda: os.urandom(12).hex())
    sender = EventSender(outbox, (where.publish,), warn, fail)
    sender.start()
    try:
        yield outbox
    finally:
        outbox.close((RunEnded, monotonic_ns(), failure))
        sender.stop()


@contextmanager
def energy_watch(budget: RunBudget | None, connection: Connection, run: str) -> Iterator[None]:
    """Print once that a run is forecast to exceed its budget, that it is near it, and that it is over it.

    Without a budget nothing is watched.
    """
    if budget is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        said: set[str] = set()
        unknown = 0
        while not ended.wait(EVERY_S):
            state, sentence = budget.look(lambda: connection, run)
            unknown = unknown + 1 if state in ("unknown", "trouble") else 0
            if state and state not in said and unknown in (0, UNKNOWN_LOOKS):
                said.add(state)
                say(sentence)

    thread = threading.Thread(target=watch, name="energy watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(2 * EVERY_S)


@contextmanager
def web_page(environment: Mapping[str, str], signals: Signals) -> Iterator[None]:
    """Serve the page at a free port of this host while the block runs, and print its address.

    What prevents it is printed, and prevents nothing else.
    """
    # It asks the analyzer. A named archive would be shown as a file, which is not live.
    clean = {name: value for name, value in environment.items() if name != "ZEUS_STREAM_ARCHIVE"}
    with tempfile.TemporaryFile() as words:
        page = ChildService.start("web page", clean, words, "web", "--listen", "127.0.0.1:0")
        try:
            say(_wait_for_address(page, signals))
            yield
        finally:
            page.process.terminate()
            try:
                page.process.wait(PAGE_STOPS_S)
            except subprocess.TimeoutExpired:
                page.process.kill()
                page.process.wait()


def _wait_for_address(page: ChildService, signals: Signals) -> str:
    """Return the sentence that has the address, or why there is none."""

    def address() -> str | None:
        lines = page.last_output().splitlines()
        return next((line.removeprefix(OPEN) for line in lines if line.startswith(OPEN)), None)

    until(
        lambda: address() is not None or page.process.poll() is not None,
        PAGE_STARTS_S,
        signals,
        "the web page",
    )
    if (found := address()) is not None:
        return f"watch it at {found}"
    why = page.last_output() or "it did not answer"
    return f"run: could not show the web page: {why} The command runs without it."


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
