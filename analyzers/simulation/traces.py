"""Reads the published traces of Zeus's evaluation: what trainings of six workloads took.

Source: artifact of Zeus (NSDI 2023), Apache-2.0: ``summary_train.csv``, ``summary_power_v100.csv``,
``summary_power_a40.csv``.
"""

import csv
from collections.abc import Iterator
from math import isnan
from pathlib import Path

from analyzers.simulation.recorded_jobs import GPUS, Powered, Traces, Trained
from zeus_stream.errors import RefusedError


def read(directory: Path) -> Traces:
    """Return the tables of a directory. Raises RefusedError."""
    trained = (
        Trained(
            row["dataset"],
            row["network"],
            int(row["batch_size"]),
            row["optimizer"],
            row["learning_rate"],
            row["run"],
            float(row["target_metric"]),
            None if isnan(epoch := float(row["target_epoch"] or "nan")) else round(epoch),
        )
        for row in _rows(directory / "summary_train.csv")
    )
    return Traces(tuple(trained), {gpu: tuple(_powered(directory, gpu)) for gpu in GPUS})


def _powered(directory: Path, gpu: str) -> Iterator[Powered]:
    for row in _rows(directory / f"summary_power_{gpu}.csv"):
        yield Powered(
            row["dataset"],
            row["network"],
            int(row["batch_size"]),
            row["optimizer"],
            round(float(row["power_limit"])),
            float(row["time_per_epoch"]),
            float(row["average_power"]),
        )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from csv.DictReader(file)
    except OSError as wrong:
        raise RefusedError(
            f"{path}: could not be read: {wrong.strerror}. Name the directory of the published traces."
        ) from wrong
