"""Runs a command with a collector and an analyzer around it, and says what it cost.

Those that run already are used and left running; the others are started here, in sessions of their own
so that a Ctrl-C meant for the command does not reach them, and stopped at the end.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, Self

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import RefusedError, SettingsError, UnreachableError
from zeus_stream.paths import Places, holder, places
from zeus_stream.reports.run_cost import Summary, print_summary, print_unpublished, summarize
from zeus_stream.settings import Settings, spelled
from zeus_stream.transport.client import Connection, status

LOOK_S = 0.02
"""Between two looks at whatever is waited for."""
STARTS_S = 60.0
PUBLISHES_S = 5.0
"""After the command, for the first word of its run to reach the archive."""
CLOSES_S = 10.0
"""After the command, for its run to be closed: the readings past its end have to come in."""
STOPS_S = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(settings: Settings, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Return the command's exit code, 128 + n when a signal n ended it.

    The environment names the run (ZEUS_STREAM_RUN), unless it did already: all ranks that the command
    starts share it.

    Raises:
        UnreachableError: collector or analyzer do not answer; the sentence holds their last words.
        SettingsError: the command cannot be started.
    """
    where = places(environ)
    environment = {**environ, **as_environment(settings)}
    name = environment.setdefault("ZEUS_STREAM_RUN", f"run-{secrets.token_hex(4)}")
    with Signals() as signals, services(where, environment, signals) as started:
        if signals.told is not None:
            return 128 + signals.told
        code = carry_out(command, environment, where, signals)
        try:
            summary = _wait_for_summary(Connection(where), name, signals)
        except (RefusedError, UnreachableError) as wrong:
            sys.stderr.write(f"zeus-stream: {wrong}\n")
            return code
        archive = settings.archive or where.archive
        if summary is None:
            print_unpublished(sys.stderr)
        else:
            print_summary(summary, archive, how_to_ask(started, archive), sys.stderr)
        return code


@contextmanager
def services(
    where: Places, environment: Mapping[str, str], signals: "Signals"
) -> Iterator[Sequence["Service"]]:
    """Start the collector and analyzer that do not run yet, and stop at the end those that were started.

    Raises UnreachableError: they do not answer; the sentence holds their last words.
    """
    with ExitStack() as held:
        started = [
            held.enter_context(_service(process, verb, environment))
            for process, verb in (("collector", "collect"), ("analyzer", "analyze"))
            if holder(where.run / f"{process}.lock") is None
        ]
        _wait_for_answers(where, started, signals)
        yield started


def how_to_ask(started: Sequence["Service"], archive: Path) -> str:
    """Return the command that answers SQL once these services have been stopped."""
    ends = any(service.name == "analyzer" for service in started)
    return f"zeus-stream sql --archive {archive}" if ends else "zeus-stream sql"


def as_environment(settings: Settings) -> dict[str, str]:
    """Return the variables that give another process the same settings."""
    return {f"ZEUS_STREAM_{name.upper()}": value for name, value in spelled(settings).items()}


class Signals:
    """SIGINT, SIGTERM and SIGHUP are noted, and passed on to the command while there is one."""

    def __init__(self) -> None:
        self.told: int | None = None
        """The first signal that was not passed on."""
        self._command: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def passed_to(self, command: "subprocess.Popen[bytes]") -> Iterator[None]:
        self._command = command
        if self.told is not None:
            command.send_signal(self.told)
            self.told = None
        try:
            yield
        finally:
            self._command = None

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if self._command is None:
            self.told = self.told or number
        elif number != signal.SIGINT or not _in_foreground():
            self._command.send_signal(number)


def _in_foreground() -> bool:
    """Tell whether a Ctrl-C comes from the terminal, which gives it to the command as well."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # there is no terminal
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


@dataclass(frozen=True, slots=True)
class Service:
    """A collector or analyzer that was started here."""

    name: str
    process: "subprocess.Popen[bytes]"
    words: IO[bytes]
    """What it wrote to stdout and stderr."""

    def failed(self, where: Places) -> bool:
        """Tell whether it ended, unless another was faster and does its work."""
        return self.process.poll() is not None and holder(where.run / f"{self.name}.lock") is None

    def last_words(self) -> str:
        self.words.seek(0)
        return self.words.read().decode(errors="replace")[-4_000:].strip()


@contextmanager
def _service(name: str, verb: str, environment: Mapping[str, str]) -> Iterator[Service]:
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(  # noqa: S603  (this interpreter, this package)
            [sys.executable, "-m", "zeus_stream", verb],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            start_new_session=True,
        )
        try:
            yield Service(name, process, words)
        finally:
            process.terminate()
            try:
                process.wait(STOPS_S)
            except subprocess.TimeoutExpired:
                process.kill()  # what it changed is restored by its guard, or at its next start
                process.wait()


def _wait_for_answers(where: Places, started: Sequence[Service], signals: Signals) -> None:
    silent = ["collector", "analyzer"]

    def all_answer() -> bool:
        if silent and _answers(where, silent[0]):
            del silent[0]
        return not silent or any(service.failed(where) for service in started)

    until(all_answer, STARTS_S, signals)
    if silent and signals.told is None:
        said = [f"\n{words}" for service in started if (words := service.last_words())]
        raise UnreachableError(
            f"run: could not start: the {' and the '.join(silent)} did not answer in {where.run}."
            f" Try `zeus-stream doctor`.{''.join(said)}"
        )


def _answers(where: Places, process: str) -> bool:
    try:
        status(where, process, timeout_s=0.5)
    except UnreachableError:
        return False
    return True


def carry_out(command: Sequence[str], environment: Mapping[str, str], where: Places, signals: Signals) -> int:
    """Run the user's command to its end and return its exit code, 128 + n when a signal n ended it.

    Raises SettingsError: it cannot be started.
    """
    # A script looks for root's collector first: it shall find this one.
    environment = {**environment, "ZEUS_STREAM_DIR": str(where.run)}
    try:
        process = subprocess.Popen(command, env=environment)  # noqa: S603  (the user's own command)
    except OSError as wrong:
        raise SettingsError(
            f"{command[0]}: could not be started: {wrong.strerror}."
            " Give the command as you would without zeus-stream, after `--`."
        ) from wrong
    with signals.passed_to(process):
        code = process.wait()
    return code if code >= 0 else 128 - code


def _wait_for_summary(connection: Connection, name: str, signals: Signals) -> Summary | None:
    """Return what the archive says of a run once it is closed, or at the latest after CLOSES_S."""
    found: list[Summary] = []

    def closed() -> bool:
        if summary := summarize(connection.sql, name):
            found[:] = [summary]
        return bool(found and found[0].closed)

    until(lambda: closed() or bool(found), PUBLISHES_S, signals)
    if found:
        until(closed, CLOSES_S, signals)
    return found[0] if found else None


def until(condition: Callable[[], bool], timeout_s: float, signals: Signals) -> None:
    """Wait for a condition, a signal, or the time."""
    end_ns = monotonic_ns() + round(timeout_s * 1e9)
    while not condition() and signals.told is None and monotonic_ns() < end_ns:
        time.sleep(LOOK_S)
