"""Steps that were measured together, as columns: a row object each would take most of their time. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

from analyzers.results.rows import Row, WindowRow
from zeus_stream.records import record

_OWNER = ("session", "run", "job", "rank", "host", "gpu")
KIND = "step"
"""Kind and name of all of them."""


@record(kw_only=True)
class StepColumns:
    """Rows of `WindowRow` of one session on one GPU; all columns have the same length."""

    session: str
    run: str
    job: str
    rank: int
    host: str
    gpu: str
    index: tuple[int, ...]
    begin_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    duration_s: tuple[float, ...]
    energy_j: tuple[float | None, ...]
    energy_low_j: tuple[float | None, ...]
    energy_high_j: tuple[float | None, ...]
    energy_p2_5_j: tuple[float | None, ...]
    energy_p97_5_j: tuple[float | None, ...]
    phase_coverage: tuple[float | None, ...]
    power_limit_w: tuple[float | None, ...]
    estimator: tuple[str | None, ...]
    quality: tuple[str, ...]
    shared: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def same(self) -> Mapping[str, Any]:
        """Return the columns of `WindowRow` in which all rows are the same."""
        return {name: getattr(self, name) for name in _OWNER} | {"kind": KIND, "name": KIND}

    def rows(self) -> Iterator[WindowRow]:
        """Yield each row."""
        same = self.same
        for values in zip(*(getattr(self, name) for name in VARIED), strict=True):
            yield WindowRow(**same, **dict(zip(VARIED, values, strict=True)))


VARIED = tuple(field.name for field in fields(StepColumns) if field.name not in _OWNER)
"""The columns that differ from row to row."""
Derived: TypeAlias = Row | StepColumns
"""Rows derived from the stream: one, or many."""


def each_row(derived: Iterable[Derived]) -> Iterator[Row]:
    """Yield each row, also those in columns."""
    for rows in derived:
        if type(rows) is StepColumns:
            yield from rows.rows()
        else:
            yield rows  # type: ignore[misc]  # mypy does not narrow by `type`
