"""The figures of a report on recurring jobs: SVG from rows of an archive and of `sweep`. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import exp, log
from statistics import fmean
from typing import Any

from zeus_stream.screens.html.elements import Markup
from zeus_stream.screens.svg.series_chart import COLOURS, Cell, ChartSeries, Mark, SeriesAxis, series_chart

Row = Mapping[str, Any]
Rows = Sequence[Row]
Colours = Mapping[str, int]
Points = Sequence[tuple[float, float]]
TIME, ENERGY = SeriesAxis("time"), SeriesAxis("energy")
ROWS_APART = 0.18
"""Between players who would be drawn in one place."""
POINTS = 48
"""Of a line at most; what is between is left out."""
MOST = 2.5
"""Times the default's time or energy; a configuration that takes more is not drawn."""
FRONT = COLOURS.index("#7f7f7f")
"""Colour of a Pareto front among players."""
PATHS = ("zeus", "grid", "adaptive")
"""Whose search paths are drawn, or the first player's."""
SAVINGS = {"batch size only": "top", "power limit only": "default_size", "both": "any"}


# ---- names and groups -------------------------------------------------------------------------------------


def place(row: Row) -> str:
    """Return the world of a row, with what changes in it."""
    return _changed(str(row["world"]), row)


def workload(row: Row) -> str:
    """Return the workload of a row, with what is not usual about it."""
    others = "".join(
        f", {name} {row[column]:g}"
        for name, column, usual in (("beta", "beta", 2.0), ("window", "cost_window", 0))
        if row[column] != usual
    )
    return _changed(f"{row['workload']}{others}", row)


def _changed(name: str, row: Row) -> str:
    drift = "" if row["drift"] == "none" else f", {row['drift']}"
    return f"{name}{drift}" + (f", overlap {row['overlap']:g} (synthetic)" if row["overlap"] else "")


def grouped(rows: Rows, name: Callable[[Row], str]) -> list[tuple[str, Rows]]:
    """Return rows by name, ascending."""
    return [(where, list(of)) for where, of in groupby(sorted(rows, key=name), key=name)]


def _by(rows: Rows, column: str) -> list[tuple[str, Rows]]:
    return grouped(rows, lambda row: str(row[column]))


def geometric(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return exp(fmean(log(value) for value in values))


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most `POINTS` points, the first and the last among them."""
    if len(points) <= POINTS:
        return list(points)
    return [points[round(at * (len(points) - 1) / (POINTS - 1))] for at in range(POINTS)]


def _beside(names: Colours) -> dict[str, float]:
    """Return an offset around 0 for each player, so that none hides another."""
    return {player: ROWS_APART * ((len(names) - 1) / 2 - at) for player, at in names.items()}


def _series(
    rows: Rows,
    by: str,
    colour: Colours,
    points: Callable[[str, Rows], Points],
    *,
    line: bool = True,
    mark: Mark = "dots",
) -> list[ChartSeries]:
    """Return a series for each value of a column. ``points`` makes them of its name and its rows."""
    return [
        ChartSeries(name, points(name, of), colour[name], line=line, mark=mark) for name, of in _by(rows, by)
    ]


def _in_rows(
    title: str, axis: SeriesAxis, names: Sequence[str], series: Sequence[ChartSeries], each: int = 16
) -> Markup:
    """Return a chart with a row a name, from below."""
    ticks = list(enumerate(names))
    return series_chart(title, axis, SeriesAxis("", ticks=ticks), series, 90 + each * len(names))


def front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other one beats in both coordinates, ascending by the first."""
    kept: list[tuple[float, float]] = []
    for point in sorted(points):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept


# ---- what was recorded ------------------------------------------------------------------------------------


def potential(sweep: Rows) -> list[Markup]:
    """Return a chart of the least energy that each choice reaches, by world."""
    worlds = grouped(sweep, lambda row: f"{row['gpu']} {row['workload']}")[::-1]

    def least(of: Rows, which: str) -> float:
        top = max(row["limit_rank"] for row in of)
        fit = {
            "top": [row for row in of if row["limit_rank"] == top],
            "default_size": [row for row in of if row["default_size"]],
            "any": of,
        }[which]
        return min(float(row["energy"]) for row in fit)

    series = [
        ChartSeries(
            name, [(least(of, which), y) for y, (_, of) in enumerate(worlds)], at, line=False, mark="dots"
        )
        for at, (name, which) in enumerate(SAVINGS.items())
    ]
    return [_in_rows("", SeriesAxis("energy relative to the default"), [name for name, _ in worlds], series)]


def pareto(sweep: Rows, colour: Colours) -> list[Markup]:
    """Return a chart for each workload: time and energy of all configurations, with Pareto fronts."""

    def drawn(of: Rows) -> list[tuple[float, float]]:
        return [(row["time"], row["energy"]) for row in of if max(row["time"], row["energy"]) <= MOST]

    charts = []
    for name, rows in _by(sweep, "workload"):
        clouds = [
            ChartSeries(f"{gpu}, all", drawn(of), colour[gpu], line=False, mark="faint")
            for gpu, of in _by(rows, "gpu")
        ]
        fronts = [
            ChartSeries(f"{gpu}, front", front(drawn(of)), colour[gpu], mark="dots")
            for gpu, of in _by(rows, "gpu")
        ]
        charts.append(series_chart(name, TIME, ENERGY, [*clouds, *fronts]))
    return charts


def by_size(sweep: Rows, colour: Colours) -> list[Markup]:
    """Return a chart for each workload: energy by batch size, at the limit of least cost."""
    charts = []
    for name, rows in _by(sweep, "workload"):
        series = _energies(rows, colour, "best_limit", "batch_size")
        ticks = [(size, str(size)) for size in _spread(sorted({row["batch_size"] for row in rows}), 8)]
        x = SeriesAxis("batch size", "log", ticks)
        charts.append(series_chart(name, x, SeriesAxis("energy", "log"), series))
    return charts


def by_limit(sweep: Rows, colour: Colours) -> list[Markup]:
    """Return a chart for each workload: energy by power limit, at the default batch size."""
    axis = SeriesAxis("power limit, W")
    return [
        series_chart(name, axis, ENERGY, _energies(rows, colour, "default_size", "limit_w"))
        for name, rows in _by(sweep, "workload")
    ]


def _energies(rows: Rows, colour: Colours, which: str, by: str) -> list[ChartSeries]:
    """Return the energy by a column, a series a GPU, of the rows for which ``which`` is true."""
    return _series(
        rows, "gpu", colour,
        lambda _, of: sorted((float(row[by]), float(row["energy"])) for row in of if row[which]),
    )  # fmt: skip


def _spread(values: Sequence[int], most: int) -> list[int]:
    step = -(-len(values) // most) or 1
    return list(values[::step])


# ---- what was played --------------------------------------------------------------------------------------


def regrets(rows: Rows, colour: Colours) -> list[Markup]:
    """Return a chart of cumulative regret for each world."""
    return _by_recurrence(rows, colour, "regret", SeriesAxis("cumulative regret", "asinh"))


def drifts(rows: Rows, colour: Colours) -> list[Markup]:
    """Return a chart of cost by recurrence for each world that changes."""
    changing = [row for row in rows if row["drift"] != "none"]
    return _by_recurrence(changing, colour, "cost", SeriesAxis("cost relative to the default", "log"))


def _by_recurrence(rows: Rows, colour: Colours, column: str, axis: SeriesAxis) -> list[Markup]:
    def points(_: str, its: Rows) -> Points:
        return _thinned([(row["recurrence"] + 1, row[column]) for row in its])

    return [
        series_chart(where, SeriesAxis("recurrence"), axis, _series(of, "player", colour, points, mark=""))
        for where, of in grouped(rows, place)
    ]


def paths(rows: Rows, sweep: Rows, colour: Colours) -> list[Markup]:
    """Return heat maps of cost by world, with the tries of a player; within a cell, from left to right."""
    charts = []
    maps = dict(grouped(sweep, lambda row: f"{row['gpu']} {row['workload']}"))
    for where, of in grouped(rows, place):
        known = maps.get(f"{of[0]['gpu']} {of[0]['workload']}")
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
        shown = [player for player in PATHS if player in colour] or list(colour)[:1]
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
            series.append(ChartSeries(player, _runs(points), colour[player], mark="dots"))
        x = SeriesAxis("power limit, W", ticks=[(at, str(w)) for at, w in enumerate(limits)])
        y = SeriesAxis("batch size", ticks=[(at, str(size)) for at, size in enumerate(sizes)])
        charts.append(series_chart(where, x, y, series, cells=cells))
    return charts


def _runs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points at which the cell changes, the one before each, and the last."""
    cells = [(round(across), up) for across, up in points]
    return [
        point
        for at, point in enumerate(points)
        if at in {0, len(points) - 1} or not cells[at - 1] == cells[at] == cells[at + 1]
    ]


def against(rows: Rows, colour: Colours, quantity: str) -> Markup:
    """Return a chart of energy or time of the last recurrences against the default, by world."""
    worlds = [where for where, _ in grouped(rows, place)][::-1]
    beside = _beside(colour)
    series = _series(
        rows, "player", colour,
        lambda player, of: [(row[quantity], worlds.index(place(row)) + beside[player]) for row in of],
        line=False,
    )  # fmt: skip
    return _in_rows(quantity, SeriesAxis(f"{quantity} relative to the default"), worlds, series)


def by_gpu(rows: Rows, colour: Colours) -> list[Markup]:
    """Return charts of energy and time by GPU model: geometric means over the workloads."""
    gpus = sorted({row["gpu"] for row in rows})[::-1]
    beside = _beside(colour)

    def chart(quantity: str) -> Markup:
        def points(player: str, of: Rows) -> Points:
            means = [(geometric([row[quantity] for row in its]), gpu) for gpu, its in _by(of, "gpu")]
            return [(mean, gpus.index(gpu) + beside[player]) for mean, gpu in means]

        series = _series(rows, "player", colour, points, line=False)
        return _in_rows(quantity, SeriesAxis(f"{quantity} relative to the default"), gpus, series, 24)

    return [chart("energy"), chart("time")]


def etas(rows: Rows, sweep: Rows, colour: Colours) -> list[Markup]:
    """Return a chart of time against energy for each workload: a point for each eta, and the Pareto front."""

    def points(_: str, its: Rows) -> Points:
        return [(row["time"], row["energy"]) for row in sorted(its, key=lambda row: float(row["eta"]))]

    charts = []
    recorded = dict(grouped(sweep, lambda row: f"{row['gpu']} {row['workload']}"))
    for where, of in grouped(rows, lambda row: f"{row['gpu']} {workload(row)}"):
        known = recorded.get(f"{of[0]['gpu']} {of[0]['workload']}", ())
        best = front((row["time"], row["energy"]) for row in known)
        series = [ChartSeries("Pareto front", best, FRONT)] if best and of[0]["drift"] == "none" else []
        series += _series([row for row in of if row["player"] != "default"], "player", colour, points)
        charts.append(series_chart(where, TIME, ENERGY, series))
    return charts


def betas(rows: Rows, colour: Colours) -> list[Markup]:
    """Return a chart of the energy of all recurrences by beta: geometric means over the worlds."""

    def points(_: str, of: Rows) -> Points:
        groups = sorted((float(beta), its) for beta, its in _by(of, "beta"))
        return [(beta, geometric([row["energy_of_all"] for row in its])) for beta, its in groups]

    y = SeriesAxis("energy relative to the default")
    return [series_chart("", SeriesAxis("beta"), y, _series(rows, "player", colour, points))]


def ablations(rows: Rows) -> list[Markup]:
    """Return a chart of the energy of all recurrences without a part of the policy, over the whole one's."""
    whole = {place(row): row["energy_of_all"] for row in rows if row["player"] == "reference"}
    parts = [(player, of) for player, of in _by(rows, "player") if player.startswith("reference-")][::-1]
    worlds = {where: at for at, where in enumerate(sorted(whole))}
    series = [
        ChartSeries(
            where,
            [
                (row["energy_of_all"] / whole[where], y + 0.3 - 0.6 * at / max(1, len(worlds) - 1))
                for y, (_, of) in enumerate(parts)
                for row in of
                if place(row) == where
            ],
            0,
            line=False,
            mark="dots",
        )
        for where, at in worlds.items()
    ]
    names = [player.removeprefix("reference-") for player, _ in parts]
    axis = SeriesAxis("energy over that of the whole policy", "log")
    return [_in_rows("", axis, names, series, 60)]


def cluster(rows: Rows, colour: Colours) -> list[Markup]:
    """Return charts of the energy and time of all jobs of a cluster, by workload."""
    names = sorted({row["workload"] for row in rows})[::-1]
    beside = _beside(colour)

    def chart(quantity: str) -> Markup:
        def share(its: Rows) -> float:
            used = sum(row[f"{quantity}_sum"] for row in its)
            return float(used / sum(row[f"default_{quantity}"] for row in its))

        def points(player: str, of: Rows) -> Points:
            each = [(share(its), names.index(name) + 1 + beside[player]) for name, its in _by(of, "workload")]
            return [*each, (share(of), beside[player])]

        axis = SeriesAxis(f"{quantity} relative to the default", "log")
        series = _series(rows, "player", colour, points, line=False)
        return _in_rows(quantity, axis, ["all jobs", *names], series, 24)

    return [chart("energy"), chart("time")]
