"""Simulated recurring jobs as one page of charts, with the data behind each. Pure.

The figures are those of the Zeus paper (NSDI 2023) that the published data allow, in this order: what there
is to be saved, what the policies made of it, and what their settings change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from zeus_stream.screens.html.document import document
from zeus_stream.screens.html.elements import Markup, element, join
from zeus_stream.screens.html.panels import PagePanel
from zeus_stream.screens.svg import simulation_charts as figures
from zeus_stream.screens.svg.axes import Axis
from zeus_stream.screens.svg.series_chart import COLOURS, SAME
from zeus_stream.screens.svg.simulation_charts import Colours, Rows

LAST = 5
"""Recurrences at the end of a game that its result is taken from; the SQL has the same number."""
QUERIES = {
    "regret": """
SELECT world, eta, beta, drift, overlap, player, recurrence, count(*) AS seeds,
    avg(cumulative_regret) AS regret,
    1.96 * stddev_samp(cumulative_regret) / sqrt(count(*)) AS within, avg(cost_j / default_cost_j) AS cost
FROM simulated WHERE {which} GROUP BY ALL ORDER BY ALL
""",
    "paths": """
SELECT world, gpu, workload, eta, beta, drift, overlap, player, seed, recurrence, batch_size, ended, epochs,
    simulated_tries.cost_j
FROM simulated_tries JOIN simulations USING (game)
WHERE {which} AND seed = (SELECT min(seed) FROM simulations WHERE {which})
ORDER BY world, drift, overlap, player, number
""",
    "against": """
SELECT world, gpu, eta, beta, drift, overlap, player, count(DISTINCT seed) AS seeds,
    avg(energy_j / default_energy_j) FILTER (recurrence >= recurrences - 5) AS energy,
    avg(time_s / default_time_s) FILTER (recurrence >= recurrences - 5) AS time,
    avg(energy_j / default_energy_j) AS energy_of_all
FROM simulated WHERE {which} GROUP BY ALL ORDER BY ALL
""",
    "frontier": """
SELECT gpu, workload, drift, overlap, player, eta, beta, cost_window,
    avg(energy_j / default_energy_j) AS energy, avg(time_s / default_time_s) AS time
FROM simulated WHERE {which} AND recurrence >= recurrences - 5 GROUP BY ALL ORDER BY ALL
""",
    "cluster": """
SELECT world, workload, player, overlap, sum(energy_j) AS energy_sum, sum(time_s) AS time_sum,
    sum(default_energy_j) AS default_energy, sum(default_time_s) AS default_time
FROM simulated WHERE {which} GROUP BY ALL ORDER BY ALL
""",
}
"""SQL, by its name; ``which`` selects the games."""

_OF_PLAYERS = "the default batch size at the highest power limit"
_ABOUT = (
    "Policies choose the batch size of recorded trainings: each try draws one of the recorded runs of its"
    " batch size. The recordings are the published traces of Zeus (NSDI 2023), unless others were named."
)
_SYNTHETIC = (
    "Overlapping submissions are synthetic: they are drawn at random, since no record of when recurring jobs"
    " were submitted is published."
)
USUAL = {"eta": 0.5, "beta": 2.0}
"""Figures that are not about these settings are drawn for the values nearest to these."""


class Figure(Struct, frozen=True, kw_only=True):
    """A section of the page. It is left out if it has no data."""

    title: str
    text: str
    charts: Callable[[], Iterable[Markup]]
    data: Rows
    source: str = ""
    """Of `QUERIES`. Empty: the recordings."""
    key: Colours | None = None
    """Colours of the charts; None: those of the players."""


def page(rows: Mapping[str, Rows], sql: Mapping[str, str] | None = None) -> str:
    """Return the HTML of a report. ``rows``: answers to `QUERIES`, and ``sweep`` (`recorded_jobs`)."""
    sql = sql or {}
    of_players = [*rows["against"], *rows.get("cluster", ())]
    players = {name: at for at, name in enumerate(sorted({row["player"] for row in of_players}))}
    names = _alike(rows, players)
    drawn = [*_recorded(rows.get("sweep", ())), *_played(rows, players), *_compared(rows, players)]
    panels = [
        (_panel(one, players, names), [sql[one.source].strip()] if one.source in sql else [])
        for one in drawn
        if one.data
    ]
    alike = "; ".join(name for name in names.values() if SAME in name)
    notes = [_SYNTHETIC] if any(row["overlap"] for row in of_players) else []
    notes += [f"Policies with equal results in all games are drawn once: {alike}."] if alike else []
    made = join([element("p", note) for note in notes])
    return document("Recurring jobs, simulated", _ABOUT, panels, made)


def _recorded(sweep: Rows) -> list[Figure]:
    """Return the figures of what there is to be saved."""
    gpus = {gpu: at for at, gpu in enumerate(sorted({row["gpu"] for row in sweep}))}
    savings = {name: at for at, name in enumerate(figures.SAVINGS)}
    by_size, by_limit = Axis("batch size", bend="log"), Axis("power limit, W")
    return [
        Figure(
            title="What there is to be saved",
            text="The least energy of any batch size at the highest limit, of any limit at the default"
            f" batch size, and of both together. 1 is {_OF_PLAYERS}.",
            charts=lambda: [figures.potential(sweep, savings)], data=sweep, key=savings,
        ),
        Figure(
            title="Time against energy",
            text="Every batch size and power limit that reaches the target, relative to the default at (1,"
            " 1). The lines are Pareto fronts: no other point needs less of both.",
            charts=lambda: figures.pareto(sweep, gpus), data=sweep, key=gpus,
        ),
        Figure(
            title="Energy by batch size",
            text="Mean energy of a training at the power limit of least cost, relative to the default.",
            charts=lambda: figures.energies(sweep, gpus, "best_limit", "batch_size", by_size),
            data=sweep, key=gpus,
        ),
        Figure(
            title="Energy by power limit",
            text="Mean energy of a training at the default batch size, relative to the highest limit.",
            charts=lambda: figures.energies(sweep, gpus, "default_size", "limit_w", by_limit),
            data=sweep, key=gpus,
        ),
    ]  # fmt: skip


def _usual(rows: Rows, settings: Sequence[str] = tuple(USUAL)) -> Rows:
    """Return the rows of the usual settings, or of those nearest to them."""
    for setting in settings:
        usual = USUAL[setting]
        nearest = min((row[setting] for row in rows), key=lambda value: abs(value - usual), default=usual)
        rows = [row for row in rows if row[setting] == nearest]
    return rows


def _where_usual(rows: Rows, settings: Sequence[str] = tuple(USUAL)) -> str:
    """Return a sentence that names the settings of the rows that are drawn, where they have others too."""
    several = [name for name in settings if len({row[name] for row in rows}) > 1]
    values = " and ".join(f"{name} {row[name]:g}" for row in _usual(rows, settings)[:1] for name in several)
    return f" With {values}." if values else ""


def _steady(rows: Rows) -> Rows:
    return [row for row in rows if row["drift"] == "none" and not row["overlap"]]


def _played(rows: Mapping[str, Rows], players: Colours) -> list[Figure]:
    """Return the figures of what the policies made of it."""
    sweep, against, paths = rows.get("sweep", ()), _usual(rows["against"]), _usual(rows["paths"])
    regret = [row for row in _usual(rows["regret"]) if row["drift"] == "none"]
    steady, of = _steady(against), _where_usual(rows["against"])
    return [
        Figure(
            title="Cumulative regret",
            text="Cost of the recurrences above the least mean cost of any batch size, in units of that."
            f" Mean of all seeds; the scale is linear around 0 and logarithmic far from it.{of}",
            charts=lambda: figures.by_recurrence(
                regret, players, "regret", Axis("cumulative regret", bend="asinh")
            ),
            data=regret, source="regret",
        ),
        Figure(
            title="Search paths",
            text="Batch sizes and power limits that were tried with the first seed, over the cost of each"
            " combination: the darker, the cheaper; blank where a run misses the target. Within a cell, time"
            f" runs from left to right.{of}",
            charts=lambda: figures.paths(paths, sweep, players),
            data=paths if sweep and steady else (), source="paths",
        ),
        Figure(
            title="Energy and time against the default",
            text=f"The last {LAST} recurrences, relative to {_OF_PLAYERS}.{of}",
            charts=lambda: figures.against(against, players, figures.place), data=against, source="against",
        ),
        Figure(
            title="GPU models",
            text=f"The last {LAST} recurrences by GPU model: geometric means over the workloads.{of}",
            charts=lambda: figures.against(steady, players, figures.column("gpu")),
            data=steady if len({row["gpu"] for row in steady}) > 1 else (), source="against",
        ),
    ]  # fmt: skip


def _compared(rows: Mapping[str, Rows], players: Colours) -> list[Figure]:
    """Return the figures of what settings and changes do, and of a cluster."""
    cluster, steady = rows.get("cluster", ()), _steady(_usual(rows["against"]))
    drifting = [row for row in _usual(rows["regret"]) if row["drift"] != "none"]
    of_all, frontier = _steady(_usual(rows["against"], ["eta"])), _usual(rows["frontier"], ["beta"])
    etas, of = sorted({row["eta"] for row in frontier}), _where_usual(rows["against"])
    names = {row["player"] for row in rows["against"]}
    has_parts = "reference" in names and any(name.startswith("reference-") for name in names)
    return [
        Figure(
            title="What eta trades",
            text=f"Energy and time of the last {LAST} recurrences, relative to the default's: a point for"
            f" each eta ({', '.join(f'{eta:g}' for eta in etas)}), joined in their order. The grey line is"
            " the Pareto front of all recorded batch sizes and power limits, by the means of their runs:"
            f" lucky runs lie beyond it.{_where_usual(rows['frontier'], ['beta'])}",
            charts=lambda: figures.etas(frontier, rows.get("sweep", ()), players),
            data=frontier if len(etas) > 1 else (), source="frontier",
        ),
        Figure(
            title="What beta costs",
            text="Energy of all recurrences, relative to the default, by the bound of a try in units of the"
            f" least cost: geometric means over the worlds.{_where_usual(rows['against'], ['eta'])}",
            charts=lambda: [figures.betas(of_all, players)],
            data=of_all if len({row["beta"] for row in of_all}) > 1 else (), source="against",
        ),
        Figure(
            title="Without a part of the policy",
            text="Energy of all recurrences without early stopping, pruning or just-in-time profiling, over"
            f" that of the whole policy (reference). A point for each world.{of}",
            charts=lambda: [figures.ablations(steady)], data=steady if has_parts else (), source="against",
            key={},
        ),
        Figure(
            title="When the job changes",
            text="Cost of each recurrence where the best batch size moves or the job gets harder, relative"
            f" to the default before the change. Mean of all seeds.{of}",
            charts=lambda: figures.by_recurrence(
                drifting, players, "cost", Axis("cost relative to the default", bend="log")
            ),
            data=drifting, source="regret",
        ),
        Figure(
            title="A cluster",
            text="Energy and time of all recurrences of job groups that overlap, relative to the default."
            " Groups that take about as long have one workload (K-means of mean runtimes); a recurrence"
            " takes as much of it as its runtime is of its cluster's. Without a table of submissions they"
            " are synthetic.",
            charts=lambda: figures.cluster(cluster, players), data=cluster, source="cluster",
        ),
    ]  # fmt: skip


def _alike(rows: Mapping[str, Rows], players: Colours) -> dict[str, str]:
    """Return the names to show: those of players with equal results in every game are one name."""
    results: dict[str, list[str]] = {player: [] for player in players}
    for name in ("regret", "against", "cluster"):
        for row in rows.get(name, ()):
            shown = {key: value for key, value in row.items() if key != "player"}
            results[row["player"]].append(f"{name} {shown}")
    same: dict[tuple[str, ...], list[str]] = {}
    for player, result in results.items():
        same.setdefault(tuple(result), []).append(player)
    return {alike[0]: SAME.join(alike) for alike in same.values()}


def _panel(figure: Figure, players: Colours, names: Mapping[str, str]) -> PagePanel:
    shown = {name: name for name in figure.key} if figure.key is not None else names
    colours = players if figure.key is None else figure.key
    swatches = [
        element(
            "span",
            element(
                "svg",
                element("circle", cx="5", cy="5", r="5", fill=COLOURS[at % len(COLOURS)]),
                viewBox="0 0 10 10",
            ),
            shown[name],
        )
        for name, at in colours.items()
        if name in shown
    ]
    key = element("p", *swatches, class_="swatches") if swatches else None
    return PagePanel(
        name=figure.title.lower().replace(" ", "-"),
        title=figure.title,
        body=element("div", key, element("div", *figure.charts(), class_="charts")),
        text=figure.text,
        rows=[row for row in figure.data if "player" not in row or row["player"] in names],
    )
