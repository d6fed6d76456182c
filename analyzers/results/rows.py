"""The rows that the analyzer derives from the stream, each of a table of the archive. Pure.

Joules, watts and seconds: these are for people. A GPU is its UUID.
"""

from typing import get_args

from analyzers.results.fleet_rows import (
    AllocationRow,
    CheckpointRow,
    CommandRow,
    ForecastRow,
    GpuRow,
    OwnUseRow,
    RunRow,
)
from analyzers.results.job_rows import Ended, JobRow, SimulatedTryRow, SimulationRow, TryRow
from analyzers.results.limit_rows import (
    AtLimit,
    BudgetRow,
    BudgetShareRow,
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
from analyzers.results.windows.window_rows import GapRow, MetricRow, PhaseRow, WindowRow

__all__ = [
    "PUBLISHED",
    "AllocationRow",
    "AtLimit",
    "BudgetRow",
    "BudgetShareRow",
    "CheckpointRow",
    "CommandRow",
    "DecisionRow",
    "Ended",
    "ForecastRow",
    "GapRow",
    "GpuLimitRow",
    "GpuRow",
    "InstructionRow",
    "InstructionSpanRow",
    "JobRow",
    "MetricRow",
    "OwnUseRow",
    "PhaseRow",
    "PipelineRow",
    "PlanPointRow",
    "PlanRow",
    "ProfileRow",
    "RecallRow",
    "Row",
    "RunRow",
    "SignalRow",
    "SimulatedTryRow",
    "SimulationRow",
    "TrialRow",
    "TryRow",
    "WindowRow",
]

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
