"""Measure whole GPUs for a time, or while a command runs. The command need not know zeus-stream.

The measurement is one window of a session that computes on no GPU. So no training counts as sharing its
GPU. Services that run already are used; others are started, and stopped at the end.
"""

import secrets
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path, PurePath

from msgspec import Struct
from msgspec.structs import replace

from collectors.device import Bus
from collectors.devices.registry import open_bus
from zeus_stream.cli.run_training import (
    NO_GPU,
    as_environment,
    carry_out,
    find_devices,
    how_to_ask,
    why_no_device,
)
from zeus_stream.cli.running.beside_command import session
from zeus_stream.cli.running.checks import check, say_ignored
from zeus_stream.cli.running.child_services import ServicesOfCommand, services
from zeus_stream.cli.running.signals import Signals
from zeus_stream.cli.running.waits import Late, deadline, until
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import DeviceError, RefusedError, UnreachableError, ZeusStreamError
from zeus_stream.own_services import say
from zeus_stream.paths import Places, holder, places
from zeus_stream.protocol.events import WindowBegan, WindowEnded
from zeus_stream.quoting import quoted
from zeus_stream.screens.text.energy_bill import Bill, bill, print_bill, write_bill
from zeus_stream.settings import Settings
from zeus_stream.training.identity import ALL, listed_gpus, named
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.run_started import describe_command
from zeus_stream.transport.client import Connection

SAME_LOOKS = 10
"""Checks in a row in which the collector has the same number of devices: it has found all."""
CLOSES_S = 10.0
"""Longest wait for the energy of the window: readings past its end have to arrive."""
READY_S = 6.0
"""Longest wait for every counter to change once: before that its energy is not known."""
WINDOW = 0
_GPUS = """
SELECT len(gpus) AS found, command_reason LIKE '%Not found on this host:%' AS short, (
    SELECT count(DISTINCT gpu) FROM readings WHERE t_hi_ns >= {since_ns}
    AND seen IN ('changed', 'power', 'sampled')
    AND gpu IN (SELECT unnest(gpus) FROM sessions WHERE run = {run})
) AS seen
FROM sessions WHERE run = {run}
"""


class HostWindow(Struct, frozen=True, kw_only=True):
    """One window over GPUs of this host, in a process that does not compute on them."""

    run: str
    name: str
    gpus: tuple[str, ...]
    """In the form of `identity`."""
    outbox: Outbox
    connection: Connection
    since_ns: int

    def begin(self) -> None:
        self.outbox.put((WindowBegan, monotonic_ns(), WINDOW, self.name))

    def end(self) -> None:
        self.outbox.put((WindowEnded, monotonic_ns(), WINDOW))

    def wait_until_ready(self, signals: Signals) -> None:
        """Wait until the counter of each GPU has changed. Raises RefusedError: the collector lacks one."""
        query = _GPUS.format(run=quoted(self.run), since_ns=self.since_ns)
        wanted = 1 if ALL in self.gpus else len(self.gpus)
        found = 0

        def known() -> bool:
            nonlocal found
            for row in self.connection.sql(query).to_pylist():
                found = row["found"]
                return bool(row["short"]) or (found >= wanted and row["seen"] == found)
            return False

        until(known, READY_S, signals, "the counter of each GPU to change")
        if found < wanted and signals.told is None:
            asked = ", ".join(gpu.removeprefix("index:") for gpu in self.gpus)
            raise RefusedError(
                f"measure: could not begin: the collector has {found or 'none'} of the GPUs {asked}."
                " `zeus-stream doctor` lists what there is."
            )

    def bill(self, signals: Signals) -> Bill:
        """Return the bill once the archive has it. UnreachableError: not within CLOSES_S, or a signal."""
        found: list[Bill] = []

        def closed() -> bool:
            if (known := bill(self.connection.sql, self.run, self.name)) is not None:
                found.append(known)
            return bool(found)

        with suppress(Late), deadline(CLOSES_S, "the energy of the window"):
            until(closed, CLOSES_S, signals)
        if not found:
            why = f"the analyzer had not measured it after {CLOSES_S:g} s. See `zeus-stream status`."
            if signals.told is not None:
                why = f"a signal ended the wait. The archive will have it as run {self.run}."
            raise UnreachableError(f"measure: could not get the energy: {why}")
        return found[0]


@contextmanager
def watching(
    where: Places, job: str, name: str, gpus: Sequence[str], signals: Signals
) -> Iterator[HostWindow]:
    """Open a session at the collector once its GPUs can be measured; close it at the end of the block.

    Raises RefusedError: it does not have these GPUs. UnreachableError: a service does not answer any more.
    """
    found = find_devices(where, signals, SAME_LOOKS)
    if signals.told is None and not (found.gpus or found.parts):
        why = why_no_device(found)
        raise RefusedError(f"measure: could not begin: the collector has no GPU. {why}".rstrip())
    run = f"measure-{secrets.token_hex(4)}"
    asked = listed_gpus(gpus) or (ALL,)
    started = describe_command(run, job, asked)
    said: set[str] = set()

    def warn(cause: str, sentence: str) -> None:
        if cause in {"collector", "silence"}:  # its sentence is about trainings
            sentence = f"measure: the collector at {where.publish} receives nothing any more."
        if sentence not in said:
            said.add(sentence)
            say(sentence)

    with session(where, started, warn) as outbox:
        watch = HostWindow(
            run=run,
            name=named(name),
            gpus=asked,
            outbox=outbox,
            connection=Connection(where),
            since_ns=started.t_ns,
        )
        watch.wait_until_ready(signals)
        yield watch


def measure_for(
    seconds: float,
    settings: Settings,
    gpus: Sequence[str],
    environ: Mapping[str, str],
    *,
    as_json: bool,
    given: Mapping[str, Sequence[str]],
) -> int:
    """Measure for this time or until a signal, and print the bill to stdout. Return the exit code.

    ``given``: flags on the command line, each with its services. Raises UnreachableError, RefusedError.
    """
    where = places(environ)
    check(settings, (), where)
    settings = only_measuring(settings, where)
    with (
        Signals() as signals,
        services(where, {**environ, **as_environment(settings)}, signals) as own,
        watching(where, "measure", "measure", gpus, signals) as watch,
    ):
        say_ignored(given, own.absent, where)
        if signals.told is not None:
            return 128 + signals.told
        if sys.stderr.isatty():
            say(f"measuring for {seconds:g} s. Ctrl-C ends it earlier.")
        watch.begin()
        until(lambda: False, seconds, signals)
        watch.end()
        signals.told = None  # a first signal ends the measurement, a second one the wait for its result
        known = watch.bill(signals)
        if as_json:
            write_bill(known, sys.stdout)
        else:
            print_bill(known, _sql(own, settings, where, watch), sys.stdout)
        return 0 if known.missing is None else 1


def measure_command(
    settings: Settings,
    command: Sequence[str],
    gpus: Sequence[str],
    environ: Mapping[str, str],
    given: Mapping[str, Sequence[str]],
) -> int:
    """Run a command, and print to stderr the energy of the GPUs in that time. Return its exit code.

    What prevents the measurement is printed and does not prevent the command. Raises SettingsError.
    """
    where = places(environ)
    check(settings, command, where)
    environment = {"ZEUS_STREAM_RUN": f"run-{secrets.token_hex(4)}", **environ}
    job = environ.get("ZEUS_STREAM_JOB") or PurePath(command[0]).name
    with Signals() as signals, ExitStack() as held:
        watch = None
        try:
            settings = only_measuring(settings, where)
            environment |= as_environment(settings)
            own = held.enter_context(services(where, environment, signals))
            say_ignored(given, own.absent, where)
            watch = held.enter_context(watching(where, job, shlex.join(command), gpus, signals))
        except ZeusStreamError as wrong:
            say(f"{wrong}\nThe command runs unmeasured.")
        if signals.told is not None:
            return 128 + signals.told
        if watch is None:
            return carry_out(command, environment, where, signals)
        watch.begin()
        code = carry_out(command, environment, where, signals)
        watch.end()
        if signals.leaves:
            return code
        try:
            known = watch.bill(signals)
        except ZeusStreamError as wrong:
            say(str(wrong))
        else:
            sys.stderr.write("\n")
            print_bill(known, _sql(own, settings, where, watch), sys.stderr)
        return code


def device_there(gpus: Callable[[], Bus], cpus: Callable[[], Bus]) -> str:
    """Return what can be measured here: NVIDIA's GPUs, else CPUs. Raises RefusedError: neither."""
    trouble = _trouble(gpus)
    if trouble is None:
        return Settings().device
    if _trouble(cpus) is None:
        say(f"{trouble} The CPUs and the memory of this host are measured.")
        return "cpu"
    raise RefusedError(f"measure: could not begin: {trouble} {NO_GPU}")


def _trouble(opened: Callable[[], Bus]) -> str | None:
    """Return why there is nothing to be measured. None: there is a device."""
    bus = opened()
    try:
        return None if bus.discover() else "There is no device."
    except DeviceError as wrong:
        return str(wrong)
    finally:
        bus.close()


def only_measuring(settings: Settings, where: Places) -> Settings:
    """Return settings with which services change no device, and find one. Raises RefusedError."""
    settings = replace(settings, select="none", observe=True)
    if holder(where.run / "collector.lock") is not None or settings.device != Settings().device:
        return settings
    kinds = Settings().device, "cpu"
    return replace(settings, device=device_there(*(partial(open_bus, kind, Path()) for kind in kinds)))


def _sql(own: ServicesOfCommand, settings: Settings, where: Places, watch: HostWindow) -> str:
    ask = how_to_ask(own, settings, where, "sql")
    return f"{ask} \"FROM windows WHERE run = '{watch.run}'\""
