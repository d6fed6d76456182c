"""Reads traces of recorded trainings: a directory of CSV files.

- ``summary_train.csv``: epochs to each level of a metric, by run
- ``summary_power_<gpu>.csv``: time and power of an epoch, by power limit; one file for each GPU model
- ``workloads.csv``, which may be absent: target and default batch size of each dataset

The package has the traces of Zeus's evaluation (NSDI 2023); their notice lies beside them. Datasets without a
row in workloads.csv take the row of that evaluation, or a target that the runs themselves show.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from analyzers.simulation.recorded_jobs import (
    Powered,
    RecordedWorkload,
    Traces,
    Trained,
)
from zeus_stream.errors import StorageError

PUBLISHED = Path(__file__).with_name("published")
MAX_ROWS = 1_000_000
"""Of a file; more is no table of recorded trainings."""
MAX_EPOCHS = 100_000
MAX_WHOLE = 1_000_000_000
"""Of batch sizes and power limits."""
MAX_OVERLAP = 1_000
_POWER = "summary_power_"
_WORKLOADS = "workloads.csv"
_NAME_A_DIRECTORY = "Name a directory of traces, or none for those of the package."
_NAME_A_CLUSTER = "Name a table of job groups, or none for that of the package."

T = TypeVar("T")


class TraceGroup(Struct, frozen=True):
    """Recurrences of one workload in a cluster."""

    name: str
    gpu: str
    dataset: str
    recurrences: int
    overlap: float
    """Trainings at the default batch size that run at a time, on average; 0: one after the other."""


def read(directory: Path = PUBLISHED) -> Traces:
    """Return the tables of a directory. Raises StorageError, with file, line and column."""
    trained = tuple(_trained(row) for row in _rows(directory / "summary_train.csv"))
    files = sorted(directory.glob(f"{_POWER}*.csv"))
    if not files:
        raise StorageError(
            f"{directory}: could not be read: no file is named {_POWER}GPU.csv. {_NAME_A_DIRECTORY}"
        )
    if nameless := [path.name for path in files if not re.fullmatch(r"[\w.-]+", _gpu(path))]:
        raise StorageError(
            f"{directory}: could not be read: {nameless[0]} names no GPU model. Name it {_POWER}GPU.csv."
        )
    powered = {_gpu(path): tuple(_powered(row) for row in _rows(path)) for path in files}
    known = {one.dataset: one for one in map(_workload, _rows(PUBLISHED / _WORKLOADS))}
    if (directory / _WORKLOADS).exists():
        known |= {one.dataset: one for one in map(_workload, _rows(directory / _WORKLOADS))}
    datasets = {row.dataset for row in trained}
    order = [name for name in known if name in datasets] + sorted(datasets - known.keys())
    return Traces(trained, powered, {name: known.get(name) or _derived(name, trained) for name in order})


def digest(directory: Path) -> str:
    """Return what tells the traces of a directory from others that `read` has accepted."""
    files = sorted(directory.glob("*.csv"))
    return sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()[:12]


def read_cluster(path: Path = PUBLISHED / "cluster.csv") -> tuple[TraceGroup, ...]:
    """Return the job groups of a cluster. Raises StorageError, with line and column."""
    groups = []
    for row in _rows(path, _NAME_A_CLUSTER):
        overlap = row.number("overlap")
        if not 0 <= overlap <= MAX_OVERLAP:
            raise row.wrong(f"overlap is {overlap:g}, not between 0 and {MAX_OVERLAP}")
        count = row.whole("recurrences", MAX_EPOCHS)
        groups.append(TraceGroup(row.text("group"), row.text("gpu"), row.text("dataset"), count, overlap))
    return tuple(groups)


def _gpu(path: Path) -> str:
    return path.stem.removeprefix(_POWER)


class _Row(Struct, frozen=True):
    """A line of a file."""

    path: Path
    line: int
    fields: Mapping[str, str | None]
    advice: str

    def text(self, column: str) -> str:
        value = self.fields.get(column)
        if not value:
            raise self.wrong(f"the column {column} is missing or empty")
        return value

    def whole(self, column: str, most: int = MAX_WHOLE) -> int:
        value = self._number(column, _whole, "a whole number")
        if not 1 <= value <= most:
            raise self.wrong(f"{column} is {value:.6g}, not between 1 and {most}")
        return value

    def number(self, column: str) -> float:
        return self._number(column, _finite, "a number")

    def wrong(self, why: str) -> StorageError:
        return StorageError(
            f"{self.path}, line {self.line}: could not be read: {why}. Correct it. {self.advice}"
        )

    def _number(self, column: str, parse: Callable[[str], T], what: str) -> T:
        text = self.text(column)
        try:
            return parse(text)
        except ValueError as wrong:
            raise self.wrong(f"{column} is {text[:40]!r}, not {what}") from wrong


def _finite(text: str) -> float:
    if not isfinite(value := float(text)):
        raise ValueError(text)
    return value


def _whole(text: str) -> int:
    return round(_finite(text))


def _trained(row: _Row) -> Trained:
    never = (row.fields.get("target_epoch") or "nan").lower() == "nan"
    return Trained(
        dataset=row.text("dataset"),
        network=row.text("network"),
        batch_size=row.whole("batch_size"),
        optimizer=row.text("optimizer"),
        learning_rate=row.text("learning_rate"),
        run=row.text("run"),
        level=row.number("target_metric"),
        epoch=None if never else row.whole("target_epoch", MAX_EPOCHS),
    )


def _powered(row: _Row) -> Powered:
    epoch_s, power_w = row.number("time_per_epoch"), row.number("average_power")
    if min(epoch_s, power_w) <= 0:
        raise row.wrong("time_per_epoch and average_power have to be above 0")
    return Powered(
        dataset=row.text("dataset"),
        network=row.text("network"),
        batch_size=row.whole("batch_size"),
        optimizer=row.text("optimizer"),
        limit_w=row.whole("power_limit"),
        epoch_s=epoch_s,
        power_w=power_w,
    )


def _workload(row: _Row) -> RecordedWorkload:
    lower = row.text("lower_is_better")
    if lower not in {"0", "1"}:
        raise row.wrong(f"lower_is_better is {lower[:40]!r}, not 0 or 1")
    return RecordedWorkload(
        dataset=row.text("dataset"),
        default=row.whole("default_batch_size"),
        optimizer=row.text("optimizer"),
        target=row.number("target_metric"),
        max_epochs=row.whole("max_epochs", MAX_EPOCHS),
        lower_is_better=lower == "1",
    )


def _derived(dataset: str, trained: Sequence[Trained]) -> RecordedWorkload:
    """Return a workload whose target is the hardest level that every run of the largest size reaches.

    If there is none, it is that of the next smaller size.
    """
    its = [row for row in trained if row.dataset == dataset]
    optimizer = max(
        {row.optimizer for row in its}, key=lambda name: sum(row.optimizer == name for row in its)
    )
    its = [row for row in its if row.optimizer == optimizer]
    most = max((row.epoch for row in its if row.epoch is not None), default=1)
    lower = _falls(its)
    for size in sorted({row.batch_size for row in its}, reverse=True):
        missed = {row.level for row in its if row.batch_size == size and row.epoch is None}
        reached = {row.level for row in its if row.batch_size == size} - missed
        if reached:
            target = min(reached) if lower else max(reached)
            return RecordedWorkload(
                dataset=dataset,
                default=size,
                optimizer=optimizer,
                target=target,
                max_epochs=most,
                lower_is_better=lower,
            )
    return RecordedWorkload(
        dataset=dataset,
        default=its[0].batch_size,
        optimizer=optimizer,
        target=its[0].level,
        max_epochs=most,
        lower_is_better=lower,
    )


def _falls(its: Sequence[Trained]) -> bool:
    """Return whether a metric falls during training: later epochs reach lower levels."""
    by_run: dict[tuple[int, str, str], list[tuple[float, int]]] = {}
    for row in its:
        if row.epoch is not None:
            of_run = by_run.setdefault((row.batch_size, row.learning_rate, row.run), [])
            of_run.append((row.level, row.epoch))
    rising = (later - former for run in by_run.values() for (_, former), (_, later) in pairwise(sorted(run)))
    return sum((step > 0) - (step < 0) for step in rising) < 0


def _rows(path: Path, advice: str = _NAME_A_DIRECTORY) -> Iterator[_Row]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader, count = csv.DictReader(file, strict=True), 0
            for count, fields in enumerate(reader, 1):
                if count > MAX_ROWS:
                    raise StorageError(
                        f"{path}: could not be read: it has more than {MAX_ROWS} rows. {advice}"
                    )
                yield _Row(path, reader.line_num, fields, advice)
            if not count:
                raise StorageError(f"{path}: could not be read: it has no rows. {advice}")
    except OSError as wrong:
        raise StorageError(f"{path}: could not be read: {wrong.strerror}. {advice}") from wrong
    except (UnicodeDecodeError, csv.Error) as wrong:
        raise StorageError(f"{path}: could not be read: it is no CSV file. {advice}") from wrong
