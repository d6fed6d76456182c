"""The content of a screen for a `Snapshot`: lines of text with tones, for one width. Pure.

    (snapshot, history, looks, width) -> View: head, panels of lines, keys

Columns that do not fit are left out, the least important first. A line is never wider than its panel. What is
not known is ``-`` with its reason, never 0.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.screens.terminal.figures import Line, StyledText, clean, dimmed, fit_line
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.panels.columns import FRAME, Looks, Panel, matches
from zeus_stream.screens.terminal.panels.gpu_panel import gpu_panel
from zeus_stream.screens.terminal.panels.power_chart import power_panel
from zeus_stream.screens.terminal.panels.run_panel import run_panel, search_panel
from zeus_stream.views.quantity import counted
from zeus_stream.views.site_view import SiteView, site_of_live

MOST_POWER = 14
"""Rows of the panel of power."""
LOW = 12
"""Rows below the head; of fewer, only runs are shown."""
SIDE_BY_SIDE = 118
"""Cells from which on runs and search are beside each other."""
KEYS = (
    ("q", "quit"), ("/", "filter"), ("s", "sort"), ("enter", "run"), ("w", "unit"),
    ("u", "users"), ("g", "gaps"), ("p", "pause"), ("?", "help"),
)  # fmt: skip


class View(Struct, frozen=True, kw_only=True):
    """Everything on the screen."""

    head: tuple[Line, ...]
    gpus: Panel
    runs: Panel
    search: Panel
    power: Panel | None
    """None: there is no room for it."""
    side_by_side: bool
    heights: tuple[int, int, int]
    """Rows of the panels of GPUs, runs and search, frames included."""
    foot: Line


def view(
    snapshot: Snapshot, history: History, width: int, looks: Looks | None = None, height: int = 40
) -> View:
    """Return the screen, ``width`` cells and ``height`` rows large; panels scroll where they are higher."""
    looks = looks or Looks()
    site = site_of_live(snapshot)
    width = max(width, 20)
    side_by_side = width >= SIDE_BY_SIDE
    runs_width = width * 62 // 100 if side_by_side else width
    runs = [run for run in site.runs if matches(looks, run.run, run.job, *run.hosts)]
    chosen = next((run for run in runs if run.run == looks.run), runs[0] if runs else None)
    head = _head(site, width, looks)
    gpus = gpu_panel(site, history, width - FRAME, looks)
    running = run_panel(site, runs, runs_width - FRAME)
    search = search_panel(chosen, width - runs_width - FRAME if side_by_side else width - FRAME)
    heights, spare = _heights(gpus, running, search, height - len(head) - 1, side_by_side=side_by_side)
    shown = View(
        head=head,
        gpus=gpus,
        runs=running,
        search=search,
        power=power_panel(chosen, history, width, min(spare, MOST_POWER)),
        side_by_side=side_by_side,
        heights=heights,
        foot=fit_line(_foot(), width),
    )
    return _old(shown) if looks.trouble else shown


def _heights(
    gpus: Panel, runs: Panel, search: Panel, height: int, *, side_by_side: bool
) -> tuple[tuple[int, int, int], int]:
    """Return the rows of the panels, and those that are left. A low screen has runs alone, a line each."""
    if height < LOW:
        return (0, max(3, height), 0), 0
    wanted = [len(panel.lines) + 2 + bool(panel.head) for panel in (gpus, runs, search)]
    below = max(wanted[1:]) if side_by_side else wanted[1] + wanted[2]
    of_gpus = max(min(wanted[0], height - below), min(wanted[0], height // 2))
    left = height - of_gpus
    if side_by_side:
        rows = max(3, min(below, left))
        return (of_gpus, rows, rows), left - rows
    of_runs = max(3, min(wanted[1], max(left - wanted[2], left // 2)))
    of_search = max(3, min(wanted[2], left - of_runs))
    return (of_gpus, of_runs, of_search), left - of_runs - of_search


def _old(shown: View) -> View:
    def old(panel: Panel) -> Panel:
        return replace(panel, lines=tuple(map(dimmed, panel.lines)))

    return replace(shown, gpus=old(shown.gpus), runs=old(shown.runs), search=old(shown.search))


def _foot() -> Line:
    return tuple(
        span
        for key, what in KEYS
        for span in (StyledText(f" {key}", "accent"), StyledText(f" {what} ", "dim"))
    )


# ---- the head -----------------------------------------------------------------------------------------


def _head(site: SiteView, width: int, looks: Looks) -> tuple[Line, ...]:
    parts: list[Line] = [(StyledText(" zeus-stream ", "strong"),)]
    if site.process == "collector":
        parts.append((StyledText("collector only", "warn"),))
    parts.append((StyledText(f"{counted(site.hosts, 'host')}, {counted(site.gpus_known, 'GPU')}"),))
    parts.append((StyledText(str(site.power), "strong"),))
    parts.append((StyledText(f"{site.energy} {site.span}"),))
    if site.saved.known is not None:
        share = "" if site.saved_share.known is None else f" ({site.saved_share})"
        parts.append((StyledText(f"saved {site.saved}{share}", "good"),))
    parts.append((StyledText(f"gaps {site.gap_count:,}", "warn" if site.gap_count else "dim"),))
    if site.lag.known is not None:
        parts.append((StyledText(f"lag {site.lag}", "warn" if site.late else "dim"),))
    lines = _packed(parts, width)
    lines += [(StyledText(f" {text}", tone),) for text, tone in _notices(site, looks)]
    return tuple(fit_line(line, width) for line in lines)


def _notices(site: SiteView, looks: Looks) -> list[tuple[str, Literal["warn", "bad", "dim"]]]:
    """Return what somebody who looks has to know before the rest."""
    notices: list[tuple[str, Literal["warn", "bad", "dim"]]] = []
    if looks.trouble:
        notices.append((looks.trouble, "bad"))
    if looks.paused:
        notices.append(("paused: p goes on", "warn"))
    if looks.words:
        notices.append((f"only rows with: {clean(looks.words)}", "dim"))
    notices += [(clean(trouble), "bad") for trouble in site.troubles]
    if site.left_out:
        notices.append((f"not shown: {site.left_out}; ask for one host with --host", "dim"))
    return notices[:4]


def _packed(parts: Sequence[Line], width: int) -> list[Line]:
    """Return the parts side by side, in as many lines as they need."""
    lines: list[list[StyledText]] = [[]]
    size = 0
    for part in parts:
        wide = sum(len(span.text) for span in part) + 3
        if lines[-1] and size + wide > width:
            lines.append([StyledText(" ")])
            size = 1
        lines[-1] += [*part, StyledText("   ")]
        size += wide
    return [tuple(line) for line in lines]
