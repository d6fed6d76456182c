"""The figures of a report on recurring jobs: SVG from rows of an archive and of `sweep`. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import exp, log
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from zeus_stream.screens.html.elements import Markup
from zeus_stream.screens.svg.axes import Axis
from zeus_stream.screens.svg.series_chart import COLOURS, Cell, ChartSeries, Mark, series_chart

Row = Mapping[str, Any]
Rows = Sequence[Row]
Colours = Mapping[str, int]
Points = Sequence[tuple[float, float]]
Name = Callable[[Row], str]
TIME, ENERGY, RELATIVE = Axis("time"), Axis("energy"), Axis("relative to the default")
ROWS_APART = 0.18
"""Largest distance between players who would be drawn in one place."""
ROW_HEIGHT = 24
POINTS = 48
"""Of a line at most; what is between is left out."""
MOST = 2.5
"""Times the default's time or energy; a configuration that takes more is not drawn."""
FRONT = COLOURS.index("#7f7f7f")
"""Colour of a Pareto front among players."""
PATHS = ("zeus", "grid", "adaptive")
"""Whose search paths are drawn, or the first player's."""
SAVINGS = ("batch size only", "power limit only", "both")


# ---- names and groups -------------------------------------------------------------------------------------


def place(row: Row) -> str:
    """Return the world of a row, with what changes in it."""
    return _changed(str(row["world"]), row)


def recorded_place(row: Row) -> str:
    """Return the GPU model and the workload of a row."""
    return f"{row['gpu']} {row['workload']}"


def workload(row: Row) -> str:
    """Return GPU model and workload of a row, with what is not usual about it."""
    others = "".join(
        f", {name} {row[column]:g}"
        for name, column, usual in (("beta", "beta", 2.0), ("window", "cost_window", 0))
        if row[column] != usual
    )
    return _changed(f"{recorded_place(row)}{others}", row)


def _changed(name: str, row: Row) -> str:
    drift = "" if row["drift"] == "none" else f", {row['drift']}"
    return f"{name}{drift}" + (f", overlap {row['overlap']:g} (synthetic)" if row["overlap"] else "")


def column(name: str) -> Name:
    """Return the function that gives the text of a column."""
    return lambda row: str(row[name])


def grouped(rows: Rows, name: Name) -> list[tuple[str, Rows]]:
    """Return rows by name, ascending."""
    return [(where, list(of)) for where, of in groupby(sorted(rows, key=name), key=name)]


def geometric(rows: Rows, quantity: str) -> float:
    """Return the geometric mean of a column."""
    return exp(fmean(log(row[quantity]) for row in rows))


def front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other one beats in both coordinates, ascending by the first."""
    kept: list[tuple[float, float]] = []
    for point in sorted(points):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept


# ---- the two kinds of charts ------------------------------------------------------------------------------


def lines(
    rows: Rows,
    by: Name,
    colours: Colours,
    points: Callable[[Rows], Points],
    *,
    line: bool = True,
    mark: Mark = "dots",
) -> list[ChartSeries]:
    """Return a series for each name. ``points`` makes them of its rows."""
    return [
        ChartSeries(name, points(of), colours[name], line=line, mark=mark) for name, of in grouped(rows, by)
    ]


def in_rows(
    title: str, axis: Axis, rows: Rows, row_name: Name, by: Name, value: Callable[[Rows], float],
    colours: Colours,
) -> Markup:  # fmt: skip
    """Return a chart with a row a name, from above, and in each a mark for each name of ``by``."""
    names = sorted(set(map(row_name, rows)))[::-1]
    apart = min(ROWS_APART, 0.6 / max(len(colours) - 1, 1))
    series = [
        ChartSeries(
            name,
            [
                (value(its), names.index(where) + apart * ((len(colours) - 1) / 2 - at))
                for where, its in grouped(of, row_name)
            ],
            colours[name],
            line=False,
            mark="dots",
        )
        for at, (name, of) in enumerate(grouped(rows, by))
    ]
    height = 90 + ROW_HEIGHT * len(names)
    return series_chart(title, axis, Axis("", ticks=list(enumerate(names))), series, height)


# ---- what was recorded ------------------------------------------------------------------------------------


def potential(sweep: Rows, colours: Colours) -> Markup:
    """Return a chart of the least energy that each choice of `SAVINGS` reaches, by world."""
    tops = {where: max(row["limit_rank"] for row in of) for where, of in grouped(sweep, recorded_place)}
    free = [
        {**row, "choice": choice}
        for row in sweep
        for choice, fits in zip(
            SAVINGS, (row["limit_rank"] == tops[recorded_place(row)], row["default_size"], True), strict=True
        )
        if fits
    ]
    axis = Axis("energy relative to the default")
    return in_rows(
        "", axis, free, recorded_place, column("choice"), lambda of: min(row["energy"] for row in of), colours
    )


def pareto(sweep: Rows, colours: Colours) -> list[Markup]:
    """Return a chart for each workload: time and energy of all configurations, with Pareto fronts."""

    def drawn(of: Rows) -> list[tuple[float, float]]:
        return [(row["time"], row["energy"]) for row in of if max(row["time"], row["energy"]) <= MOST]

    return [
        series_chart(name, TIME, ENERGY, [
            *lines(rows, column("gpu"), colours, drawn, line=False, mark="faint"),
            *lines(rows, column("gpu"), colours, lambda of: front(drawn(of))),
        ])
        for name, rows in grouped(sweep, column("workload"))
    ]  # fmt: skip


def energies(sweep: Rows, colours: Colours, which: str, by: str, axis: Axis) -> list[Markup]:
    """Return a chart for each workload: the energy by a column, of the rows for which ``which`` is true."""

    def points(of: Rows) -> Points:
        return sorted((float(row[by]), float(row["energy"])) for row in of if row[which])

    y = Axis("energy", bend=axis.bend)
    return [
        series_chart(name, axis, y, lines(rows, column("gpu"), colours, points))
        for name, rows in grouped(sweep, column("workload"))
    ]


# ---- what was played --------------------------------------------------------------------------------------


def by_recurrence(rows: Rows, colours: Colours, quantity: str, axis: Axis) -> list[Markup]:
    """Return a chart of a quantity by recurrence for each world, of at most `POINTS` points a line."""

    def points(its: Rows) -> Points:
        each = [(row["recurrence"] + 1, row[quantity]) for row in its]
        if len(each) <= POINTS:
            return each
        return [each[round(at * (len(each) - 1) / (POINTS - 1))] for at in range(POINTS)]

    return [
        series_chart(where, Axis("recurrence"), axis, lines(of, column("player"), colours, points, mark=""))
        for where, of in grouped(rows, place)
    ]


def paths(rows: Rows, sweep: Rows, colours: Colours) -> list[Markup]:
    """Return heat maps of cost by world, with the tries of a player; within a cell, from left to right."""
    charts = []
    maps = dict(grouped(sweep, recorded_place))
    for where, of in grouped(rows, place):
        known = maps.get(recorded_place(of[0]))
        if known is None or of[0]["drift"] != "none" or of[0]["overlap"]:
            continue
        sizes = sorted({row["batch_size"] for row in (*known, *of)})
        limits = sorted({row["limit_w"] for row in (*known, *of)})
        least = min(row["cost"] for row in known)
        cells = [
            Cell(
                limits.index(row["limit_w"]), sizes.index(row["batch_size"]),
                min(1.0, least / row["cost"]) ** 3 * 0.8,
                f"{row['batch_size']} at {row['limit_w']} W: {row['cost'] / least:.2f} times the least cost",
            )
            for row in known
        ]  # fmt: skip
        shown = [player for player in PATHS if player in colours] or list(colours)[:1]
        series = []
        for at, player in enumerate(shown):
            its = [row for row in of if row["player"] == player]
            last = max((row["recurrence"] for row in its), default=1) or 1
            points = [
                (
                    limits.index(row["limit_w"]) + 0.8 * row["recurrence"] / last - 0.4,
                    sizes.index(row["batch_size"]) + 0.25 - 0.5 * (at + 0.5) / len(shown),
                )
                for row in its
            ]
            series.append(ChartSeries(player, _turns(points), colours[player], mark="dots"))
        x = Axis("power limit, W", ticks=[(at, str(w)) for at, w in enumerate(limits)])
        y = Axis("batch size", ticks=[(at, str(size)) for at, size in enumerate(sizes)])
        charts.append(series_chart(where, x, y, series, cells=cells))
    return charts


def _turns(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points at which the cell changes, the one before each, and the last."""
    cells = [(round(across), up) for across, up in points]
    return [
        point
        for at, point in enumerate(points)
        if at in {0, len(points) - 1} or not cells[at - 1] == cells[at] == cells[at + 1]
    ]


def against(
    rows: Rows, colours: Colours, row_name: Name, value: Callable[[Rows, str], float] = geometric,
    axis: Axis = RELATIVE,
) -> list[Markup]:  # fmt: skip
    """Return charts of energy and time against the default, with a row a name."""

    def chart(quantity: str) -> Markup:
        label = replace(axis, label=f"{quantity} {axis.label}")
        return in_rows(
            quantity, label, rows, row_name, column("player"), lambda of: value(of, quantity), colours
        )

    return [chart("energy"), chart("time")]


def etas(rows: Rows, sweep: Rows, colours: Colours) -> list[Markup]:
    """Return a chart of time against energy for each workload: a point for each eta, and the Pareto front."""

    def points(its: Rows) -> Points:
        return [(row["time"], row["energy"]) for row in sorted(its, key=lambda row: float(row["eta"]))]

    charts = []
    recorded = dict(grouped(sweep, recorded_place))
    for where, of in grouped(rows, workload):
        known = recorded.get(recorded_place(of[0]), ())
        best = front((row["time"], row["energy"]) for row in known)
        series = [ChartSeries("Pareto front", best, FRONT)] if best and of[0]["drift"] == "none" else []
        series += lines([row for row in of if row["player"] != "default"], column("player"), colours, points)
        charts.append(series_chart(where, TIME, ENERGY, series))
    return charts


def betas(rows: Rows, colours: Colours) -> Markup:
    """Return a chart of the energy of all recurrences by beta: geometric means over the worlds."""

    def points(of: Rows) -> Points:
        return sorted(
            (float(beta), geometric(its, "energy_of_all")) for beta, its in grouped(of, column("beta"))
        )

    y = Axis("energy relative to the default")
    return series_chart("", Axis("beta"), y, lines(rows, column("player"), colours, points))


def ablations(rows: Rows) -> Markup:
    """Return a chart of the energy of all recurrences without a part of the policy, over the whole one's."""
    whole = {place(row): row["energy_of_all"] for row in rows if row["player"] == "reference"}
    parts = [
        {"part": part, "world": place(row), "energy": row["energy_of_all"] / whole[place(row)]}
        for row in rows
        if (part := row["player"].removeprefix("reference-")) != row["player"] and place(row) in whole
    ]
    return in_rows(
        "", Axis("energy over that of the whole policy", bend="log"), parts, column("part"),
        column("world"), lambda of: of[0]["energy"], dict.fromkeys(whole, 0),
    )  # fmt: skip


def cluster(rows: Rows, colours: Colours) -> list[Markup]:
    """Return charts of the energy and time of all jobs of a cluster, by workload."""

    def share(its: Rows, quantity: str) -> float:
        used = sum(row[f"{quantity}_sum"] for row in its)
        return float(used / sum(row[f"default_{quantity}"] for row in its))

    with_all = [*rows, *({**row, "workload": "all jobs"} for row in rows)]
    axis = replace(RELATIVE, bend="log")
    return against(with_all, colours, column("workload"), share, axis)
