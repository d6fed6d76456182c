"""Run a command with a collector and an analyzer, and print what it cost.

Services that run already are used and left running. Others are started here, and are stopped at the end or
when this process is killed. The command begins once the collector answers; the analyzer starts beside it.
"""

import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from signal import SIGINT

from msgspec import Struct

from zeus_stream.cli.running.beside_command import energy_watch, lacking_package, session, web_page
from zeus_stream.cli.running.checks import check, say_ignored
from zeus_stream.cli.running.child_services import ServicesOfCommand, services
from zeus_stream.cli.running.run_summary import runs_begun, sessions_begun, so_far, wait_for_summary
from zeus_stream.cli.running.signals import Left, Signals
from zeus_stream.cli.running.waits import Late, until
from zeus_stream.errors import SettingsError, UnreachableError, ZeusStreamError, explaining
from zeus_stream.integrations.run_budget import budget_of
from zeus_stream.own_services import say
from zeus_stream.paths import Places, places
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.settings import Settings, spelled
from zeus_stream.training.run_started import describe_command
from zeus_stream.transport.client import Connection, ask_now

PAUSED = -1
"""In place of an exit code: the command was stopped, to be started again."""
DEVICES_S = 3.0
"""Longest wait for a collector that has just started to find its devices."""
TURN_S = 1.0
"""Longest time for which a signal that came just before the wait for the command stays unseen."""
LEAVES_S = 1.0
"""Longest wait for the end of a command that received a second Ctrl-C."""
NO_GPU = "Without a GPU, try simulated ones: --device simulated:v100x1."


def run(
    settings: Settings,
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    web: bool = False,
    given: Mapping[str, Sequence[str]],
) -> int:
    """Run a command and print its cost to stderr. Return its exit code, 128 + n if signal n ended it.

    All ranks that the command starts share one run: ZEUS_STREAM_RUN, which is set here unless it was set.
    What prevents the measurement is printed and does not prevent the command. ``given``: flags on the
    command line, each with its services. Raises SettingsError and StorageError: nothing was started.
    """
    where = places(environ)
    check(settings, command, where)
    environment = {**environ, **as_environment(settings)}
    budget = budget_of(environment)
    name = environment.setdefault("ZEUS_STREAM_RUN", f"run-{secrets.token_hex(4)}")
    with Signals() as signals, ExitStack() as held:
        try:
            own = held.enter_context(services(where, environment, signals, ["collector"]))
            say_ignored(given, own.absent, where)
            found = find_devices(where, signals)
        except ZeusStreamError as wrong:
            say(f"{wrong}\nThe command runs unmeasured.")
            return 128 + signals.told if signals.told else carry_out(command, environment, where, signals)
        if trouble := why_no_device(found):
            say(f"{trouble}\n{NO_GPU} The command runs without measurements.")
        if web and signals.told is None:
            held.enter_context(web_page(environment, signals))
        if signals.told is not None:
            return 128 + signals.told
        with energy_watch(budget, Connection(where), name):
            code = carry_out(command, environment, where, signals)
        try:
            with signals.leavable():
                if not signals.leaves:
                    _report(command, name, code, found, settings, where, own, signals)
        except Left:
            pass
        except Late:
            say(so_far(where, name, how_to_ask(own, settings, where, "report")))
        except ZeusStreamError as wrong:
            say(str(wrong))
        if signals.leaves:
            asks = how_to_ask(own, settings, where, "report")
            say(f"left without the report. `{asks} {name}` prints what is archived.")
        return code


def _report(
    command: Sequence[str],
    name: str,
    code: int,
    found: Snapshot,
    settings: Settings,
    where: Places,
    own: ServicesOfCommand,
    signals: Signals,
) -> None:
    """Print what a command cost, or why not. Raises ZeusStreamError; Late and Left end the wait.

    ``found``: the collector's answer before the command.
    """
    from zeus_stream.questions.run_questions import COMMAND
    from zeus_stream.screens.text.run_cost import ended_by, print_others, print_summary, print_unpublished

    begun = sessions_begun(found)
    failed = ended_by(code) if code else None
    if failed is not None:
        started = describe_command(f"{name}{COMMAND}", command[0])
        with session(where, started, lambda _cause, sentence: say(sentence), failed):
            pass
        begun = begun if begun is None else begun + 1  # that was a session too
    own.wait_for(["analyzer"])
    summary = wait_for_summary(where, name, signals, begun)
    if summary is None:
        lacking, behind = lacking_package(command), behind_s(where)
        if others := runs_begun(where, found.wall_ns):
            print_others(sys.stderr, name, others, how_to_ask(own, settings, where, "report"))
        else:
            print_unpublished(sys.stderr, lacking, behind_s=behind, failed=failed)
        return
    archive = settings.archive or where.archive
    print_summary(
        summary,
        archive if "analyzer" in own.absent else None,
        how_to_ask(own, settings, where, "sql"),
        sys.stderr,
        failed=failed,
    )


def find_devices(where: Places, signals: Signals, same_looks: int = 1) -> Snapshot:
    """Wait until the collector has found its devices, and return its last answer. Raises UnreachableError.

    ``same_looks``: checks in a row that must give the same number: more are sure to see all devices.
    """
    answers: list[Snapshot] = []

    def found() -> bool:
        answers.append(ask_now(where, process="collector"))
        numbers = [len(each.gpus) + len(each.parts) for each in answers[-same_looks:]]
        return numbers == numbers[-1:] * same_looks if numbers[-1] else bool(why_no_device(answers[-1]))

    until(found, DEVICES_S, signals, "the collector to find its devices")
    return answers[-1]


def why_no_device(now: Snapshot) -> str:
    """Return why a collector has no device. Empty: it has one, or does not say."""
    return "" if now.gpus or now.parts else next((host.trouble for host in now.hosts), "")


def how_to_ask(own: ServicesOfCommand, settings: Settings, where: Places, verb: str) -> str:
    """Return the command, ``sql`` or ``report``, that answers once the services started here have ended."""
    archive = settings.archive or where.archive
    usual = settings.dir is None and archive == where.archive
    ends = "analyzer" in own.absent
    named = f" --archive {shlex.quote(str(archive))}" if ends and not usual else ""
    return f"zeus-stream {verb}{named}"


def as_environment(settings: Struct) -> dict[str, str]:
    """Return the environment variables that give another process the same settings."""
    return {f"ZEUS_STREAM_{name.upper()}": value for name, value in spelled(settings).items()}


def carry_out(
    command: Sequence[str],
    environment: Mapping[str, str],
    where: Places,
    signals: Signals,
    stop_ns: int | None = None,
) -> int:
    """Run a command to its end; a second Ctrl-C leaves it. Return its exit code, 128 + n after signal n.

    At ``stop_ns`` (UTC) it gets a SIGTERM. Its end after that is waited for, and gives `PAUSED`.

    Raises SettingsError: it cannot be started.
    """
    # A script looks for the collector of root first; this variable leads it to ours.
    environment = {**environment, "ZEUS_STREAM_DIR": str(where.run)}
    cure = "Give the command as you would without zeus-stream, after `--`."
    with explaining(SettingsError, f"{command[0]}: could not be started", cure):
        process = subprocess.Popen(command, env=environment)  # noqa: S603  (the user's own command)
    with signals.passed_to(process):
        try:
            with signals.leavable():
                code, stopped = _wait_until(process, stop_ns)
        except Left:
            try:
                code = process.wait(LEAVES_S)
            except subprocess.TimeoutExpired:
                say(f"the command (process {process.pid}) has not ended. It goes on unmeasured.")
                return 128 + SIGINT
        else:
            if stopped and not signals.passed:
                return PAUSED
    if code < 0:
        return 128 - code
    return 128 + signals.passed if code and signals.passed else code


def _wait_until(process: "subprocess.Popen[bytes]", stop_ns: int | None) -> tuple[int, bool]:
    """Return the exit code of a process, and whether it was stopped.

    Python handles a signal that came just before a system call after it: no wait is longer than `TURN_S`.
    """
    stopped = False
    while True:
        left_s = TURN_S
        if stop_ns is not None and not stopped:
            left_s = min(left_s, (stop_ns - time.time_ns()) / 1e9)
        try:
            return process.wait(max(0.0, left_s)), stopped
        except subprocess.TimeoutExpired:
            if left_s <= 0:
                process.terminate()
                stopped = True


def behind_s(where: Places) -> float:
    """Return how long the oldest data waits in the analyzer, s; 0 if the analyzer does not answer."""
    try:
        return (ask_now(where).lag_ms or 0) / 1000
    except UnreachableError:
        return 0.0
