"""Figures that a command prints (ipmitool, snmpget, or any other), or that lie in a file."""

import re
import shlex
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from collectors.device import Sample
from collectors.meters.host_meter import JOULES, MeterUnit, ReadMeter, first_number
from zeus_stream.errors import LostError, PermissionMissingError, RetryError, SettingsError

LONGEST_S = 10.0
"""A command that takes longer is ended."""
IPMI = ("ipmitool", "dcmi", "power", "reading")
IPMI_FIGURE = r"Instantaneous power reading:\s*(\d+) Watts"
SNMP = ("snmpget", "-Oqv", "-t", "2", "-r", "1")
"""Version and secrets are those of the administrator's snmp.conf, so that no list of processes has them."""
CRAY = Path("/sys/cray/pm_counters/energy")
"""Joules of the node since it was switched on, refreshed ten times a second."""


def read_command(command: Sequence[str], unit: MeterUnit, figure: str = "(.*)") -> Sample:
    """Run a command, whose output has a number. Raises LostError: it is not installed. RetryError.

    ``figure``: a pattern whose first group has the number.
    """
    name = command[0]
    try:
        done = subprocess.run(  # noqa: S603  (the administrator's)
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=LONGEST_S, check=False,
        )  # fmt: skip
    except FileNotFoundError as wrong:
        raise LostError(f"{name}: could not be run: it is not installed. Install it.") from wrong
    except (OSError, subprocess.TimeoutExpired) as wrong:
        raise RetryError(f"{name}: could not be run: {wrong}. It is run again at the next turn.") from wrong
    found = re.search(figure, done.stdout, re.DOTALL)
    if done.returncode or found is None:
        why = (done.stderr or done.stdout).strip()[:200] or f"exit code {done.returncode}"
        raise RetryError(f"{name}: could not be read: {why}. Try `{shlex.join(command)}`.")
    return unit.reading(first_number(found[1], name), name)


def read_file(path: Path, unit: MeterUnit) -> Sample:
    """Read the first number of a file. Raises LostError: it is gone. PermissionMissingError, RetryError."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError as wrong:
        raise LostError(
            f"{path}: could not be read: it is not there. It is read again when it is."
        ) from wrong
    except PermissionError as wrong:
        raise PermissionMissingError(
            f"{path}: could not be read: {wrong.strerror}. Let the collector's user read it."
        ) from wrong
    except OSError as wrong:
        raise RetryError(f"{path}: could not be read: {wrong}. It is read again at the next turn.") from wrong
    return unit.reading(first_number(text, str(path)), str(path))


def command_meter(address: str, unit: MeterUnit) -> ReadMeter:
    """Return the meter that a command line reads. Raises SettingsError."""
    try:
        command = shlex.split(address)
    except ValueError as wrong:
        raise SettingsError(f"meters: could not understand {address!r}: {wrong}. Correct it.") from wrong
    if not command:
        raise SettingsError("meters: could not run a command: none is named. Write NAME=command:PROGRAM ...")
    return partial(read_command, command, unit)


def ipmi_meter(address: str, unit: MeterUnit) -> ReadMeter:
    """Return the meter of a baseboard controller. ``address``: more arguments, for one of another host."""
    return partial(read_command, [IPMI[0], *shlex.split(address), *IPMI[1:]], unit, IPMI_FIGURE)


def snmp_meter(address: str, unit: MeterUnit) -> ReadMeter:
    """Return the meter of a PDU: ``HOST OID``. Raises SettingsError."""
    if len(words := address.split()) < 2:
        raise SettingsError(
            f"meters: could not understand snmp:{address}. Write snmp:HOST OID, such as snmp:pdu4 1.3.6.1..."
        )
    return partial(read_command, [*SNMP, *words], unit)


def file_meter(address: str, unit: MeterUnit) -> ReadMeter:
    """Return the meter of a file: a sensor of Linux, or what another program writes."""
    return partial(read_file, Path(address), unit)


def cray_meter(_address: str, _unit: MeterUnit) -> ReadMeter:
    """Return the node's meter of a Cray."""
    return partial(read_file, CRAY, JOULES)
