"""Recorded devices: what a driver answered, with times and errors, written down and played again.

A recording is a directory:

    devices.json      the description of each device (`collectors.device.Description`), in PCI order
    samples-0.csv     of the first of them, a line each time that its answer became another one: ``since_ns``
                      (begin of the last read with the answer before), ``t_ns`` (end of the first read with
                      this one), both from the begin of the recording, the figures of a
                      `collectors.device.Sample`, and ``error`` in place of figures

``zeus-stream record DIR`` makes one, ``--device recorded:DIR`` plays it. A device that is played
refuses every change, and is lost once its recording is over. A ``sensor.csv`` alone (``t_us``,
``instant_mw``: the readings of a GPU's power beside a meter) is a recording as well. A folder like
``rtx3090_square`` names its GPU by the short name of a sensor card.
"""

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from collectors.control import spell_change
from collectors.device import Description, Device, Sample
from collectors.devices.cards.known_cards import shipped_cards
from zeus_stream import errors
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import DeviceError, LostError, RetryError, SettingsError, UnsupportedError
from zeus_stream.protocol.fields import Control

DEVICES = "devices.json"
COLUMNS = ("since_ns", "t_ns", *Sample._fields, "error")
SENSOR = "sensor.csv"
_NEW = "Record again with zeus-stream record DIR."


class RecordedAnswer(NamedTuple):
    """An answer of a device, and between which two instants it became this one; ns from the begin."""

    since_ns: int
    t_ns: int
    sample: Sample | None
    error: str = ""
    """``Kind: sentence``, in place of the sample."""


class RecordedDevice:
    """A device that gives the answers of a recording (a `collectors.device.Device`)."""

    def __init__(
        self,
        description: Description,
        answers: Sequence[RecordedAnswer],
        begun_ns: int,
        now: Callable[[], int],
    ) -> None:
        """``begun_ns``: when the recording began, as seen from here."""
        self.gpu = description.gpu
        self._description, self._answers = description, answers
        self._begun_ns, self._now = begun_ns, now
        self._at = 0

    def describe(self) -> Description:
        if self._answers and self._passed_ns() > self._answers[-1].t_ns:
            raise LostError(f"{self.gpu}: could not be described: its recording is over.")
        return self._description

    def sample(self) -> Sample:
        """Return the answer of this instant. Raises the error that was recorded."""
        answers, passed_ns = self._answers, self._passed_ns()
        while self._at + 1 < len(answers) and _came_ns(answers[self._at + 1]) <= passed_ns:
            self._at += 1
        if not answers or passed_ns > answers[-1].t_ns:
            raise LostError(f"{self.gpu}: could not be read: its recording is over.")
        answer = answers[self._at]
        if answer.sample is None:
            kind, _, sentence = answer.error.partition(": ")
            raise _ERRORS.get(kind, RetryError)(sentence)
        return answer.sample

    def read_control(self, control: Control) -> int | None:
        if control != "power_limit":
            return None
        if (limit_mw := self.sample().requested_mw) is None:
            raise UnsupportedError(f"{self.gpu}: could not read its power limit: none was recorded.")
        return limit_mw

    def set_control(self, control: Control, value: int) -> None:
        raise UnsupportedError(f"{self.gpu}: could not {spell_change(control, value)}: it is a recording.")

    def processes(self) -> None:
        """Nobody computes on a recording."""

    def close(self) -> None:
        """Nothing is held."""

    def _passed_ns(self) -> int:
        return self._now() - self._begun_ns


class RecordedBus:
    """The devices of a recording (a `collectors.device.Bus`), which begins as it is opened."""

    def __init__(self, directory: Path, now: Callable[[], int] = monotonic_ns) -> None:
        """Read the recording. Raises SettingsError. ``now``: a clock that runs faster plays it faster."""
        try:
            recorded = _sensor(directory) if (directory / SENSOR).exists() else _devices(directory)
        except (OSError, ValueError, KeyError, msgspec.ValidationError) as wrong:
            raise SettingsError(f"{directory}: could not be read as a recording: {wrong}. {_NEW}") from wrong
        begun_ns = now()
        self._devices = tuple(RecordedDevice(*each, begun_ns, now) for each in recorded)

    def discover(self) -> tuple[RecordedDevice, ...]:
        return self._devices

    def close(self) -> None:
        """Nothing is held."""


def record(
    devices: Sequence[Device],
    directory: Path,
    until_ns: int,
    sleep: Callable[[float], None],
    pause_s: float = 0.001,
    now: Callable[[], int] = monotonic_ns,
) -> int:
    """Write what devices answer until an instant; return the lines. Raises DeviceError and OSError."""
    directory.mkdir(parents=True)
    described = [device.describe() for device in devices]
    (directory / DEVICES).write_text(json.dumps(msgspec.to_builtins(described), indent=2) + "\n")
    begun_ns = now()
    last: list[tuple[int, tuple[Sample | None, str] | None]] = [(begun_ns, None)] * len(devices)
    lines: list[list[RecordedAnswer]] = [[] for _ in devices]
    while now() < until_ns:
        for place, device in enumerate(devices):
            before_ns = now()
            answer = _ask(device)
            since_ns, was = last[place]
            if answer != was:
                lines[place].append(RecordedAnswer(since_ns - begun_ns, now() - begun_ns, *answer))
            last[place] = before_ns, answer
        sleep(pause_s)
    for place, answers in enumerate(lines):
        if answers:  # the last answer lasted until the end
            answers.append(answers[-1]._replace(since_ns=last[place][0] - begun_ns, t_ns=now() - begun_ns))
        _write(directory / f"samples-{place}.csv", answers)
    return sum(map(len, lines))


def _ask(device: Device) -> tuple[Sample | None, str]:
    try:
        return device.sample(), ""
    except DeviceError as wrong:
        return None, f"{type(wrong).__name__}: {wrong}"


def _write(path: Path, answers: Iterable[RecordedAnswer]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for answer in answers:
            figures = answer.sample or Sample(None, None, None, None)
            writer.writerow((answer.since_ns, answer.t_ns, *figures, answer.error))


def _devices(directory: Path) -> list[tuple[Description, list[RecordedAnswer]]]:
    described = msgspec.json.decode((directory / DEVICES).read_bytes(), type=list[Description])
    return [(each, _answers(directory / f"samples-{place}.csv")) for place, each in enumerate(described)]


def _answers(path: Path) -> list[RecordedAnswer]:
    answers = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            figures = [int(row[name]) if row.get(name) else None for name in Sample._fields]
            sample = None if row["error"] else Sample(*figures)
            answers.append(RecordedAnswer(int(row["since_ns"]), int(row["t_ns"]), sample, row["error"]))
    return answers


def _sensor(directory: Path) -> list[tuple[Description, list[RecordedAnswer]]]:
    """Return the device of a record of power readings: a GPU without energy counter."""
    with (directory / SENSOR).open(newline="") as file:
        rows = [(int(row["t_us"]) * 1000, int(row["instant_mw"])) for row in csv.DictReader(file)]
    begun_ns = rows[0][0]
    answers = [
        RecordedAnswer(before_ns - begun_ns, t_ns - begun_ns, Sample(None, power_mw, None, None))
        for (before_ns, _), (t_ns, power_mw) in zip([rows[0], *rows], rows, strict=False)
    ]
    cards = shipped_cards().items()
    name = next((card.name for short, card in cards if directory.name.startswith(short)), directory.name)
    described = Description(
        gpu=f"GPU-recorded-{directory.name}",
        index=0,
        name=name,
        driver="recorded",
        counts_energy=False,
    )
    return [(described, answers)]


def _came_ns(answer: RecordedAnswer) -> int:
    """Return when a device began to give an answer, as far as that is known."""
    return (answer.since_ns + answer.t_ns) // 2


_ERRORS: dict[str, type[DeviceError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, DeviceError)
}
