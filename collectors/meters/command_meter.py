"""A figure that a command prints: ipmitool, snmpget, or any other."""

import re
import shlex
import subprocess
from collections.abc import Sequence

from collectors.meters.host_meter import MeterReading, MeterUnit, first_number
from zeus_stream.errors import LostError, RetryError, SettingsError

LONGEST_S = 10.0
"""A command that takes longer is ended."""
IPMI = ("ipmitool", "dcmi", "power", "reading")
IPMI_FIGURE = r"Instantaneous power reading:\s*(\d+) Watts"
SNMP = ("snmpget", "-Oqv", "-t", "2", "-r", "1")
"""Version and secrets are those of the administrator's snmp.conf, so that no list of processes has them."""


class CommandMeter:
    """The first number in the output of a command (a `collectors.meters.host_meter.HostMeter`)."""

    def __init__(self, command: Sequence[str], unit: MeterUnit, figure: str = "(.*)") -> None:
        """``figure``: a pattern whose first group has the number."""
        self._command, self._unit, self._figure = command, unit, re.compile(figure, re.DOTALL)

    def read(self) -> MeterReading:
        """Run the command. Raises LostError: it is not installed. RetryError: it has failed."""
        name = self._command[0]
        try:
            done = subprocess.run(  # noqa: S603  (the administrator's)
                self._command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=LONGEST_S, check=False,
            )  # fmt: skip
        except FileNotFoundError as wrong:
            raise LostError(f"{name}: could not be run: it is not installed. Install it.") from wrong
        except (OSError, subprocess.TimeoutExpired) as wrong:
            raise RetryError(
                f"{name}: could not be run: {wrong}. It is run again at the next turn."
            ) from wrong
        found = self._figure.search(done.stdout)
        if done.returncode or found is None:
            why = (done.stderr or done.stdout).strip()[:200] or f"exit code {done.returncode}"
            raise RetryError(f"{name}: could not be read: {why}. Try `{shlex.join(self._command)}`.")
        return self._unit.reading(first_number(found[1], name), name)


def command_meter(address: str, unit: MeterUnit) -> CommandMeter:
    """Return the meter that a command line reads. Raises SettingsError."""
    try:
        command = shlex.split(address)
    except ValueError as wrong:
        raise SettingsError(f"meters: could not understand {address!r}: {wrong}. Correct it.") from wrong
    if not command:
        raise SettingsError("meters: could not run a command: none is named. Write NAME=command:PROGRAM ...")
    return CommandMeter(command, unit)


def ipmi_meter(address: str, unit: MeterUnit) -> CommandMeter:
    """Return the meter of a baseboard controller. ``address``: more arguments, for one of another host."""
    return CommandMeter([IPMI[0], *shlex.split(address), *IPMI[1:]], unit, IPMI_FIGURE)


def snmp_meter(address: str, unit: MeterUnit) -> CommandMeter:
    """Return the meter of a PDU: ``HOST OID``. Raises SettingsError."""
    if len(words := address.split()) < 2:
        raise SettingsError(
            f"meters: could not understand snmp:{address}. Write snmp:HOST OID, such as snmp:pdu4 1.3.6.1..."
        )
    return CommandMeter([*SNMP, *words], unit)
