"""Simulated games of recurring jobs as one page of charts, with the data behind each. Pure.

The charts are those of the Zeus paper: cumulative regret, search paths, energy and time against the default,
and what eta trades between the two.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from analyzers.simulation.svg import COLOURS, Axis, Series, chart

Rows = Sequence[Mapping[str, Any]]
LAST = 5
"""Recurrences at the end of a game that its result is taken from; in SQL likewise."""
ROWS_APART, SIZES_APART = 0.18, 0.06
"""Between players who would be drawn in one place: of a row, and in log2(batch size)."""

QUERIES = {
    "regret": """
SELECT world, drift, overlap, player, recurrence, count(*) AS seeds, avg(cumulative_regret) AS regret,
    1.96 * stddev_samp(cumulative_regret) / sqrt(count(*)) AS within
FROM simulated WHERE {which} GROUP BY ALL ORDER BY ALL
""",
    "paths": """
SELECT world, drift, overlap, player, seed, recurrence, batch_size, ended, epochs, simulated_tries.cost_j
FROM simulated_tries JOIN simulations USING (game)
WHERE {which} AND seed = (SELECT min(seed) FROM simulations WHERE {which})
ORDER BY world, drift, overlap, player, number
""",
    "against": """
SELECT world, drift, overlap, player, count(DISTINCT seed) AS seeds,
    avg(energy_j / default_energy_j) AS energy, avg(time_s / default_time_s) AS time
FROM simulated WHERE {which} AND recurrence >= recurrences - 5 GROUP BY ALL ORDER BY ALL
""",
    "frontier": """
SELECT gpu || ' ' || workload AS workload, drift, overlap, player, eta, beta, cost_window,
    avg(energy_j / default_energy_j) AS energy, avg(time_s / default_time_s) AS time
FROM simulated WHERE {which} AND recurrence >= recurrences - 5 GROUP BY ALL ORDER BY ALL
""",
}
"""SQL, by chart; ``which`` says of what games."""

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 2rem auto; padding: 0 1rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); gap: 1rem; }
svg { width: 100%; height: auto; font: 10px system-ui, sans-serif; fill: currentColor; }
.title { font-size: 12px; font-weight: 600; }
.tick { opacity: .75; }
.grid { stroke: currentColor; opacity: .13; fill: none; }
.line { fill: none; }
.cross { fill: none; stroke-width: 1.4; }
.dot { stroke: none; }
.key span { margin-right: 1.2em; white-space: nowrap; }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .4em; }
pre { max-height: 20rem; overflow: auto; font-size: 12px; }
"""


def page(rows: Mapping[str, Rows]) -> str:
    """Return the HTML of a report.

    Args:
        rows: answers to `QUERIES`, by their names.
    """
    players = sorted({row["player"] for row in rows["against"]})
    colour = {player: at for at, player in enumerate(players)}
    key = "".join(
        f'<span><i style="background:{COLOURS[at % len(COLOURS)]}"></i>{escape(player)}</span>'
        for player, at in colour.items()
    )
    overlapping = any(row["overlap"] for row in rows["against"])
    synthetic = (
        "<p><b>Overlapping submissions are synthetic:</b> drawn at random, for want of a published record of"
        " when recurring jobs were submitted.</p>"
        if overlapping
        else ""
    )
    etas = {row["eta"] for row in rows["frontier"]}
    sections = [
        _section(
            "Cumulative regret",
            "What the recurrences cost above the least mean cost of any batch size, in units of that. Mean of"
            " all seeds; the scale is linear around 0 and logarithmic far from it.",
            [_regret(where, of, colour) for where, of in _by_world(rows["regret"])],
            rows["regret"],
        ),
        _section(
            "Search paths",
            "The batch sizes of every try, of the first seed. A cross: the try did not reach the target.",
            [_path(where, of, colour) for where, of in _by_world(rows["paths"])],
            rows["paths"],
        ),
        _section(
            "Energy and time against the default",
            f"The last {LAST} recurrences, relative to the default batch size at the highest power limit.",
            [_against(rows["against"], colour, quantity) for quantity in ("energy", "time")],
            rows["against"],
        ),
    ]
    if len(etas) > 1:
        sections.append(
            _section(
                "What eta trades",
                f"Energy and time of the last {LAST} recurrences, relative to the default's: a point for each"
                f" eta ({', '.join(f'{eta:g}' for eta in sorted(etas))}), joined in"
                " their order. The default is at 1, 1.",
                [_frontier(where, of, colour) for where, of in _grouped(rows["frontier"], _workload)],
                rows["frontier"],
            )
        )
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Recurring jobs, simulated</title><style>{STYLE}</style>\n"
        "<h1>Recurring jobs, simulated</h1>\n"
        "<p>Policies choose the batch size of trainings that were recorded: published traces of Zeus"
        " (NSDI 2023). Each try draws one of the recorded runs of its batch size.</p>\n"
        f'{synthetic}<p class="key">{key}</p>\n' + "\n".join(sections) + "\n</html>\n"
    )


def _section(title: str, says: str, charts: Iterable[str], data: Rows) -> str:
    return (
        f'<h2>{escape(title)}</h2>\n<p>{escape(says)}</p>\n<div class="charts">{"".join(charts)}</div>\n'
        f"<details><summary>Data ({len(data)} rows, CSV)</summary><pre>{escape(_csv(data))}</pre></details>"
    )


def _csv(rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows[:1]:
        writer.writerow(row)
    for row in rows:
        writer.writerow(f"{value:.6g}" if isinstance(value, float) else value for value in row.values())
    return text.getvalue()


def _place(row: Mapping[str, Any]) -> str:
    return _changed(str(row["world"]), row)


def _workload(row: Mapping[str, Any]) -> str:
    others = "".join(
        f", {name} {row[column]:g}"
        for name, column, usual in (("beta", "beta", 2.0), ("window", "cost_window", 0))
        if row[column] != usual
    )
    return _changed(f"{row['workload']}{others}", row)


def _changed(name: str, row: Mapping[str, Any]) -> str:
    drift = "" if row["drift"] == "none" else f", {row['drift']}"
    return f"{name}{drift}" + (f", overlap {row['overlap']:g} (synthetic)" if row["overlap"] else "")


def _grouped(rows: Rows, name: Callable[[Mapping[str, Any]], str]) -> list[tuple[str, Rows]]:
    return [(where, list(of)) for where, of in groupby(sorted(rows, key=name), key=name)]


def _by_world(rows: Rows) -> list[tuple[str, Rows]]:
    return _grouped(rows, _place)


def _players(rows: Rows) -> list[tuple[str, Rows]]:
    return _grouped(rows, lambda row: str(row["player"]))


def _regret(where: str, rows: Rows, colour: Mapping[str, int]) -> str:
    series = [
        Series(player, [(row["recurrence"] + 1, row["regret"]) for row in of], colour[player])
        for player, of in _players(rows)
    ]
    return chart(where, Axis("recurrence"), Axis("cumulative regret", "asinh"), series)


def _path(where: str, rows: Rows, colour: Mapping[str, int]) -> str:
    sizes = sorted({row["batch_size"] for row in rows})
    beside = _beside(colour)
    series = [
        Series(
            f"{player}, {'reached' if reached else 'not reached'}",
            [
                (row["recurrence"] + 1, row["batch_size"] * 2 ** (SIZES_APART * beside[player]))
                for row in of
                if (row["ended"] == "converged") == reached
            ],
            colour[player],
            line=False,
            mark="dot" if reached else "cross",
        )
        for player, of in _players(rows)
        for reached in (True, False)
    ]
    ticks = [(size, str(size)) for size in sizes]
    return chart(where, Axis("recurrence"), Axis("batch size", "log", ticks), series)


def _against(rows: Rows, colour: Mapping[str, int], quantity: str) -> str:
    worlds = [where for where, _ in _by_world(rows)][::-1]
    beside = _beside(colour)
    series = [
        Series(
            player,
            [(row[quantity], worlds.index(_place(row)) + ROWS_APART * beside[player]) for row in of],
            colour[player],
            line=False,
            mark="dot",
        )
        for player, of in _players(rows)
    ]
    ticks = [(at, where) for at, where in enumerate(worlds)]
    height = 90 + 16 * len(worlds)
    return chart(quantity, Axis(f"{quantity} relative to the default"), Axis("", ticks=ticks), series, height)


def _beside(colour: Mapping[str, int]) -> dict[str, float]:
    """Return where players stand beside each other who would be in one place, around 0."""
    return {player: (len(colour) - 1) / 2 - at for player, at in colour.items()}


def _frontier(where: str, rows: Rows, colour: Mapping[str, int]) -> str:
    series = [
        Series(player, [(row["time"], row["energy"]) for row in of], colour[player], mark="dot")
        for player, of in _players(rows)
        if player != "default"
    ]
    return chart(where, Axis("time"), Axis("energy"), series)
