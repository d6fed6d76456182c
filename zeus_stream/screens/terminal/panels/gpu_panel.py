"""The panel of GPUs, and that of the processes on them. Pure."""

from collections.abc import Sequence
from functools import partial

from zeus_stream.screens.terminal.figures import Line, StyledText, bar, clean, dimmed, fit_line, sparkline
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.panels.columns import (
    Column,
    Looks,
    Panel,
    heads,
    line_of,
    matches,
    table_of,
    width_for,
)
from zeus_stream.views.costs import JOULES_PER_KWH
from zeus_stream.views.gpu_view import GpuView, ProcessView
from zeus_stream.views.quantity import ABSENT, counted, figure, three_digits, whole
from zeus_stream.views.site_view import SiteView

SPARK_S = 60.0
LEAST_RUN = 12
"""Cells that the column of runs keeps beside those of clock and memory."""
HOT_C = 85


def gpu_panel(site: SiteView, history: History, width: int, looks: Looks) -> Panel:
    gpus = [gpu for gpu in site.gpus if matches(looks, gpu.host, gpu.gpu, gpu.model, gpu.run)]
    if looks.sort == "power":
        gpus.sort(key=lambda gpu: -(gpu.power.known or 0))
    elif looks.sort == "run":
        gpus.sort(key=lambda gpu: (not gpu.run, gpu.run))
    columns = _gpu_columns(gpus, history, width, looks, many_hosts=len({gpu.host for gpu in site.gpus}) > 1)
    many = f"{len(gpus)} of {len(site.gpus)} GPUs" if looks.words else counted(len(gpus), "GPU")
    return Panel(
        title=many if looks.sort == "place" else f"{many}, by {looks.sort}",
        head=heads(columns, width),
        lines=tuple(_gpu_line(gpu, columns, width) for gpu in gpus),
        keys=tuple(gpu.gpu for gpu in gpus),
    )


def _gpu_columns(
    gpus: Sequence[GpuView], history: History, width: int, looks: Looks, *, many_hosts: bool
) -> list[Column]:
    """Return the columns that fit."""
    bar_width = 10 if width < 100 else 14 if width < 140 else 22
    spark = 0 if width < 96 else 20 if width < 140 else 30
    host = Column("host", width_for([gpu.host for gpu in gpus], 4, 14), lambda gpu: gpu.host)
    model = Column("model", width_for([gpu.model for gpu in gpus], 5, 18 if width < 150 else 30), _model)
    index = Column("gpu", 3, lambda gpu: gpu.index, right=True)
    limit = Column("limit W", 9, _limit)
    step_j = Column("J/step", 7, lambda gpu: three_digits(gpu.step_energy), right=True)
    run = Column("run", 0, lambda gpu: gpu.run or (StyledText(ABSENT, "dim"),))
    if width < 76:
        narrow = [index, _figure(looks), limit, step_j]
        return [*([host] if many_hosts and width >= 46 else []), *narrow, *([run] if width >= 40 else [])]
    columns = [
        *([host] if many_hosts or width >= 96 else []),
        index,
        *([model] if width >= 140 else []),
        _figure(looks),
        Column("", bar_width, lambda gpu: bar(gpu.power.known, gpu.limit.known, gpu.most.known, bar_width)),
        limit,
        step_j,
        Column("°C", 3, _heat, right=True),
        Column("%", 3, lambda gpu: whole(gpu.utilization), right=True),
    ]
    minute = [Column("60 s", spark, partial(_minute, history, spark))] if spark else []
    left = width - sum(column.width + 1 for column in (*columns, *minute))
    for more in _more(gpus):
        if (left := left - more.width - 1) < LEAST_RUN:
            break
        columns.append(more)
    return [*columns, *minute, run]


def _more(gpus: Sequence[GpuView]) -> list[Column]:
    """Return columns of what is known of some GPU, the more important first."""
    sizes = [gpu.memory_words for gpu in gpus]
    memory = Column("GiB", width_for(sizes, 5, 20), lambda gpu: gpu.memory_words or ABSENT, right=True)
    clock = Column("MHz", 5, lambda gpu: whole(gpu.clock), right=True)
    return [
        *([memory] if any(sizes) else []),
        *([clock] if any(gpu.clock.known is not None for gpu in gpus) else []),
    ]


def process_panel(site: SiteView, width: int, looks: Looks) -> Panel:
    """Return the processes on the GPUs."""
    found = [each for each in site.processes if matches(looks, each.host, each.user, each.command, each.run)]
    many_hosts = len({each.host for each in site.processes}) > 1
    columns = [
        *([Column("host", 12, lambda each: each.host)] if many_hosts else []),
        Column("gpu", 3, lambda each: each.index, right=True),
        Column("pid", 8, lambda each: each.pid, right=True),
        Column("user", 10, lambda each: each.user),
        Column("GiB", 5, _size, right=True),
        *([Column("run", 16, lambda each: (StyledText(clean(each.run), "dim"),))] if width >= 76 else []),
        Column("program", 0, lambda each: each.command),
    ]
    title = counted(sum(bool(each.pid) for each in found), "process", "processes")
    if site.processes_age.known is not None:
        title += f", memory as of {site.processes_age} ago"
    return table_of(title, found, columns, width, lambda each: each.pid) if found else Panel(title=title)


def _size(process: ProcessView) -> str:
    return "" if not process.pid else figure(process.memory.known, digits=2)


def _figure(looks: Looks) -> Column:
    """Return the column of power, of energy, or of what the energy costs."""
    if looks.unit == "price" and looks.price is not None:
        value, currency = looks.price
        return Column(currency[:8], 8, partial(_money, value), right=True)
    if looks.unit == "W":
        return Column("W", 5, lambda gpu: (StyledText(whole(gpu.power), "strong"),), right=True)
    return Column("energy", 9, lambda gpu: (StyledText(str(gpu.energy), "strong"),), right=True)


def _money(value: float, gpu: GpuView) -> Line:
    known = gpu.energy.known
    amount = ABSENT if known is None else figure(known / JOULES_PER_KWH * value, digits=3)
    return (StyledText(amount, "strong"),)


def _gpu_line(gpu: GpuView, columns: Sequence[Column], width: int) -> Line:
    if not gpu.trouble:
        return line_of(gpu, columns, width)
    place = [column for column in columns if column.head in ("host", "gpu", "model")]
    head = line_of(gpu, place, sum(column.width + 1 for column in place))
    why = StyledText(clean(gpu.trouble), "bad" if gpu.gone else "warn")
    return fit_line((*dimmed(head), StyledText(f"    {ABSENT}  ", "dim"), why), width)


def _model(gpu: GpuView) -> Line:
    return (StyledText(clean(gpu.model), "dim"),)


def _heat(gpu: GpuView) -> Line:
    hot = gpu.temperature.known is not None and gpu.temperature.known >= HOT_C
    return (StyledText(whole(gpu.temperature), "warn" if hot else "plain"),)


def _limit(gpu: GpuView) -> Line:
    """Return the limit now, and the one found where that is another."""
    if gpu.limit.known is None:
        return (StyledText(ABSENT, "dim"),)
    if gpu.lowered:
        return StyledText(whole(gpu.limit), "good"), StyledText(f"<{whole(gpu.found)}", "dim")
    return (StyledText(whole(gpu.limit)),)


def _minute(history: History, slots: int, gpu: GpuView) -> Line:
    most_w = gpu.most.known or gpu.power.known or 1
    return (StyledText(sparkline(history.gpu(gpu.gpu, SPARK_S, slots), most_w), "bar"),)
