"""What a screen shows of a `Snapshot`: lines of text with tones, for one width. Pure.

    (snapshot, history, looks, width) -> View: head, panels of lines, keys

Columns that do not fit are left out, the least important first. A line is never wider than its panel. What is
not known is ``-`` with its reason, never 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from zeus_stream.live.figures import (
    ABSENT,
    Line,
    Span,
    bar,
    clean,
    dimmed,
    fit,
    fit_line,
    scaled,
    seconds,
    significant,
    sparkline,
    watts,
)
from zeus_stream.live.history import History
from zeus_stream.protocol.snapshots import GpuNow, RunNow, SearchNow, Snapshot

SORTS: tuple["Sort", ...] = ("place", "power", "run")
SIDE_BY_SIDE = 118
"""Cells from which on runs and search are beside each other."""
FRAME = 4
"""Cells that the frame of a panel takes."""
SPARK_S = 60.0
Sort = Literal["place", "power", "run"]
Unit = Literal["W", "J"]
KEYS = (
    ("q", "quit"), ("/", "filter"), ("s", "sort"), ("enter", "run"), ("w", "W or J"), ("g", "gaps"),
    ("p", "pause"), ("?", "help"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """What the person who looks has chosen."""

    sort: Sort = "place"
    unit: Unit = "W"
    words: str = ""
    """Rows that have not all of these words are left out."""
    run: str | None = None
    """The run whose search is shown. None: the first."""
    paused: bool = False
    trouble: str = ""
    """Why there is no newer snapshot; all that is shown is old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One frame with lines in it."""

    title: str
    head: Line
    lines: tuple[Line, ...]
    keys: tuple[str, ...]
    """The name of what each line is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything on the screen."""

    head: tuple[Line, ...]
    gpus: Panel
    runs: Panel
    search: Panel
    side_by_side: bool
    foot: Line


@dataclass(frozen=True, slots=True)
class _Column:
    head: str
    width: int
    cell: Callable[[int], Line]
    """Returns the cell of a row."""
    right: bool = False


def view(snapshot: Snapshot, history: History, width: int, looks: Looks | None = None) -> View:
    """Return the screen.

    Args:
        snapshot: the latest one.
        history: in which it is remembered.
        width: of the terminal, cells.
        looks: what was chosen; the plain screen if not given.
    """
    looks = looks or Looks()
    width = max(width, 20)
    side_by_side = width >= SIDE_BY_SIDE
    runs_width = width * 62 // 100 if side_by_side else width
    runs = [run for run in snapshot.runs if _matches(looks, run.run, run.job, *run.hosts)]
    chosen = next((run for run in runs if run.run == looks.run), runs[0] if runs else None)
    shown = View(
        head=_head(snapshot, width, looks),
        gpus=_gpus(snapshot, history, width - FRAME, looks),
        runs=_runs(snapshot, runs, runs_width - FRAME),
        search=_search(chosen, width - runs_width - FRAME if side_by_side else width - FRAME),
        side_by_side=side_by_side,
        foot=fit_line(_foot(), width),
    )
    return _old(shown) if looks.trouble else shown


def _old(shown: View) -> View:
    def old(panel: Panel) -> Panel:
        return replace(panel, lines=tuple(map(dimmed, panel.lines)))

    return replace(shown, gpus=old(shown.gpus), runs=old(shown.runs), search=old(shown.search))


def _foot() -> Line:
    return tuple(span for key, what in KEYS for span in (Span(f" {key}", "accent"), Span(f" {what} ", "dim")))


def _matches(looks: Looks, *names: str | None) -> bool:
    text = " ".join(filter(None, names)).lower()
    return all(word in text for word in looks.words.lower().split())


# ---- the head -----------------------------------------------------------------------------------------


def _head(snapshot: Snapshot, width: int, looks: Looks) -> tuple[Line, ...]:
    totals = snapshot.totals
    parts: list[Line] = [(Span(" zeus-stream ", "strong"),)]
    if snapshot.process == "collector":
        parts.append((Span("collector only", "warn"),))
    parts.append((Span(f"{_count(totals.hosts, 'host')}, {_count(totals.gpus, 'GPU')}"),))
    power = ABSENT if totals.power_mw is None else f"{totals.power_mw / 1000:,.0f} W"
    parts.append((Span(power, "strong"),))
    parts.append((Span(f"{_span_of(totals.hour_s)} {_energy(totals.hour_mj)}"),))
    if totals.saved_j is not None:
        percent = "" if totals.saved_percent is None else f" ({totals.saved_percent:.1f} %)"
        parts.append((Span(f"saved {scaled(totals.saved_j, 'J')}{percent}", "good"),))
    parts.append((Span(f"gaps {totals.gaps:,}", "warn" if totals.gaps else "dim"),))
    if snapshot.lag_ms is not None:
        late = snapshot.lag_ms >= 2_000
        parts.append((Span(f"lag {snapshot.lag_ms / 1000:.1f} s", "warn" if late else "dim"),))
    lines = _packed(parts, width)
    lines += [(Span(f" {text}", tone),) for text, tone in _notices(snapshot, looks)]
    return tuple(fit_line(line, width) for line in lines)


def _notices(snapshot: Snapshot, looks: Looks) -> list[tuple[str, Literal["warn", "bad", "dim"]]]:
    """Return what somebody who looks has to know before the rest."""
    notices: list[tuple[str, Literal["warn", "bad", "dim"]]] = []
    if looks.trouble:
        notices.append((looks.trouble, "bad"))
    if looks.paused:
        notices.append(("paused: p goes on", "warn"))
    if looks.words:
        notices.append((f"only rows with: {clean(looks.words)}", "dim"))
    for host in snapshot.hosts:
        if host.trouble:
            notices.append((f"{clean(host.host)}: {clean(host.trouble)}", "bad"))
        elif host.state == "silent":
            notices.append((f"{clean(host.host)}: its collector does not answer", "warn"))
    left_out = [
        _count(count, what)
        for count, what in ((snapshot.gpus_left_out, "GPU"), (snapshot.runs_left_out, "run"))
        if count
    ]
    if left_out:
        notices.append((f"not shown: {' and '.join(left_out)}; ask for one host with --host", "dim"))
    return notices[:4]


def _packed(parts: Sequence[Line], width: int) -> list[Line]:
    """Return the parts side by side, in as many lines as they need."""
    lines: list[list[Span]] = [[]]
    size = 0
    for part in parts:
        wide = sum(len(span.text) for span in part) + 3
        if lines[-1] and size + wide > width:
            lines.append([Span(" ")])
            size = 1
        lines[-1] += [*part, Span("   ")]
        size += wide
    return [tuple(line) for line in lines]


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _span_of(hour_s: int) -> str:
    """Return the words for the time that the energy is of."""
    return "this hour" if hour_s >= 3540 else f"last {max(1, hour_s // 60)} min"


def _energy(energy_mj: int | None) -> str:
    """Return an energy as people pay for it: from a watt-hour on in Wh."""
    if energy_mj is None:
        return ABSENT
    wh = energy_mj / 3_600_000
    return scaled(wh, "Wh") if wh >= 1 else scaled(energy_mj / 1000, "J")


# ---- GPUs ---------------------------------------------------------------------------------------------


def _gpus(snapshot: Snapshot, history: History, width: int, looks: Looks) -> Panel:
    gpus = [gpu for gpu in snapshot.gpus if _matches(looks, gpu.host, gpu.gpu, gpu.model, gpu.run)]
    if looks.sort == "power":
        gpus.sort(key=lambda gpu: -(gpu.power_mw or 0))
    elif looks.sort == "run":
        gpus.sort(key=lambda gpu: (gpu.run is None, gpu.run or ""))
    hosts = {gpu.host for gpu in snapshot.gpus}
    columns = _gpu_columns(gpus, history, width, looks, many_hosts=len(hosts) > 1)
    many = f"{len(gpus)} of {len(snapshot.gpus)} GPUs" if looks.words else _count(len(gpus), "GPU")
    sort = "" if looks.sort == "place" else f", by {looks.sort}"
    return Panel(
        title=f"{many}{sort}",
        head=_heads(columns, width),
        lines=tuple(_gpu_line(gpu, row, columns, width) for row, gpu in enumerate(gpus)),
        keys=tuple(gpu.gpu for gpu in gpus),
    )


def _gpu_columns(
    gpus: Sequence[GpuNow], history: History, width: int, looks: Looks, *, many_hosts: bool
) -> list[_Column]:
    """Return the columns that fit."""
    bar_width = 10 if width < 100 else 14 if width < 140 else 22
    spark = 0 if width < 96 else 20 if width < 140 else 30
    host_width = max((len(gpu.host) for gpu in gpus), default=4)
    host = _Column("host", max(4, min(14, host_width)), lambda row: (Span(clean(gpus[row].host)),))
    model = _Column("model", 18, lambda row: (Span(clean(gpus[row].model or ABSENT), "dim"),))
    index = _Column("gpu", 3, lambda row: (Span(_index(gpus[row])),), right=True)
    figure = (
        _Column("W", 5, lambda row: (Span(watts(gpus[row].power_mw), "strong"),), right=True)
        if looks.unit == "W"
        else _Column("energy", 8, lambda row: (Span(_joules(gpus[row]), "strong"),), right=True)
    )
    limit = _Column("limit W", 9, lambda row: _limit(gpus[row]))
    step_j = _Column("J/step", 7, lambda row: (Span(significant(gpus[row].step_j)),), right=True)
    degrees = _Column(
        "°C", 3, lambda row: (Span(_known(gpus[row].temperature_c), _heat(gpus[row])),), right=True
    )
    percent = _Column("%", 3, lambda row: (Span(_known(gpus[row].utilization_pct)),), right=True)
    gauge = _Column("", bar_width, lambda row: _gauge(gpus[row], bar_width))
    minute = _Column("60 s", spark, lambda row: (Span(_minute(gpus[row], history, spark), "bar"),))
    run = _Column(
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


def _gpu_line(gpu: GpuNow, row: int, columns: Sequence[_Column], width: int) -> Line:
    if gpu.state == "there":
        return _line([column.cell(row) for column in columns], columns, width)
    place = [column for column in columns if column.head in ("host", "gpu", "model")]
    head = _line([column.cell(row) for column in place], place, sum(c.width + 1 for c in place))
    if gpu.state == "gone":
        words, tone = f"gone: {clean(gpu.why)}", "bad"
    elif gpu.age_ms is None:
        words, tone = "no reading yet", "dim"
    else:
        words, tone = f"no reading for {seconds(gpu.age_ms / 1000)}", "warn"
    return fit_line((*dimmed(head), Span(f"    {ABSENT}  ", "dim"), Span(words, tone)), width)  # type: ignore[arg-type]


def _index(gpu: GpuNow) -> str:
    return ABSENT if gpu.index is None else str(gpu.index)


def _known(value: int | None) -> str:
    return ABSENT if value is None else str(value)


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


# ---- runs ---------------------------------------------------------------------------------------------


def _runs(snapshot: Snapshot, runs: Sequence[RunNow], width: int) -> Panel:
    job_width = max(3, min(16 if width < 100 else 22, max((len(run.job) for run in runs), default=3)))
    columns = [
        _Column("job", job_width, lambda row: (Span(clean(runs[row].job), _alive(runs[row])),)),
        _Column("search", 21 if width < 90 else 30, lambda row: (_phase(runs[row]),)),
        _Column("step", 8, lambda row: (Span(_known(runs[row].step)),), right=True),
        _Column("J/step", 7, lambda row: (Span(significant(runs[row].step_j)),), right=True),
    ]
    if width >= 60:
        columns.append(_Column("ms", 6, lambda row: (Span(significant(runs[row].step_ms)),), right=True))
    if width >= 70:
        columns.append(_Column("saved", 7, lambda row: (_saved(runs[row].search),), right=True))
    if width >= 84:
        columns.insert(2, _Column("epoch", 5, lambda row: (Span(_known(runs[row].epoch)),), right=True))
        columns.insert(
            -1, _Column("energy", 8, lambda row: (Span(scaled(runs[row].energy_j, "J")),), right=True)
        )
    if width >= 100:
        columns.insert(1, _Column("run", 12, lambda row: (Span(clean(runs[row].run), "dim"),)))
    return Panel(
        title=_count(snapshot.totals.runs, "open run"),
        head=_heads(columns, width),
        lines=tuple(
            _line([column.cell(row) for column in columns], columns, width) for row in range(len(runs))
        )
        or (
            fit_line((Span("No run is open. Start one: zeus-stream run -- python train.py", "dim"),), width),
        ),
        keys=tuple(run.run for run in runs),
    )


def _alive(run: RunNow) -> Literal["plain", "dim"]:
    return "plain" if run.ended_wall_ns is None else "dim"


def phase(run: RunNow) -> str:
    """Return where the search of a run stands, in a few words."""
    search = run.search
    if search is None:
        return "ended" if run.ended_wall_ns else "only measured" if run.step is not None else ABSENT
    limit = "" if search.limit_mw is None else f" {watts(search.limit_mw)} W"
    match search.phase:
        case "waiting":
            words = "waiting for steps"
        case "measuring":
            of = "" if search.trials_planned is None else f" of {search.trials_planned}"
            words = f"trial {search.trial}{of}:{limit}" if search.trial else "measuring"
        case "observing":
            words = "only observed"
        case "within a budget":
            words = f"budget:{limit}"
        case _:
            words = f"{search.phase}{limit}"
    return f"{words}, ended" if run.ended_wall_ns else words


def _phase(run: RunNow) -> Span:
    if run.search is None or run.ended_wall_ns:
        return Span(phase(run), "dim")
    match run.search.phase:
        case "chosen" | "recalled":
            return Span(phase(run), "good")
        case "measuring":
            return Span(phase(run), "accent")
        case "observing" | "within a budget":
            return Span(phase(run), "warn")
        case _:
            return Span(phase(run), "dim")


def _saved(search: SearchNow | None) -> Span:
    if search is None or search.saved_percent is None or search.saved_j is None:
        return Span(ABSENT, "dim")
    return Span(f"{search.saved_percent:.1f} %", "good" if search.saved_percent > 0 else "plain")


# ---- the search of one run ----------------------------------------------------------------------------


def _search(run: RunNow | None, width: int) -> Panel:
    if run is None:
        return Panel(title="search", head=(), lines=(), keys=())
    title = f"search: {clean(run.job)}"
    lines = [fit_line(line, width) for line in search_lines(run, width)]
    return Panel(title=fit(title, min(len(title), width)), head=(), lines=tuple(lines), keys=())


def search_lines(run: RunNow, width: int) -> list[Line]:
    """Return the trials of a run, the highest limit first, and what became of the search."""
    search = run.search
    if search is None:
        return [(Span("No limit is searched for. Start the analyzer with --select energy.", "dim"),)]
    most_j = max((trial.step_j or 0.0 for trial in search.trials), default=0.0)
    wide = max(0, width - 34)
    lines: list[Line] = []
    for trial in sorted(search.trials, key=lambda trial: (-trial.limit_mw, trial.confirms)):
        chosen = search.phase != "measuring" and trial.limit_mw == search.limit_mw
        best = trial.limit_mw == search.best_mw
        mark = "chosen" if chosen else "best" if best else "again" if trial.confirms else ""
        lines.append(
            (
                Span(f"{watts(trial.limit_mw):>4} W ", "good" if chosen or best else "plain"),
                Span(f"{significant(trial.step_j):>7} J {significant(trial.step_ms):>6} ms "),
                *bar(trial.step_j, most_j, most_j, min(wide, 24)),
                Span(f" {mark}", "good"),
            )
        )
    if search.phase == "measuring" and search.limit_mw is not None:
        lines.append(
            (
                Span(f"{watts(search.limit_mw):>4} W ", "accent"),
                Span(
                    f"measuring, {_known(search.steps_done)} of {_known(search.steps_wanted)} steps", "accent"
                ),
            )
        )
    if search.saved_j is not None and search.saved_percent is not None:
        slower = "" if search.time_added_percent is None else f", steps {search.time_added_percent:+.1f} %"
        saved = f"saved {scaled(search.saved_j, 'J')} ({search.saved_percent:.1f} %){slower}"
        lines.append((Span(saved, "good"),))
    if search.reason:
        lines += [(Span(part, "dim"),) for part in wrapped(clean(search.reason), width)[:4]]
    return lines or [(Span("waits for steps of all ranks", "dim"),)]


def wrapped(text: str, width: int) -> list[str]:
    """Return text in lines of at most ``width`` letters, cut between words."""
    lines, line = list[str](), ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


# ---- lines --------------------------------------------------------------------------------------------


def _heads(columns: Sequence[_Column], width: int) -> Line:
    return _line([(Span(column.head, "dim"),) for column in columns], columns, width)


def _line(cells: Sequence[Line], columns: Sequence[_Column], width: int) -> Line:
    """Return cells side by side. The column of width 0, if any, takes what is left."""
    fixed = sum(column.width for column in columns) + len(columns) - 1
    spans: list[Span] = []
    for cell, column in zip(cells, columns, strict=True):
        size = column.width or max(0, width - fixed)
        if column.right and len(cell) == 1:
            spans.append(Span(fit(cell[0].text, size, right=True), cell[0].tone))
        else:
            spans += fit_line(cell, size)
        spans.append(Span(" "))
    return fit_line(tuple(spans[:-1]), width)
