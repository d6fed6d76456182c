"""Panels of one GPU: its lease, its counter, the runs on it, commands and gaps. Pure."""

from collections.abc import Generator

from zeus_stream.screens.html.elements import Markup
from zeus_stream.screens.html.panels import PagePanel, TablePanel, as_is, facts, plain
from zeus_stream.screens.html.questions import Asking, PageGpu, Row, quoted
from zeus_stream.screens.html.site_panels import link_run, recent_runs, run_link
from zeus_stream.views.quantity import figure, watts

_FACTS = """
SELECT min_limit_w, max_limit_w, found_limit_w, period_ms, counter_kind, sensor_window_ms, counts_energy,
    gone,
    (SELECT string_agg(DISTINCT regexp_extract(quality, 'gain [0-9.]+'), ', ') FROM (
        SELECT quality FROM windows WHERE gpu = {gpu} AND kind = 'run' AND contains(quality, 'gain')
        ORDER BY end_ns DESC LIMIT 1)) AS calibration,
    (SELECT coalesce(any_value(run), '') FROM (
        SELECT run, limit_w, clock_mhz FROM commands WHERE gpu = {gpu} AND outcome = 'applied'
        ORDER BY outcome_ns DESC LIMIT 1) WHERE limit_w IS NOT NULL OR clock_mhz IS NOT NULL) AS lease
FROM gpus WHERE gpu = {gpu}
"""
_GPU_COMMANDS = """
SELECT make_timestamp((hosts.wall_ns + asked_ns - hosts.monotonic_ns) // 1000) AS asked_at, run, control,
    limit_w, clock_mhz, outcome, outcome_limit_w, reason
FROM commands, gpus, LATERAL (
    SELECT wall_ns, monotonic_ns FROM hosts WHERE hosts.host = gpus.host ORDER BY monotonic_ns DESC LIMIT 1
) AS hosts
WHERE commands.gpu = {gpu} AND gpus.gpu = {gpu} ORDER BY asked_ns DESC LIMIT {limit}
"""
_GPU_GAPS = """
SELECT what, reason, sum(count)::BIGINT AS missing FROM gaps WHERE contains(reason, {gpu}) GROUP BY ALL
ORDER BY missing DESC LIMIT {limit}
"""


def gpu_panels(gpu: PageGpu) -> Generator[Asking[PagePanel | None], None, None]:
    """Yield the questions of the page of one GPU."""
    yield _gpu_facts(gpu)
    on_it = f"list_contains(gpus, {quoted(gpu.gpu)})"
    yield recent_runs(on_it, "Runs on it", "../", "No run was on this GPU.")
    yield _COMMANDS_PANEL.ask("../", gpu=quoted(gpu.gpu))
    yield _GAPS_PANEL.ask(gpu=quoted(gpu.gpu))


def _gpu_facts(gpu: PageGpu) -> Asking[PagePanel | None]:
    """Ask for the lease on a GPU, its limits, its counter and its calibration."""
    (row,) = yield _FACTS.format(gpu=quoted(gpu.gpu))
    kind = row["counter_kind"] or ("not known yet" if row["counts_energy"] else "power")
    window = row["sensor_window_ms"]
    sees = "" if window is None else f"; it sees the last {window:.0f} ms"
    span = f"{watts(row['min_limit_w'])} to {watts(row['max_limit_w'])}"
    items: list[tuple[str, str | Markup, str | Markup]] = [
        ("lease", run_link(row["lease"], "../") if row["lease"] else "none", "who may change its limit"),
        ("limit found", watts(row["found_limit_w"]), f"possible: {span}"),
        ("counter", kind, f"changes every {figure(row['period_ms'], 'ms', 3)}{sees}"),
        ("calibration", row["calibration"] or "none", "of its counter, against a meter"),
    ]
    if row["gone"]:
        items.append(("gone", "yes", row["gone"]))
    return PagePanel(name="facts", title="This GPU", body=facts(items), text="", rows=[row])


def _asked(row: Row, _: str) -> str:
    if row["clock_mhz"] is not None:
        return f"{row['clock_mhz']} MHz"
    return "release" if row["limit_w"] is None else watts(row["limit_w"])


_COMMANDS_PANEL = TablePanel(
    name="commands", title="Commands", sql=_GPU_COMMANDS, made={"run": link_run, "asked": _asked},
    text="The latest first. A release gives back what was found.",
    columns={
        "asked_at": ("asked, UTC", plain), "run": ("run", as_is), "asked": ("asked for", plain),
        "outcome": ("outcome", lambda value: value or "under way"), "outcome_limit_w": ("limit then", watts),
        "reason": ("reason", plain),
    },
)  # fmt: skip
_GAPS_PANEL = TablePanel(
    name="gaps", title="Missing data", sql=_GPU_GAPS,
    columns={"what": ("what", plain), "missing": ("missing", plain), "reason": ("why", plain)},
)  # fmt: skip
