"""Panel of a run's phases: seconds and joules of what its steps consist of. Pure."""

from zeus_stream.screens.html.panels import Columns, Panel, bars, plain
from zeus_stream.screens.html.questions import Asking, Run, quoted
from zeus_stream.views.quantity import joules, percent, seconds

PHASES_SHOWN = 40
_PHASES = """
WITH of_run AS (
    SELECT phase, sum(times)::BIGINT AS times, sum(duration_s) AS duration_s,
        CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j,
        CASE WHEN count(energy_j) = count(*)
            THEN sqrt(sum(((energy_p97_5_j - energy_p2_5_j) / 2) ** 2)) END AS error_j,
        max(quality) FILTER (quality <> 'ok') AS why
    FROM phases WHERE run = {run} AND epoch IS NULL GROUP BY phase
)
SELECT *, 100 * energy_j / sum(energy_j) OVER () AS percent
FROM of_run ORDER BY energy_j DESC NULLS LAST, duration_s DESC LIMIT {limit}
"""


def phases(run: Run) -> Asking[Panel | None]:
    """Ask for the phases of steps, with bars."""
    rows = yield _PHASES.format(run=quoted(run.run), limit=PHASES_SHOWN)
    if not rows:
        return None
    more: Columns = {
        "error_j": ("give or take", joules),
        "percent": ("share", percent),
        "duration_s": ("time", seconds),
        "times": ("times", plain),
        "why": ("", plain),
    }
    text = "Energy of the phases of all steps, by least squares over many refreshes of the counter (95 %)."
    body = bars(rows, "phase", "phase", more)
    return Panel(name="phases", title="Phases of the steps", body=body, text=text, rows=rows)
