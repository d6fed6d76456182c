"""The panel of GPUs. Pure."""

from collections.abc import Sequence
from typing import Literal

from zeus_stream.live.figures import (
    ABSENT,
    Line,
    Span,
    bar,
    clean,
    dimmed,
    fit_line,
    scaled,
    seconds,
    significant,
    sparkline,
    watts,
)
from zeus_stream.live.history import History
from zeus_stream.live.panels.columns import Column, Looks, Panel, counted, heads, known, line_of, matches
from zeus_stream.protocol.snapshots import GpuNow, Snapshot

SPARK_S = 60.0


def gpu_panel(snapshot: Snapshot, history: History, width: int, looks: Looks) -> Panel:
    gpus = [gpu for gpu in snapshot.gpus if matches(looks, gpu.host, gpu.gpu, gpu.model, gpu.run)]
    if looks.sort == "power":
        gpus.sort(key=lambda gpu: -(gpu.power_mw or 0))
    elif looks.sort == "run":
        gpus.sort(key=lambda gpu: (gpu.run is None, gpu.run or ""))
    hosts = {gpu.host for gpu in snapshot.gpus}
    columns = _gpu_columns(gpus, history, width, looks, many_hosts=len(hosts) > 1)
    many = f"{len(gpus)} of {len(snapshot.gpus)} GPUs" if looks.words else counted(len(gpus), "GPU")
    sort = "" if looks.sort == "place" else f", by {looks.sort}"
    return Panel(
        title=f"{many}{sort}",
        head=heads(columns, width),
        lines=tuple(_gpu_line(gpu, row, columns, width) for row, gpu in enumerate(gpus)),
        keys=tuple(gpu.gpu for gpu in gpus),
    )


def _gpu_columns(
    gpus: Sequence[GpuNow], history: History, width: int, looks: Looks, *, many_hosts: bool
) -> list[Column]:
    """Return the columns that fit."""
    bar_width = 10 if width < 100 else 14 if width < 140 else 22
    spark = 0 if width < 96 else 20 if width < 140 else 30
    host_width = max((len(gpu.host) for gpu in gpus), default=4)
    host = Column("host", max(4, min(14, host_width)), lambda row: (Span(clean(gpus[row].host)),))
    model_width = max((len(gpu.model or ABSENT) for gpu in gpus), default=18)
    model = Column(
        "model",
        min(18 if width < 150 else 30, max(5, model_width)),
        lambda row: (Span(clean(gpus[row].model or ABSENT), "dim"),),
    )
    index = Column("gpu", 3, lambda row: (Span(_index(gpus[row])),), right=True)
    figure = _figure(gpus, looks)
    limit = Column("limit W", 9, lambda row: _limit(gpus[row]))
    step_j = Column("J/step", 7, lambda row: (Span(significant(gpus[row].step_j)),), right=True)
    degrees = Column(
        "°C", 3, lambda row: (Span(known(gpus[row].temperature_c), _heat(gpus[row])),), right=True
    )
    percent = Column("%", 3, lambda row: (Span(known(gpus[row].utilization_pct)),), right=True)
    gauge = Column("", bar_width, lambda row: _gauge(gpus[row], bar_width))
    minute = Column("60 s", spark, lambda row: (Span(_minute(gpus[row], history, spark), "bar"),))
    run = Column(
        "run", 0, lambda row: (Span(clean(gpus[row].run or ABSENT), "plain" if gpus[row].run else "dim"),)
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
    return [*columns, *([minute] if spark else []), run]


def _figure(gpus: Sequence[GpuNow], looks: Looks) -> Column:
    """Return the column of power, of energy, or of what the energy costs."""
    if looks.unit == "price" and looks.price is not None:
        value, currency = looks.price
        head = f"{currency}"[:8]
        return Column(head, 8, lambda row: (Span(_money(gpus[row], value), "strong"),), right=True)
    if looks.unit == "W":
        return Column("W", 5, lambda row: (Span(watts(gpus[row].power_mw), "strong"),), right=True)
    return Column("energy", 8, lambda row: (Span(_joules(gpus[row]), "strong"),), right=True)


def _money(gpu: GpuNow, value: float) -> str:
    return ABSENT if gpu.energy_mj is None else f"{gpu.energy_mj / 3.6e9 * value:,.3f}"


def _gpu_line(gpu: GpuNow, row: int, columns: Sequence[Column], width: int) -> Line:
    if gpu.state == "there":
        return line_of([column.cell(row) for column in columns], columns, width)
    place = [column for column in columns if column.head in ("host", "gpu", "model")]
    head = line_of([column.cell(row) for column in place], place, sum(c.width + 1 for c in place))
    if gpu.state == "gone":
        words, tone = f"gone: {clean(gpu.why)}", "bad"
    elif gpu.age_ms is None:
        words, tone = "no reading yet", "dim"
    else:
        words, tone = f"no reading for {seconds(gpu.age_ms / 1000)}", "warn"
    return fit_line((*dimmed(head), Span(f"    {ABSENT}  ", "dim"), Span(words, tone)), width)  # type: ignore[arg-type]


def _index(gpu: GpuNow) -> str:
    return ABSENT if gpu.index is None else str(gpu.index)


def _heat(gpu: GpuNow) -> Literal["plain", "warn"]:
    return "warn" if gpu.temperature_c is not None and gpu.temperature_c >= 85 else "plain"


def _joules(gpu: GpuNow) -> str:
    return scaled(None if gpu.energy_mj is None else gpu.energy_mj / 1000, "J")


def _limit(gpu: GpuNow) -> Line:
    """Return the limit now, and the one found where that is another."""
    if gpu.limit_mw is None:
        return (Span(ABSENT, "dim"),)
    if gpu.found_mw is not None and gpu.limit_mw < gpu.found_mw - 500:
        return Span(watts(gpu.limit_mw), "good"), Span(f"<{watts(gpu.found_mw)}", "dim")
    return (Span(watts(gpu.limit_mw)),)


def _gauge(gpu: GpuNow, width: int) -> Line:
    most = gpu.found_mw or gpu.most_mw or gpu.limit_mw
    return bar(_float(gpu.power_mw), _float(gpu.limit_mw), _float(most), width)


def _minute(gpu: GpuNow, history: History, slots: int) -> str:
    most = gpu.found_mw or gpu.most_mw or gpu.limit_mw or gpu.power_mw or 1
    return sparkline(history.gpu(gpu.gpu, SPARK_S, slots), most / 1000)


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)
