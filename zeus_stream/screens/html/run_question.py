"""The question for everything that a `RunView` of an archive shows. Pure."""

from zeus_stream.screens.html.questions import COMMAND, SAVING, TOTALS, WHOLE, Asking, Rows, quoted
from zeus_stream.views.costs import COSTS, at_price
from zeus_stream.views.forecast import FORECAST
from zeus_stream.views.pipeline_view import PIPELINE
from zeus_stream.views.run_view import RunRows

WASTE = """
SELECT cause, energy_j, duration_s, share FROM waste_of({run}) ORDER BY energy_j DESC NULLS LAST, cause
"""
_STEPS = """
SELECT power_limit_w, sum(energy_j) / sum(steps) AS step_j FROM trials
WHERE run = {run} AND NOT confirms GROUP BY round, power_limit_w
QUALIFY round = max(round) OVER ()
"""
SO_FAR = """
SELECT CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j,
    (epoch_us(max(power.began_at)) + 1_000_000) * 1000 AS as_of_ns,
    epoch(max(power.began_at)) + 1 - epoch(any_value(since.began_at)) AS duration_s
FROM power JOIN (
    SELECT gpu, min(began_at) AS began_at
    FROM (SELECT unnest(gpus) AS gpu, began_at FROM sessions WHERE run = {run} AND ended_ns IS NULL)
    GROUP BY gpu
) AS since ON since.gpu = power.gpu AND power.began_at >= date_trunc('second', since.began_at)
"""
"""Of sessions that are open: the energy of their GPUs until now, to the second."""


def find_run_rows(run: str) -> Asking[RunRows | None]:
    """Ask for the rows of a run. None: the archive does not have it."""
    name = quoted(run)
    (totals,) = yield TOTALS.format(run=name, command=quoted(f"{run}{COMMAND}"))
    if not totals["sessions"]:
        return None
    (whole,) = yield WHOLE.format(run=name)
    savings = yield SAVING.format(run=name)
    trials = (yield _STEPS.format(run=name)) if savings else ()
    so_far = (yield SO_FAR.format(run=name)) if totals["open_sessions"] else ()
    forecasts = (yield FORECAST.format(run=name)) if totals["open_sessions"] else ()
    pipelines = yield PIPELINE.format(run=name)
    waste = yield WASTE.format(run=name)
    return RunRows(
        run=run, totals=totals, whole=whole, waste=waste, trials=trials,
        so_far=so_far[0] if so_far else None,
        saving=savings[0] if savings else None,
        forecast=forecasts[0] if forecasts else None,
        pipeline=pipelines[0] if pipelines else None,
    )  # fmt: skip


def find_costs(run: str, price: tuple[float, str] | None, energy_j: float | None = None) -> Asking[Rows]:
    """Ask for money and carbon of a run by the signals, or for its energy at a price: see `at_price`."""
    if price is not None:
        return [at_price(energy_j, price)]
    return (yield COSTS.format(run=quoted(run)))
