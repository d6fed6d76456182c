"""The panel of GPUs. Pure."""

from collections.abc import Iterator, Sequence
from typing import Literal

from zeus_stream.screens.terminal.figures import Line, StyledText, bar, clean, dimmed, fit_line, sparkline
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.panels.columns import Column, Looks, Panel, counted, heads, line_of, matches
from zeus_stream.views.gpu_view import GpuView, ProcessView
from zeus_stream.views.quantity import ABSENT, compact, figure, whole
from zeus_stream.views.site_view import SiteView

SPARK_S = 60.0
LEAST_RUN = 12
"""Cells that the column of runs keeps beside those of clock and memory."""


def gpu_panel(site: SiteView, history: History, width: int, looks: Looks) -> Panel:
    gpus = [gpu for gpu in site.gpus if matches(looks, gpu.host, gpu.gpu, gpu.model, gpu.run)]
    if looks.sort == "power":
        gpus.sort(key=lambda gpu: -(gpu.power.known or 0))
    elif looks.sort == "run":
        gpus.sort(key=lambda gpu: (not gpu.run, gpu.run))
    hosts = {gpu.host for gpu in site.gpus}
    columns = _gpu_columns(gpus, history, width, looks, many_hosts=len(hosts) > 1)
    many = f"{len(gpus)} of {len(site.gpus)} GPUs" if looks.words else counted(len(gpus), "GPU")
    sort = "" if looks.sort == "place" else f", by {looks.sort}"
    return Panel(
        title=f"{many}{sort}",
        head=heads(columns, width),
        lines=tuple(_gpu_line(gpu, row, columns, width) for row, gpu in enumerate(gpus)),
        keys=tuple(gpu.gpu for gpu in gpus),
    )


def _gpu_columns(
    gpus: Sequence[GpuView], history: History, width: int, looks: Looks, *, many_hosts: bool
) -> list[Column]:
    """Return the columns that fit."""
    bar_width = 10 if width < 100 else 14 if width < 140 else 22
    spark = 0 if width < 96 else 20 if width < 140 else 30
    host_width = max((len(gpu.host) for gpu in gpus), default=4)
    host = Column("host", max(4, min(14, host_width)), lambda row: (StyledText(clean(gpus[row].host)),))
    model_width = max((len(gpu.model) for gpu in gpus), default=18)
    model = Column(
        "model",
        min(18 if width < 150 else 30, max(5, model_width)),
        lambda row: (StyledText(clean(gpus[row].model), "dim"),),
    )
    index = Column("gpu", 3, lambda row: (StyledText(gpus[row].index),), right=True)
    figure = _figure(gpus, looks)
    limit = Column("limit W", 9, lambda row: _limit(gpus[row]))
    step_j = Column("J/step", 7, lambda row: (StyledText(compact(gpus[row].step_energy.known)),), right=True)
    degrees = Column(
        "°C", 3, lambda row: (StyledText(whole(gpus[row].temperature), _heat(gpus[row])),), right=True
    )
    percent = Column("%", 3, lambda row: (StyledText(whole(gpus[row].utilization)),), right=True)
    gauge = Column("", bar_width, lambda row: _gauge(gpus[row], bar_width))
    minute = Column("60 s", spark, lambda row: (StyledText(_minute(gpus[row], history, spark), "bar"),))
    run = Column(
        "run",
        0,
        lambda row: (StyledText(clean(gpus[row].run or ABSENT), "plain" if gpus[row].run else "dim"),),
    )
    if width < 76:
        return [
            *([host] if many_hosts and width >= 46 else []),
            index,
            figure,
            limit,
            step_j,
            *([run] if width >= 40 else []),
        ]
    columns = [index, figure, gauge, limit, step_j, degrees, percent]
    if width >= 140:
        columns.insert(1, model)
    if many_hosts or width >= 96:
        columns.insert(0, host)
    columns += [minute] if spark else []
    left = width - sum(column.width + 1 for column in columns)
    for more in _more(gpus):
        if (left := left - more.width - 1) < LEAST_RUN:
            break
        columns.insert(columns.index(percent) + 1, more)
    return [*columns, run]


def _more(gpus: Sequence[GpuView]) -> Iterator[Column]:
    """Yield columns of what is known of some GPU, the more important first."""
    if any(gpu.memory_words for gpu in gpus):
        size = max(5, *(len(gpu.memory_words) for gpu in gpus))
        yield Column("GiB", size, lambda row: (StyledText(gpus[row].memory_words or ABSENT),), right=True)
    if any(gpu.clock.known is not None for gpu in gpus):
        yield Column("MHz", 5, lambda row: (StyledText(whole(gpus[row].clock)),), right=True)


def process_panel(site: SiteView, width: int, looks: Looks) -> Panel:
    """Return the processes on the GPUs."""
    found = [each for each in site.processes if matches(looks, each.host, each.user, each.command, each.run)]
    columns = [
        Column("gpu", 3, lambda row: (StyledText(found[row].index),), right=True),
        Column("pid", 8, lambda row: (StyledText(found[row].pid),), right=True),
        Column("user", 10, lambda row: (StyledText(clean(found[row].user)),)),
        Column("GiB", 5, lambda row: (StyledText(_size(found[row])),), right=True),
        Column("program", 0, lambda row: (StyledText(clean(found[row].command)),)),
    ]
    if width >= 76:
        columns.insert(4, Column("run", 16, lambda row: (StyledText(clean(found[row].run), "dim"),)))
    if len({each.host for each in site.processes}) > 1:
        columns.insert(0, Column("host", 12, lambda row: (StyledText(clean(found[row].host)),)))
    return Panel(
        title=counted(sum(bool(each.pid) for each in found), "process", "processes"),
        head=heads(columns, width) if found else (),
        lines=tuple(
            line_of([each.cell(row) for each in columns], columns, width) for row in range(len(found))
        ),
        keys=tuple(each.pid for each in found),
    )


def _size(process: ProcessView) -> str:
    return "" if not process.pid else figure(process.memory.known, digits=2)


def _figure(gpus: Sequence[GpuView], looks: Looks) -> Column:
    """Return the column of power, of energy, or of what the energy costs."""
    if looks.unit == "price" and looks.price is not None:
        value, currency = looks.price
        head = f"{currency}"[:8]
        return Column(head, 8, lambda row: (StyledText(_money(gpus[row], value), "strong"),), right=True)
    if looks.unit == "W":
        return Column("W", 5, lambda row: (StyledText(whole(gpus[row].power), "strong"),), right=True)
    return Column(
        "energy", 8, lambda row: (StyledText(compact(gpus[row].energy.known, "J"), "strong"),), right=True
    )


def _money(gpu: GpuView, value: float) -> str:
    return ABSENT if gpu.energy.known is None else figure(gpu.energy.known / 3.6e6 * value, digits=3)


def _gpu_line(gpu: GpuView, row: int, columns: Sequence[Column], width: int) -> Line:
    if not gpu.trouble:
        return line_of([column.cell(row) for column in columns], columns, width)
    place = [column for column in columns if column.head in ("host", "gpu", "model")]
    head = line_of([column.cell(row) for column in place], place, sum(c.width + 1 for c in place))
    tone: Literal["bad", "warn"] = "bad" if gpu.gone else "warn"
    return fit_line(
        (*dimmed(head), StyledText(f"    {ABSENT}  ", "dim"), StyledText(clean(gpu.trouble), tone)), width
    )


def _heat(gpu: GpuView) -> Literal["plain", "warn"]:
    return "warn" if gpu.temperature.known is not None and gpu.temperature.known >= 85 else "plain"


def _limit(gpu: GpuView) -> Line:
    """Return the limit now, and the one found where that is another."""
    if gpu.limit.known is None:
        return (StyledText(ABSENT, "dim"),)
    if gpu.lowered:
        return StyledText(whole(gpu.limit), "good"), StyledText(f"<{whole(gpu.found)}", "dim")
    return (StyledText(whole(gpu.limit)),)


def _gauge(gpu: GpuView, width: int) -> Line:
    return bar(gpu.power.known, gpu.limit.known, gpu.most.known, width)


def _minute(gpu: GpuView, history: History, slots: int) -> str:
    return sparkline(history.gpu(gpu.gpu, SPARK_S, slots), gpu.most.known or gpu.power.known or 1)
