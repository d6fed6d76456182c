"""The figures of a report on recurring jobs: SVG from rows of an archive and of `sweep`. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import exp, log
from statistics import fmean
from typing import Any

from zeus_stream.screens.html.elements import Markup
from zeus_stream.screens.svg.series_chart import COLOURS, Cell, ChartSeries, SeriesAxis, series_chart

Row = Mapping[str, Any]
Rows = Sequence[Row]
Colours = Mapping[str, int]
ROWS_APART = 0.18
"""Between players who would be drawn in one place."""
POINTS = 48
"""Of a line at most; what is between is left out."""
MOST = 2.5
"""Times the default's time or energy; a configuration that takes more is not drawn."""
FRONT = COLOURS.index("#7f7f7f")
"""Colour of a Pareto front among players."""
PATHS = ("zeus", "adaptive")
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
    return {player: (len(names) - 1) / 2 - at for player, at in names.items()}


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
    ticks = [(y, where) for y, (where, _) in enumerate(worlds)]
    return [
        series_chart(
            "",
            SeriesAxis("energy relative to the default"),
            SeriesAxis("", ticks=ticks),
            series,
            _tall(worlds),
        )
    ]


def pareto(sweep: Rows, colour: Colours) -> list[Markup]:
    """Return a chart for each workload: time and energy of all configurations, with Pareto fronts."""
    charts = []
    for name, rows in _by(sweep, "workload"):
        clouds, fronts = [], []
        for gpu, of in _by(rows, "gpu"):
            points = [(row["time"], row["energy"]) for row in of if max(row["time"], row["energy"]) <= MOST]
            clouds.append(ChartSeries(f"{gpu}, all", points, colour[gpu], line=False, mark="faint"))
            fronts.append(ChartSeries(f"{gpu}, front", front(points), colour[gpu], mark="dots"))
        charts.append(series_chart(name, SeriesAxis("time"), SeriesAxis("energy"), [*clouds, *fronts]))
    return charts


def by_size(sweep: Rows, colour: Colours) -> list[Markup]:
    """Return a chart for each workload: energy by batch size, at the limit of least cost."""
    charts = []
    for name, rows in _by(sweep, "workload"):
        series = [
            ChartSeries(
                gpu, _energy([row for row in of if row["best_limit"]], "batch_size"), colour[gpu], mark="dots"
            )
            for gpu, of in _by(rows, "gpu")
        ]
        ticks = [(size, str(size)) for size in _spread(sorted({row["batch_size"] for row in rows}), 8)]
        charts.append(
            series_chart(name, SeriesAxis("batch size", "log", ticks), SeriesAxis("energy", "log"), series)
        )
    return charts


def by_limit(sweep: Rows, colour: Colours) -> list[Markup]:
    """Return a chart for each workload: energy by power limit, at the default batch size."""
    charts = []
    for name, rows in _by(sweep, "workload"):
        series = [
            ChartSeries(
                gpu, _energy([row for row in of if row["default_size"]], "limit_w"), colour[gpu], mark="dots"
            )
            for gpu, of in _by(rows, "gpu")
        ]
        charts.append(series_chart(name, SeriesAxis("power limit, W"), SeriesAxis("energy"), series))
    return charts


def _energy(rows: Rows, by: str) -> list[tuple[float, float]]:
    return sorted((float(row[by]), float(row["energy"])) for row in rows)


def _spread(values: Sequence[int], most: int) -> list[int]:
    step = -(-len(values) // most) or 1
    return list(values[::step])


# ---- what was played --------------------------------------------------------------------------------------


def regrets(rows: Rows, colour: Colours) -> list[Markup]:
    """Return a chart of cumulative regret for each world."""
    charts = []
    for where, of in grouped(rows, place):
        series = [
            ChartSeries(
                player, _thinned([(row["recurrence"] + 1, row["regret"]) for row in its]), colour[player]
            )
            for player, its in _by(of, "player")
        ]
        charts.append(
            series_chart(where, SeriesAxis("recurrence"), SeriesAxis("cumulative regret", "asinh"), series)
        )
    return charts


def paths(rows: Rows, sweep: Rows, colour: Colours) -> list[Markup]:
    """Return a heat map of cost for each world, with the batch sizes and limits that a player tried on it.

    Tries of one cell run from left to right in the order of their recurrences.
    """
    charts = []
    maps = dict(grouped(sweep, lambda row: f"{row['gpu']} {row['workload']}"))
    for where, of in grouped(rows, place):
        known = maps.get(f"{of[0]['gpu']} {of[0]['workload']}")
        if known is None or of[0]["drift"] != "none" or of[0]["overlap"]:
            continue
        sizes = sorted({row["batch_size"] for row in (*known, *of)})
        limits = sorted({row["limit_w"] for row in known})
        least = min(row["cost"] for row in known)
        cells = [
            Cell(
                limits.index(row["limit_w"]), sizes.index(row["batch_size"]),
                min(1.0, least / row["cost"]) ** 3 * 0.8,
                f"{row['batch_size']} at {row['limit_w']} W: {row['cost'] / least:.2f} times the least cost",
            )
            for row in known
        ]  # fmt: skip
        best = {row["batch_size"]: limits.index(row["limit_w"]) for row in known if row["best_limit"]}
        shown = [player for player in PATHS if player in colour] or list(colour)[:1]
        series = []
        for at, player in enumerate(shown):
            its = [row for row in of if row["player"] == player]
            last = max((row["recurrence"] for row in its), default=1) or 1
            points = [
                (
                    best.get(row["batch_size"], len(limits) - 1) + 0.8 * row["recurrence"] / last - 0.4,
                    sizes.index(row["batch_size"]) + 0.16 - 0.32 * at,
                )
                for row in its
            ]
            series.append(ChartSeries(player, _runs(points), colour[player], mark="dots"))
        x = SeriesAxis("power limit, W", ticks=[(at, str(w)) for at, w in enumerate(limits)])
        y = SeriesAxis("batch size", ticks=[(at, str(size)) for at, size in enumerate(sizes)])
        charts.append(series_chart(where, x, y, series, cells=cells))
    return charts


def _runs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points at which the height changes, the one before each, and the last."""
    return [
        point
        for at, point in enumerate(points)
        if at in {0, len(points) - 1} or points[at - 1][1] != point[1] or points[at + 1][1] != point[1]
    ]


def against(rows: Rows, colour: Colours, quantity: str) -> Markup:
    """Return a chart of energy or time of the last recurrences against the default, by world."""
    worlds = [where for where, _ in grouped(rows, place)][::-1]
    beside = _beside(colour)
    series = [
        ChartSeries(
            player,
            [(row[quantity], worlds.index(place(row)) + ROWS_APART * beside[player]) for row in of],
            colour[player],
            line=False,
            mark="dots",
        )
        for player, of in _by(rows, "player")
    ]
    ticks = [(at, where) for at, where in enumerate(worlds)]
    axis = SeriesAxis(f"{quantity} relative to the default")
    return series_chart(quantity, axis, SeriesAxis("", ticks=ticks), series, _tall(worlds))


def by_gpu(rows: Rows, colour: Colours) -> list[Markup]:
    """Return charts of energy and time by GPU model: geometric means over the workloads."""
    gpus = sorted({row["gpu"] for row in rows})[::-1]
    beside = _beside(colour)
    charts = []
    for quantity in ("energy", "time"):
        series = [
            ChartSeries(
                player,
                [
                    (geometric([row[quantity] for row in its]), gpus.index(gpu) + ROWS_APART * beside[player])
                    for gpu, its in _by(of, "gpu")
                ],
                colour[player],
                line=False,
                mark="dots",
            )
            for player, of in _by(rows, "player")
        ]
        ticks = [(at, gpu) for at, gpu in enumerate(gpus)]
        axis = SeriesAxis(f"{quantity} relative to the default")
        charts.append(series_chart(quantity, axis, SeriesAxis("", ticks=ticks), series, _tall(gpus, 24)))
    return charts


def etas(rows: Rows, sweep: Rows, colour: Colours) -> list[Markup]:
    """Return a chart of time against energy for each workload: a point for each eta, and the Pareto front."""
    charts = []
    recorded = dict(grouped(sweep, lambda row: f"{row['gpu']} {row['workload']}"))
    for where, of in grouped(rows, lambda row: f"{row['gpu']} {workload(row)}"):
        known = recorded.get(f"{of[0]['gpu']} {of[0]['workload']}", ())
        best = front((row["time"], row["energy"]) for row in known)
        series = [ChartSeries("Pareto front", best, FRONT)] if best and of[0]["drift"] == "none" else []
        series += [
            ChartSeries(player, _by_eta(its), colour[player], mark="dots")
            for player, its in _by(of, "player")
            if player != "default"
        ]
        charts.append(series_chart(where, SeriesAxis("time"), SeriesAxis("energy"), series))
    return charts


def _by_eta(rows: Rows) -> list[tuple[float, float]]:
    return [(row["time"], row["energy"]) for row in sorted(rows, key=lambda row: float(row["eta"]))]


def betas(rows: Rows, colour: Colours) -> list[Markup]:
    """Return a chart of the energy of all recurrences by beta: geometric means over the worlds."""
    series = [
        ChartSeries(
            player,
            [
                (float(beta), geometric([row["energy_of_all"] for row in its]))
                for beta, its in sorted(_by(of, "beta"), key=lambda named: float(named[0]))
            ],
            colour[player],
            mark="dots",
        )
        for player, of in _by(rows, "player")
    ]
    return [series_chart("", SeriesAxis("beta"), SeriesAxis("energy relative to the default"), series)]


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
    ticks = [(y, player.removeprefix("reference-")) for y, (player, _) in enumerate(parts)]
    axis = SeriesAxis("energy over that of the whole policy", "log")
    return [series_chart("", axis, SeriesAxis("", ticks=ticks), series, _tall(parts, 60))]


def drifts(rows: Rows, colour: Colours) -> list[Markup]:
    """Return a chart of cost by recurrence for each world that changes."""
    charts = []
    for where, of in grouped([row for row in rows if row["drift"] != "none"], place):
        series = [
            ChartSeries(
                player, _thinned([(row["recurrence"] + 1, row["cost"]) for row in its]), colour[player]
            )
            for player, its in _by(of, "player")
        ]
        charts.append(
            series_chart(
                where, SeriesAxis("recurrence"), SeriesAxis("cost relative to the default", "log"), series
            )
        )
    return charts


def cluster(rows: Rows, colour: Colours) -> list[Markup]:
    """Return charts of the energy and time of all jobs of a cluster, by workload."""
    names = sorted({row["workload"] for row in rows})[::-1]
    beside = _beside(colour)
    charts = []
    for quantity in ("energy", "time"):
        series = []
        for player, of in _by(rows, "player"):
            points = [
                (
                    sum(row[f"{quantity}_sum"] for row in its)
                    / sum(row[f"default_{quantity}"] for row in its),
                    names.index(name) + 1 + ROWS_APART * beside[player],
                )
                for name, its in _by(of, "workload")
            ]
            whole = sum(row[f"{quantity}_sum"] for row in of) / sum(row[f"default_{quantity}"] for row in of)
            points.append((whole, ROWS_APART * beside[player]))
            series.append(ChartSeries(player, points, colour[player], line=False, mark="dots"))
        ticks = [(0, "all jobs"), *((at + 1, name) for at, name in enumerate(names))]
        axis = SeriesAxis(f"{quantity} relative to the default (synthetic)", "log")
        charts.append(series_chart(quantity, axis, SeriesAxis("", ticks=ticks), series, _tall(ticks, 24)))
    return charts


def _tall(rows: Sequence[object], each: int = 16) -> int:
    return 90 + each * len(rows)
