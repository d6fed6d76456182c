"""The collector and the analyzer of a command: those that run are used, others are its children.

Children are in sessions of their own, so that a Ctrl-C for the command does not reach them. They stop at the
end of the command, and when this process is killed.
"""

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO

from msgspec import Struct

from zeus_stream.cli.running.signals import Signals
from zeus_stream.cli.running.waits import until
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import UnreachableError
from zeus_stream.own_services import SAYS_S, say
from zeus_stream.paths import Places, holder
from zeus_stream.service_packages import python_child
from zeus_stream.transport.client import status

VERBS = {"collector": "collect", "analyzer": "analyze"}
STARTS_S = 60.0
STOPS_S = 5.0
LEAVES_S = 1.0
"""Longest wait for the end of the analyzer once somebody leaves: it is killed then, and loses nothing."""
LOOK_S = 0.2


class ChildService(Struct, frozen=True):
    """A service that was started here."""

    name: str
    process: "subprocess.Popen[bytes]"
    output: IO[bytes]
    """The file that receives its stdout and stderr."""

    @classmethod
    def start(
        cls, name: str, environment: Mapping[str, str], output: IO[bytes], *command: str
    ) -> "ChildService":
        """Start ``zeus-stream COMMAND`` in a session of its own. It ends with this process."""
        process = subprocess.Popen(  # noqa: S603  (this interpreter, this package)
            python_child("zeus_stream", *command, "--parent-pid", str(os.getpid())),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        return cls(name, process, output)

    def failed(self, where: Places) -> bool:
        """Tell whether it ended, and no other process took its place."""
        return self.process.poll() is not None and holder(where.run / f"{self.name}.lock") is None

    def last_output(self) -> str:
        self.output.seek(0)
        return self.output.read().decode(errors="replace")[-4_000:].strip()


class ServicesOfCommand:
    """Starts the services that do not run, waits for their answers, and stops what it started."""

    def __init__(self, where: Places, environment: Mapping[str, str], signals: Signals) -> None:
        self._where = where
        self._environment = environment
        self._signals = signals
        self.absent = [name for name in VERBS if holder(where.run / f"{name}.lock") is None]
        """Those that did not run at the beginning."""
        self.started: list[ChildService] = []
        self._answered = VERBS.keys() - set(self.absent)
        self._outputs = ExitStack()
        self._ended = threading.Event()

    def start(self, names: Sequence[str]) -> None:
        """Start those of these services that did not run."""
        for name in names:
            if name in self.absent:
                output = self._outputs.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  (entered here)
                self.started.append(ChildService.start(name, self._environment, output, VERBS[name]))

    def wait_for(self, names: Sequence[str]) -> None:
        """Wait until each of these services has answered once, or a signal arrives.

        Raises UnreachableError: one does not; the sentence holds the last output of those started here.
        """
        silent = [name for name in names if name not in self._answered]

        def all_answer() -> bool:
            if silent and _answers(self._where, silent[0]):
                self._answered.add(silent.pop(0))
            return not silent or any(service.failed(self._where) for service in self.started)

        until(all_answer, STARTS_S, self._signals, f"the {' and the '.join(names)} to start")
        if silent and self._signals.told is None:
            outputs = [f"\n{output}" for service in self.started if (output := service.last_output())]
            raise UnreachableError(
                f"run: could not start: the {' and the '.join(silent)} did not answer in {self._where.run}."
                f" Try `zeus-stream doctor`.{''.join(outputs)}"
            )

    def watch(self, name: str) -> None:
        """Note that a service which was started here answers, and print at once that it has ended."""
        service = next((each for each in self.started if each.name == name), None)
        if service is None:
            return

        def look() -> None:
            while not self._ended.wait(LOOK_S):
                if service.failed(self._where):
                    say(f"the {name} has ended: the command goes on.\n{service.last_output()}")
                    return
                if name not in self._answered and _answers(self._where, name):
                    self._answered.add(name)

        threading.Thread(target=look, name=f"watch of the {name}", daemon=True).start()

    def stop(self) -> None:
        """Stop at once all that was started here. The collector, which returns the limits, is waited for."""
        self._ended.set()
        for service in self.started:
            service.process.terminate()
        end_ns = monotonic_ns() + round(STOPS_S * 1e9)
        said = False
        for service in self.started:  # the collector is the first
            leaves = self._signals.leaves and service.name == "analyzer"
            while service.process.poll() is None:
                left_s = LEAVES_S if leaves else (end_ns - monotonic_ns()) / 1e9
                try:
                    service.process.wait(max(0.0, min(left_s, SAYS_S)))
                except subprocess.TimeoutExpired:
                    if left_s <= SAYS_S:
                        service.process.kill()  # its watchdog, or its next start, restores the limits
                    elif not said:
                        said = True
                        say(f"waiting for the {service.name} to end: {STOPS_S:g} s at most ...")
        self._outputs.close()


@contextmanager
def services(
    where: Places,
    environment: Mapping[str, str],
    signals: Signals,
    needed: Sequence[str] = ("collector", "analyzer"),
) -> Iterator[ServicesOfCommand]:
    """Start the collector and the analyzer unless they run, and stop at the end those started here.

    Args:
        where: their setup.
        environment: of those that are started.
        signals: end the waits.
        needed: those that must answer before the block begins; the other one starts after them.

    Raises:
        UnreachableError: one of the needed does not answer; the sentence holds its last output.
    """
    own = ServicesOfCommand(where, environment, signals)
    if own.absent:
        say(f"starting the {' and the '.join(own.absent)} ...")
    try:
        own.start(needed)
        own.wait_for(needed)
        own.start([name for name in VERBS if name not in needed])
        for name in VERBS:
            own.watch(name)
        yield own
    finally:
        own.stop()


def _answers(where: Places, process: str) -> bool:
    try:
        status(where, process, timeout_s=0.5)
    except UnreachableError:
        return False
    return True
