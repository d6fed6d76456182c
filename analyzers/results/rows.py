"""The rows that the analyzer derives from the stream, each of a table of the archive. Pure.

Joules, watts and seconds: these are for people. A GPU is its UUID.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from analyzers.results.fleet_rows import (
    AllocationRow,
    CheckpointRow,
    CommandRow,
    ForecastRow,
    GpuRow,
    OwnUseRow,
    RunRow,
)
from analyzers.results.job_rows import JobRow, SimulatedTryRow, SimulationRow, TryRow
from analyzers.results.limit_rows import (
    BudgetRow,
    BudgetShareRow,
    BudgetTargetRow,
    DecisionRow,
    GpuLimitRow,
    ProfileRow,
    RecallRow,
    TrialRow,
)
from analyzers.results.pipeline_rows import (
    InstructionRow,
    InstructionSpanRow,
    PipelineRow,
    PlanPointRow,
    PlanRow,
)
from analyzers.results.signal_rows import SignalRow
from analyzers.results.window_rows import Floats, GapRow, Ints, MetricRow, PhaseRow, WindowRow

Row = (
    WindowRow
    | RunRow
    | AllocationRow
    | ForecastRow
    | GpuRow
    | TrialRow
    | DecisionRow
    | GpuLimitRow
    | ProfileRow
    | RecallRow
    | CommandRow
    | GapRow
    | MetricRow
    | SignalRow
    | JobRow
    | TryRow
    | SimulationRow
    | SimulatedTryRow
    | BudgetRow
    | BudgetShareRow
    | BudgetTargetRow
    | PhaseRow
    | PipelineRow
    | InstructionRow
    | InstructionSpanRow
    | PlanPointRow
    | PlanRow
    | CheckpointRow
    | OwnUseRow
)
PUBLISHED: tuple[type[Row], ...] = tuple(kind for kind in get_args(Row) if kind is not CheckpointRow)
"""The rows that an analyzer publishes: all that it stores but its own state."""


_OWNER = ("session", "run", "job", "rank", "host", "gpu")
KIND = "step"
"""Kind and name of all of them."""


class StepColumns(Struct, frozen=True, kw_only=True):
    """Rows of `WindowRow` of one session on one GPU; all columns have the same length."""

    session: str
    run: str
    job: str
    rank: int
    host: str
    gpu: str
    index: Ints
    begin_ns: Ints
    end_ns: Ints
    duration_s: Floats
    energy_j: Floats
    """NaN, here and in the others, stands for NULL."""
    energy_low_j: Floats
    energy_high_j: Floats
    energy_p2_5_j: Floats
    energy_p97_5_j: Floats
    phase_coverage: Floats
    power_limit_w: Floats
    estimator: tuple[str | None, ...]
    quality: tuple[str, ...]
    shared: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def same(self) -> Mapping[str, Any]:
        """Return the columns of `WindowRow` in which all rows are the same."""
        return {name: getattr(self, name) for name in _OWNER} | {"kind": KIND, "name": KIND}

    def rows(self) -> Iterator[WindowRow]:
        same = self.same
        for values in zip(*(self.values(name) for name in VARIED), strict=True):
            yield WindowRow(**same, **dict(zip(VARIED, values, strict=True)))

    def values(self, name: str) -> Sequence[Any]:
        """Return a column as rows have it."""
        column = getattr(self, name)
        if isinstance(column, tuple):
            return column
        values: list[Any] = column.tolist()
        if column.dtype == np.float64 and np.isnan(column).any():
            return [None if value != value else value for value in values]  # noqa: PLR0124  (it is NaN)
        return values


VARIED = tuple(name for name in StepColumns.__struct_fields__ if name not in _OWNER)
"""The columns that differ from row to row."""
Derived: TypeAlias = Row | StepColumns
"""Rows derived from the stream: one, or many."""


def each_row(derived: Iterable[Derived]) -> Iterator[Row]:
    for rows in derived:
        if type(rows) is StepColumns:
            yield from rows.rows()
        else:
            yield rows  # type: ignore[misc]  # mypy does not narrow by `type`
