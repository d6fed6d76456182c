"""The hosts of a site with a meter: GPUs + CPUs + memory + rest = wall, as a table of a page. Pure."""

from zeus_stream.screens.html.panels import Columns, PagePanel, plain, table
from zeus_stream.screens.html.questions import Asking
from zeus_stream.screens.site.period import Period
from zeus_stream.views.quantity import figure, joules, seconds, with_bounds, within_half

_BALANCE = """
SELECT host, sum(covered_s) AS covered_s, sum(gpu_j) AS gpu_j, sum(cpu_j) AS cpu_j, sum(memory_j) AS memory_j,
    sum(rest_j) AS rest_j, sum(wall_j) AS wall_j, sum(wall_j) / nullif(sum(gpu_j), 0) AS wall_per_gpu,
    CASE WHEN count(rest_within_j) = count(*) THEN sum(rest_within_j) END AS rest_within_j
FROM balance WHERE began_at >= make_timestamp({begin_us}) AND began_at < make_timestamp({end_us})
GROUP BY host ORDER BY wall_j DESC
"""
_COLUMNS: Columns = {
    "host": ("host", plain), "covered_s": ("time", seconds), "gpu_j": ("GPUs", joules),
    "cpu_j": ("CPUs", joules), "memory_j": ("memory", joules), "rest": ("rest", with_bounds),
    "wall_j": ("wall", joules), "wall_per_gpu": ("wall / GPUs", figure),
}  # fmt: skip


def whole_hosts(period: Period) -> Asking[PagePanel | None]:
    """Ask for the energy of the hosts with a meter. Hours count that began in the period."""
    rows = yield _BALANCE.format(begin_us=period.begin_ns // 1000, end_us=period.end_ns // 1000)
    if not rows:
        return None
    shown = [{**row, "rest": within_half(row["rest_j"], "J", row["rest_within_j"])} for row in rows]
    return PagePanel(
        name="hosts", title="Whole hosts", body=table(shown, _COLUMNS, "Whole hosts"),
        text="GPUs + CPUs + memory + rest = wall, by the meters of the hosts.", rows=rows,
    )  # fmt: skip
