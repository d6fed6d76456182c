"""Reads traces of recorded trainings: a directory of CSV files.

- ``summary_train.csv``: epochs to each level of a metric, by run
- ``summary_power_<gpu>.csv``: time and power of an epoch, by power limit; one file for each GPU model
- ``workloads.csv``: target and default batch size of each dataset

The package has the traces of Zeus's evaluation (NSDI 2023); their notice lies beside them. Datasets of that
evaluation need no row in workloads.csv.
"""

import csv
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from msgspec import ValidationError, convert

from analyzers.simulation.clusters import Submission
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
_POWER = "summary_power_"
_WORKLOADS = "workloads.csv"
_NAME_A_DIRECTORY = "Name a directory of traces, or none for those of the package."
_NAME_A_CLUSTER = "Name a table of submissions, or none for synthetic ones."

T = TypeVar("T")


def read(directory: Path = PUBLISHED) -> Traces:
    """Return the tables of a directory. Raises StorageError, with file, line and column."""
    trained = tuple(_rows(directory / "summary_train.csv", Trained))
    files = sorted(directory.glob(f"{_POWER}*.csv"))
    if not files:
        raise StorageError(
            f"{directory}: could not be read: no file is named {_POWER}GPU.csv. {_NAME_A_DIRECTORY}"
        )
    if nameless := [path.name for path in files if not re.fullmatch(r"[\w.-]+", _gpu(path))]:
        raise StorageError(
            f"{directory}: could not be read: {nameless[0]} names no GPU model. Name it {_POWER}GPU.csv."
        )
    powered = {_gpu(path): tuple(_rows(path, Powered)) for path in files}
    known = {one.dataset: one for one in _rows(PUBLISHED / _WORKLOADS, RecordedWorkload)}
    if (directory / _WORKLOADS).exists():
        known |= {one.dataset: one for one in _rows(directory / _WORKLOADS, RecordedWorkload)}
    datasets = {row.dataset for row in trained}
    if lacking := sorted(datasets - known.keys()):
        raise StorageError(
            f"{directory / _WORKLOADS}: could not be read: it has no row for {lacking[0]}. Add one."
            f" {_NAME_A_DIRECTORY}"
        )
    return Traces(trained, powered, {name: of for name, of in known.items() if name in datasets})


def digest(directory: Path) -> str:
    """Return what tells the traces of a directory from others that `read` has accepted."""
    files = sorted(directory.glob("*.csv"))
    return sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()[:12]


def read_cluster(path: Path) -> tuple[Submission, ...]:
    """Return the submissions of a cluster. Raises StorageError, with line and column."""
    return tuple(_rows(path, Submission, _NAME_A_CLUSTER))


def _gpu(path: Path) -> str:
    return path.stem.removeprefix(_POWER)


def _rows(path: Path, kind: type[T], advice: str = _NAME_A_DIRECTORY) -> Iterator[T]:
    """Yield the rows of a file. Raises StorageError, with line and column."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader, count = csv.DictReader(file, strict=True), 0
            for count, fields in enumerate(reader, 1):
                if count > MAX_ROWS:
                    raise StorageError(
                        f"{path}: could not be read: it has more than {MAX_ROWS} rows. {advice}"
                    )
                known = {name: text for name, text in fields.items() if text and text.lower() != "nan"}
                try:
                    yield convert(known, kind, strict=False)
                except ValidationError as wrong:
                    why = str(wrong).replace("`$.", "`")
                    raise StorageError(
                        f"{path}, line {reader.line_num}: could not be read: {why}. Correct it. {advice}"
                    ) from wrong
            if not count:
                raise StorageError(f"{path}: could not be read: it has no rows. {advice}")
    except OSError as wrong:
        raise StorageError(f"{path}: could not be read: {wrong.strerror}. {advice}") from wrong
    except (UnicodeDecodeError, csv.Error) as wrong:
        raise StorageError(f"{path}: could not be read: it is no CSV file. {advice}") from wrong
