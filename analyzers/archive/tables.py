"""Registry of derived rows: the table, the key and the UTC columns of each kind."""

from analyzers.results.rows import (
    BudgetRow,
    BudgetShareRow,
    CommandRow,
    DecisionRow,
    GapRow,
    GpuLimitRow,
    GpuRow,
    InstructionRow,
    JobRow,
    MetricRow,
    PipelineRow,
    PlanPointRow,
    PlanRow,
    ProfileRow,
    RecallRow,
    RunRow,
    SimulatedTryRow,
    SimulationRow,
    TrialRow,
    TryRow,
    WindowRow,
)

DERIVED: dict[type, tuple[str, tuple[str, ...], bool]] = {
    RunRow: ("runs", ("session",), True),
    GpuRow: ("gpus", ("gpu",), True),
    TrialRow: ("trials", ("run", "number"), True),
    DecisionRow: ("decisions", ("run", "number"), True),
    ProfileRow: ("profiled", ("session", "round", "power_limit_w"), True),
    RecallRow: ("recalls", ("session", "round"), True),
    GpuLimitRow: ("gpu_limits", ("run", "round", "gpu"), True),
    CommandRow: ("commands", ("command",), True),
    BudgetRow: ("budgets", ("budget", "set_ns"), True),
    BudgetShareRow: ("rations", ("gpu",), True),
    WindowRow: ("windows", ("session", "kind", "index", "gpu"), False),
    MetricRow: ("metrics", ("session", "name", "t_ns", "step"), False),
    JobRow: ("jobs", ("job", "version"), True),
    TryRow: ("tries", ("job", "number"), True),
    GapRow: ("gaps", ("host", "what", "t_ns", "count", "reason"), False),
    PipelineRow: ("pipelines", ("run",), True),
    InstructionRow: ("instructions", ("run", "stage", "kind", "chunk", "clock_mhz"), True),
    PlanPointRow: ("plan_points", ("run", "slowdown"), True),
    PlanRow: ("plans", ("run", "number"), True),
    SimulationRow: ("simulations", ("game",), True),
    SimulatedTryRow: ("simulated_tries", ("game", "number"), True),
}
"""Kind of row: its table, its key, and whether it repeats though nothing is interpreted again.
Runs come first: windows take their UTC from them."""

WITH_UTC = {
    "tries": "SELECT *, make_timestamp(began_wall_ns // 1000) AS began_at,"
    " make_timestamp(ended_wall_ns // 1000) AS ended_at FROM incoming_tries",
    "runs": "SELECT * REPLACE (coalesce(start, (SELECT starts FROM meta)) AS start),"
    " utc(began_wall_ns, began_ns, began_ns) AS began_at, utc(began_wall_ns, began_ns, ended_ns) AS ended_at"
    " FROM incoming_runs",
    "budgets": "SELECT *, make_timestamp(set_ns // 1000) AS set_at,"
    " make_timestamp(begin_ns // 1000) AS began_at, make_timestamp(end_ns // 1000) AS ended_at"
    " FROM incoming_budgets",
    "windows": "SELECT incoming.*, utc(runs.began_wall_ns, runs.began_ns, incoming.begin_ns) AS began_at"
    " FROM incoming_windows AS incoming LEFT JOIN runs USING (session)",
}
