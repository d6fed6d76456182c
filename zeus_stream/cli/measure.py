"""Measures whole GPUs for a while, or while a command runs that need not know of us.

The measuring is one window of a session that computes on no GPU, so it marks no training as sharing one.
Collector and analyzer that run already are used; the others are started for the time being.
"""

import os
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePath

from zeus_stream.cli.run_training import (
    CLOSES_S,
    Service,
    Signals,
    as_environment,
    carry_out,
    how_to_ask,
    services,
    until,
)
from zeus_stream.clock import anchor, boot_id, monotonic_ns
from zeus_stream.errors import RefusedError, UnreachableError, ZeusStreamError
from zeus_stream.paths import Places, places
from zeus_stream.protocol.events import RunEnded, RunStarted, WindowBegan, WindowEnded
from zeus_stream.reports.energy_bill import Bill, bill, print_bill, write_bill
from zeus_stream.settings import Settings
from zeus_stream.training.identity import ALL, listed_gpus, named
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.sender import Courier
from zeus_stream.transport.client import Connection, quoted, status

DEVICES_S = 3.0
"""For a collector that has just started to find its devices."""
SAME_LOOKS = 10
"""Looks at which it had as many: it has found all."""
READY_S = 6.0
"""For every counter to have been seen to change once: before that nothing is known of them."""
WINDOW = 0
_GPUS = """
SELECT len(gpus) AS found, command_reason LIKE '%Not found on this host:%' AS short, (
    SELECT count(DISTINCT gpu) FROM readings WHERE t_hi_ns >= {since_ns} AND seen IN ('changed', 'power')
    AND gpu IN (SELECT unnest(gpus) FROM runs WHERE run = {run})
) AS seen
FROM runs WHERE run = {run}
"""


@dataclass(frozen=True, slots=True)
class Watch:
    """One window over GPUs of this host, of a process that does not compute on them."""

    run: str
    name: str
    gpus: tuple[str, ...]
    """As `identity` writes them."""
    outbox: Outbox
    connection: Connection
    since_ns: int

    def begin(self) -> None:
        self.outbox.put((WindowBegan, monotonic_ns(), WINDOW, self.name))

    def end(self) -> None:
        self.outbox.put((WindowEnded, monotonic_ns(), WINDOW))

    def wait_until_ready(self, signals: Signals) -> None:
        """Wait until the counters of the GPUs have been seen to change.

        Raises RefusedError: the collector does not have all of these GPUs.
        """
        query = _GPUS.format(run=quoted(self.run), since_ns=self.since_ns)
        wanted = 1 if ALL in self.gpus else len(self.gpus)
        found = 0

        def known() -> bool:
            nonlocal found
            for row in self.connection.sql(query).to_pylist():
                found = row["found"]
                return bool(row["short"]) or (found >= wanted and row["seen"] == found)
            return False

        until(known, READY_S, signals)
        if found < wanted and signals.told is None:
            asked = ", ".join(gpu.removeprefix("index:") for gpu in self.gpus)
            raise RefusedError(
                f"measure: could not begin: the collector has {found or 'none'} of the GPUs {asked}."
                " `zeus-stream doctor` lists what there is."
            )

    def bill(self, signals: Signals) -> Bill:
        """Return what the window cost, once the archive has it.

        Raises UnreachableError: it did not within CLOSES_S, or the user would not wait.
        """
        found: list[Bill] = []

        def closed() -> bool:
            if (known := bill(self.connection.sql, self.run, self.name)) is not None:
                found.append(known)
            return bool(found)

        until(closed, CLOSES_S, signals)
        if not found:
            why = f"the analyzer had not measured it after {CLOSES_S:g} s. Look at `zeus-stream status`."
            if signals.told is not None:
                why = f"the wait for it was broken off. Later it is in the archive, as run {self.run}."
            raise UnreachableError(f"measure: could not tell the energy: {why}")
        return found[0]


@contextmanager
def watching(where: Places, job: str, name: str, gpus: Sequence[str], signals: Signals) -> Iterator[Watch]:
    """Open a session at the collector of a setup, once its GPUs can be measured, and end it.

    Raises:
        RefusedError: the collector does not have these GPUs.
        UnreachableError: collector or analyzer do not answer any more.
    """
    _wait_for_devices(where, signals)
    run, now = f"measure-{secrets.token_hex(4)}", anchor()
    asked = listed_gpus(gpus) or (ALL,)
    started = RunStarted(
        now.monotonic_ns, named(job), run, 0, 0, asked, os.getpid(), boot_id(), now.wall_ns, now.error_ns
    )
    outbox = Outbox(started, lambda: os.urandom(12).hex())
    said: set[str] = set()

    def say(cause: str, sentence: str) -> None:
        if cause in {"collector", "silence"}:  # said of trainings, by the publisher's courier
            sentence = f"measure: the collector at {where.publish} takes in nothing any more."
        if sentence not in said:
            said.add(sentence)
            _say(sentence)

    def fail(wrong: Exception) -> None:
        _say(f"measure: could not go on: {wrong!r}.")

    courier = Courier(outbox, (where.publish,), say, fail)
    courier.start()
    try:
        watch = Watch(run, named(name), asked, outbox, Connection(where), now.monotonic_ns)
        watch.wait_until_ready(signals)
        yield watch
    finally:
        outbox.close((RunEnded, monotonic_ns()))
        courier.stop()


def _wait_for_devices(where: Places, signals: Signals) -> None:
    """Wait until the collector has found its devices, so that all means all. Raises RefusedError: none."""
    counts: list[int] = []
    trouble = ""

    def found_all() -> bool:
        nonlocal trouble
        rows = status(where, "collector").rows
        counts.append(sum(name == "refreshes every" for _, name, _ in rows))
        trouble = next((why for section, _, why in rows if section == "devices"), "")
        if not counts[-1]:
            return bool(trouble)
        return counts[-SAME_LOOKS:] == [counts[-1]] * SAME_LOOKS

    until(found_all, DEVICES_S, signals)
    if signals.told is None and not counts[-1]:
        raise RefusedError(f"measure: could not begin: the collector has no GPU. {trouble}".rstrip())


def measure_for(
    seconds: float, settings: Settings, gpus: Sequence[str], environ: Mapping[str, str], *, as_json: bool
) -> int:
    """Measure for so long, or until a signal, and print the bill to stdout. Returns the exit code.

    Raises:
        UnreachableError: collector or analyzer do not answer.
        RefusedError: there are no such GPUs.
    """
    where = places(environ)
    settings = _only_measuring(settings)
    with (
        Signals() as signals,
        services(where, {**environ, **as_environment(settings)}, signals) as started,
        watching(where, "measure", "measure", gpus, signals) as watch,
    ):
        if signals.told is not None:
            return 128 + signals.told
        if sys.stderr.isatty():
            _say(f"measuring for {seconds:g} s; Ctrl-C ends it earlier.")
        watch.begin()
        until(lambda: False, seconds, signals)
        watch.end()
        signals.told = None  # it has ended the measuring; another ends the wait for the answer
        known = watch.bill(signals)
        if as_json:
            write_bill(known, sys.stdout)
        else:
            print_bill(known, _sql(started, settings, where, watch), sys.stdout)
        return 0 if known.missing is None else 1


def measure_command(
    settings: Settings, command: Sequence[str], gpus: Sequence[str], environ: Mapping[str, str]
) -> int:
    """Run a command, print to stderr what the GPUs used meanwhile, and return the command's exit code.

    What keeps us from measuring keeps nobody from running it.

    Raises:
        SettingsError: the command cannot be started.
    """
    where = places(environ)
    settings = _only_measuring(settings)
    environment = {**environ, **as_environment(settings)}
    environment.setdefault("ZEUS_STREAM_RUN", f"run-{secrets.token_hex(4)}")
    job = environ.get("ZEUS_STREAM_JOB") or PurePath(command[0]).name
    with Signals() as signals, ExitStack() as held:
        watch = None
        try:
            started = held.enter_context(services(where, environment, signals))
            watch = held.enter_context(watching(where, job, shlex.join(command), gpus, signals))
        except ZeusStreamError as wrong:
            _say(f"{wrong}\nThe command runs unmeasured.")
        if signals.told is not None:
            return 128 + signals.told
        if watch is None:
            return carry_out(command, environment, where, signals)
        watch.begin()
        code = carry_out(command, environment, where, signals)
        watch.end()
        try:
            known = watch.bill(signals)
        except ZeusStreamError as wrong:
            _say(str(wrong))
        else:
            sys.stderr.write("\n")
            print_bill(known, _sql(started, settings, where, watch), sys.stderr)
        return code


def _only_measuring(settings: Settings) -> Settings:
    """Return settings under which services that are started here change no device."""
    return replace(settings, select="none", observe=True)


def _sql(started: Sequence[Service], settings: Settings, where: Places, watch: Watch) -> str:
    ask = how_to_ask(started, settings.archive or where.archive)
    return f"{ask} \"FROM windows WHERE run = '{watch.run}'\""


def _say(sentence: str) -> None:
    sys.stderr.write(f"zeus-stream: {sentence}\n")
