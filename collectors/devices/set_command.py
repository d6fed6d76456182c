"""Power limits and clocks that a command of the administrator sets, where the collector has no privilege.

The setting ``set_command`` is split into words, and started without a shell. Limits are read back through
the driver, as after each change. A command may outlive a collector that is killed, and a process of root
cannot be ended from here. So its standard input is a file that it holds locked until it has ended. While that
is locked, the GPU is neither read for a restore nor set: a restorer tries again.
"""

import fcntl
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from msgspec.structs import replace

from collectors.control import spell_change
from collectors.device import Bus, Description, Device, DeviceOver, check_clock, check_limit
from zeus_stream.errors import (
    PermissionMissingError,
    RetryError,
    SettingsError,
    UnsupportedError,
    explaining,
)
from zeus_stream.protocol.fields import UNLOCKED, Control

SECONDS = 10.0
"""A command that takes longer has failed."""
_NEEDED = ("{gpu}", "{value}")


def parse_command(text: str) -> tuple[str, ...]:
    """Return the words of the setting ``set_command``. Raises SettingsError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as wrong:
        raise SettingsError(f"set_command {text!r}: could not be split into words: {wrong}.") from wrong
    missing = [name for name in _NEEDED if not any(name in word for word in words)]
    if missing:
        raise SettingsError(
            f"set_command {text!r}: could not be used: it has no {' and no '.join(missing)}."
            " Write it like 'sudo -n /usr/local/sbin/zeus-stream-set {control} {gpu} {value}'."
        )
    return words


class SetCommandDevice(DeviceOver):
    """A device that is read as another one, and set by a command."""

    def __init__(self, device: Device, words: tuple[str, ...], run: Path, seconds: float = SECONDS) -> None:
        """``run``: directory of the locks."""
        super().__init__(device)
        self._words, self._run, self._seconds = words, run, seconds
        self._found: Description | None = None

    def describe(self) -> Description:
        """Return what the device is, without power profiles, which no command sets.

        Without clocks if the command does not take the name of a control.
        """
        found = self._device.describe()
        if not any("{control}" in word for word in self._words):
            found = replace(found, graphics_clocks_mhz=(), memory_clocks_mhz=())
        self._found = found = replace(found, power_profiles=0)
        return found

    def read_control(self, control: Control) -> int | None:
        """Return what is requested now. Raises RetryError while a command may still change it."""
        with self._lock(f"read its {control.replace('_', ' ')}"):
            return self._device.read_control(control)

    def set_control(self, control: Control, value: int) -> None:
        """Run the command. Raises PermissionMissingError if it fails, RetryError if it takes too long."""
        found = self._found or self.describe()
        what = spell_change(control, value)
        if not found.has(control):
            raise UnsupportedError(f"{found.gpu}: could not {what}: set_command does not. Measure only.")
        if control == "power_limit":
            check_limit(found.gpu, value, found.min_limit_mw or 0, found.max_limit_mw or value)
        elif value != UNLOCKED:
            check_clock(found.gpu, control, value, found.clocks_mhz(control))
        spelled = f"{value / 1000:g}" if control == "power_limit" else str(value)
        places = {
            "{control}": control,
            "{gpu}": found.gpu,
            "{value}": "unlocked" if value == UNLOCKED and control != "power_limit" else spelled,
        }
        words = list(self._words)
        for name, text in places.items():
            words = [word.replace(name, text) for word in words]
        with self._lock(what) as lock:
            self._carry_out(f"{found.gpu}: could not {what}: {words[0]}", words, lock)

    def _carry_out(self, failed: str, words: list[str], lock: IO[bytes]) -> None:
        try:
            child = subprocess.Popen(  # noqa: S603  (the administrator's command)
                words, stdin=lock, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as wrong:
            raise PermissionMissingError(f"{failed}: {wrong.strerror}. Correct set_command.") from wrong
        try:
            output, _ = child.communicate(timeout=self._seconds)
        except subprocess.TimeoutExpired as wrong:
            with suppress(PermissionError, subprocess.TimeoutExpired):  # of root: the lock tells when it ends
                child.kill()
                child.wait(1)
            assert child.stdout is not None
            child.stdout.close()
            raise RetryError(
                f"{failed}: it did not end within {self._seconds:g} s. See what it waits for."
            ) from wrong
        if child.returncode != 0:
            reason = " ".join(output.decode(errors="replace").split())[-300:]
            raise PermissionMissingError(
                f"{failed}: exit code {child.returncode}{f', {reason}' if reason else ''}."
                " Run it by hand as the collector's user, and correct its rule."
            )

    @contextmanager
    def _lock(self, what: str) -> Iterator[IO[bytes]]:
        """Hold the lock that commands for this device hold. Raises RetryError: one does.

        Raises PermissionMissingError: it cannot be opened, such as a file that root has made there.
        """
        gpu = (self._found or self.describe()).gpu
        path = self._run / f"{gpu}.set"
        cure = f"Let the collector's user write {path}, or remove it."
        with explaining(PermissionMissingError, f"{gpu}: could not {what}", cure):
            self._run.mkdir(parents=True, exist_ok=True)
            opened = path.open("a+b")
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as wrong:
                raise RetryError(
                    f"{gpu}: could not {what}: an earlier set_command still runs. It is tried again."
                ) from wrong
            yield file


class SetCommandBus:
    """The devices of another bus, set by a command."""

    def __init__(self, bus: Bus, words: tuple[str, ...], run: Path) -> None:
        self._bus, self._words, self._run = bus, words, run
        self._devices: dict[int, SetCommandDevice] = {}
        """By the identity of the other bus's device."""

    def discover(self) -> tuple[Device, ...]:
        return tuple(
            self._devices.setdefault(id(each), SetCommandDevice(each, self._words, self._run))
            for each in self._bus.discover()
        )

    def close(self) -> None:
        self._bus.close()
