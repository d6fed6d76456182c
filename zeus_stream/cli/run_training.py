"""Run a command with a collector and an analyzer, and print what it cost.

Services that run already are used and left running. Others are started here, in sessions of their own, so
that a Ctrl-C for the command does not reach them, and are stopped at the end.
They also stop when this process is killed.
"""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from msgspec import Struct

from zeus_stream.cli.running.command_end import lacking_package, record_exit
from zeus_stream.cli.running.energy_watch import energy_watch
from zeus_stream.cli.running.signals import Signals
from zeus_stream.cli.running.web_page import web_page
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import RefusedError, SettingsError, UnreachableError, ZeusStreamError
from zeus_stream.integrations.run_budget import budget_of
from zeus_stream.paths import Places, holder, places
from zeus_stream.screens.text.run_cost import (
    Summary,
    ended_by,
    print_summary,
    print_unpublished,
    summarize,
)
from zeus_stream.service_packages import python_child
from zeus_stream.settings import Settings, spelled
from zeus_stream.transport.client import Connection, ask_now, status
from zeus_stream.views.undecided import BEHIND_S

LOOK_S, LOOK_MOST_S = 0.02, 0.5
"""Time between two checks of a condition."""
STARTS_S = 60.0
PUBLISHES_S = 5.0
"""Longest wait, after the command, for the first row of its run in the archive."""
CLOSES_S = 10.0
"""Longest wait, after the command, for its run to be closed: readings past its end have to arrive."""
BEHIND_MOST_S = 60.0
"""Longest wait beyond these while the analyzer is behind."""
DEVICES_S = 3.0
"""Longest wait for a collector that has just started to find its devices."""
STOPS_S = 5.0
NO_GPU = "Without a GPU, try simulated ones: --device simulated:v100x1."


def run(settings: Settings, command: Sequence[str], environ: Mapping[str, str], *, web: bool = False) -> int:
    """Run a command and print its cost to stderr. Return its exit code, 128 + n if signal n ended it.

    All ranks that the command starts share one run: ZEUS_STREAM_RUN, which is set here unless it was set.
    What prevents the measurement is printed and does not prevent the command. ``web``: serve the
    page until the cost is printed.

    Raises:
        SettingsError: a setting is wrong, or the command cannot be started. Nothing was started.
    """
    check_settings(settings)
    check_command(command)
    where = places(environ)
    environment = {**environ, **as_environment(settings)}
    budget = budget_of(environment)
    name = environment.setdefault("ZEUS_STREAM_RUN", f"run-{secrets.token_hex(4)}")
    with Signals() as signals, ExitStack() as held:
        started: Sequence[Service] = ()
        try:
            started = held.enter_context(services(where, environment, signals))
            _, trouble = find_devices(where, signals)
        except ZeusStreamError as wrong:
            say(f"{wrong}\nThe command runs unmeasured.")
            return 128 + signals.told if signals.told else carry_out(command, environment, where, signals)
        if trouble:
            say(f"{trouble}\n{NO_GPU} The command runs without measurements.")
        if web and signals.told is None:
            held.enter_context(web_page(environment, signals, say))
        if signals.told is not None:
            return 128 + signals.told
        with energy_watch(budget, Connection(where), name, say):
            code = carry_out(command, environment, where, signals)
        if code:
            record_exit(where, name, command[0], ended_by(code), say)
        try:
            summary = _wait_for_summary(where, name, signals)
        except (RefusedError, UnreachableError) as wrong:
            say(str(wrong))
            return code
        archive = settings.archive or where.archive
        if summary is None:
            print_unpublished(
                sys.stderr,
                lacking_package(command),
                behind_s=behind_s(where),
                failed=ended_by(code) if code else None,
            )
        else:
            print_summary(
                summary,
                archive,
                how_to_ask(started, settings, where),
                sys.stderr,
                failed=ended_by(code) if code else None,
            )
        return code


def check_settings(settings: Settings) -> None:
    """Check everything that the services would refuse. Raises SettingsError, before anything is started."""
    from analyzers.batch_size.registry import parse as parse_policy
    from analyzers.power_limit.run_settings import RunSettings
    from analyzers.power_limit.selectors import parse as parse_selector
    from collectors.devices.registry import open_bus

    RunSettings.of(settings, parse_selector(settings.select))
    parse_policy(settings.policy)
    open_bus(settings.device, Path(), cpu=settings.cpu).close()


def check_command(command: Sequence[str]) -> None:
    """Check that a command can be started. Raises SettingsError."""
    if shutil.which(command[0]) is None:
        raise SettingsError(
            f"{command[0]}: could not be started: there is no such program."
            " Give the command as you would without zeus-stream, after `--`."
        )


def find_devices(where: Places, signals: Signals, same_looks: int = 1) -> tuple[int, str]:
    """Wait until the collector has found its devices. Return their number, and the trouble if it is 0.

    Args:
        where: the setup of the collector.
        signals: end the wait.
        same_looks: checks in a row that must give the same number: more are sure to see all devices.

    Raises:
        UnreachableError: the collector does not answer.
    """
    counts: list[int] = []
    trouble = ""

    def found() -> bool:
        nonlocal trouble
        now = ask_now(where, process="collector")
        counts.append(len(now.gpus) + len(now.parts))
        trouble = next((host.trouble for host in now.hosts), "")
        if not counts[-1]:
            return bool(trouble)
        return counts[-same_looks:] == [counts[-1]] * same_looks

    until(found, DEVICES_S, signals)
    return (counts[-1], "" if counts[-1] else trouble) if counts else (0, "")


def say(sentence: str) -> None:
    """Print a sentence to stderr, under our name."""
    sys.stderr.write(f"zeus-stream: {sentence}\n")
    sys.stderr.flush()


@contextmanager
def services(
    where: Places, environment: Mapping[str, str], signals: Signals
) -> Iterator[Sequence["Service"]]:
    """Start the collector and the analyzer unless they run, and stop at the end those started here.

    Raises UnreachableError: one does not answer; the sentence holds its last output.
    """
    verbs = {"collector": "collect", "analyzer": "analyze"}
    absent = [process for process in verbs if holder(where.run / f"{process}.lock") is None]
    if absent:
        say(f"starting the {' and the '.join(absent)} ...")
    with ExitStack() as held:
        started = [held.enter_context(_service(process, verbs[process], environment)) for process in absent]
        _wait_for_answers(where, started, signals)
        yield started


def how_to_ask(started: Sequence["Service"], settings: Settings, where: Places) -> str:
    """Return the command that answers SQL once these services have been stopped."""
    ends = any(service.name == "analyzer" for service in started)
    archive = settings.archive or where.archive
    usual = settings.dir is None and archive == where.archive
    return f"zeus-stream sql --archive {archive}" if ends and not usual else "zeus-stream sql"


def as_environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables that give another process the same settings."""
    return {f"ZEUS_STREAM_{name.upper()}": value for name, value in spelled(settings).items()}


class Service(Struct, frozen=True):
    """A collector or an analyzer that was started here."""

    name: str
    process: "subprocess.Popen[bytes]"
    words: IO[bytes]
    """The file that receives its stdout and stderr."""

    def failed(self, where: Places) -> bool:
        """Tell whether it ended, and no other process took its place."""
        return self.process.poll() is not None and holder(where.run / f"{self.name}.lock") is None

    def last_words(self) -> str:
        self.words.seek(0)
        return self.words.read().decode(errors="replace")[-4_000:].strip()


@contextmanager
def _service(name: str, verb: str, environment: Mapping[str, str]) -> Iterator[Service]:
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(  # noqa: S603  (this interpreter, this package)
            python_child("zeus_stream", verb, "--parent-pid", str(os.getpid())),
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
                process.kill()  # its watchdog, or its next start, restores the limits
                process.wait()


def _wait_for_answers(where: Places, started: Sequence[Service], signals: Signals) -> None:
    silent = ["collector", "analyzer"]

    def all_answer() -> bool:
        if silent and _answers(where, silent[0]):
            del silent[0]
        return not silent or any(service.failed(where) for service in started)

    until(all_answer, STARTS_S, signals)
    if silent and signals.told is None:
        outputs = [f"\n{words}" for service in started if (words := service.last_words())]
        raise UnreachableError(
            f"run: could not start: the {' and the '.join(silent)} did not answer in {where.run}."
            f" Try `zeus-stream doctor`.{''.join(outputs)}"
        )


def _answers(where: Places, process: str) -> bool:
    try:
        status(where, process, timeout_s=0.5)
    except UnreachableError:
        return False
    return True


def carry_out(command: Sequence[str], environment: Mapping[str, str], where: Places, signals: Signals) -> int:
    """Run a command to its end. Return its exit code, 128 + n if signal n ended it.

    Raises SettingsError: it cannot be started.
    """
    # A script looks for the collector of root first; this variable leads it to ours.
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


def _wait_for_summary(where: Places, name: str, signals: Signals) -> Summary | None:
    """Return the summary of a run once it is closed, or after CLOSES_S. None: the archive has no such run."""
    found: list[Summary] = []
    connection = Connection(where)

    def closed() -> bool:
        if summary := summarize(connection.sql, name):
            found[:] = [summary]
        return bool(found and found[0].closed)

    until(lambda: closed() or bool(found), PUBLISHES_S, signals)
    until(lambda: closed() or bool(found) or behind_s(where) <= BEHIND_S, BEHIND_MOST_S, signals)
    if found:
        until(closed, CLOSES_S, signals)
        until(lambda: closed() or behind_s(where) <= BEHIND_S, BEHIND_MOST_S, signals)
    return found[0] if found else None


def behind_s(where: Places) -> float:
    """Return how long the oldest data waits in the analyzer, s; 0 if the analyzer does not answer."""
    try:
        return (ask_now(where).lag_ms or 0) / 1000
    except UnreachableError:
        return 0.0


def until(condition: Callable[[], bool], timeout_s: float, signals: Signals) -> None:
    """Wait until a condition is true, a signal arrives, or the time is over."""
    end_ns = monotonic_ns() + round(timeout_s * 1e9)
    asked_ns = monotonic_ns()
    while not condition() and signals.told is None and (now_ns := monotonic_ns()) < end_ns:
        # A look costs collector or analyzer as long as it costs us: they have other work.
        time.sleep(max(LOOK_S, min((now_ns - asked_ns) / 1e9, LOOK_MOST_S)))
        asked_ns = monotonic_ns()
