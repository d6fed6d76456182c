"""Plays games of recurring jobs on published traces, into an archive, and draws what came of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.results.rows import Row, SimulatedTryRow, SimulationRow
from analyzers.simulation.baselines import PLAYERS
from analyzers.simulation.clusters import assigned, synthetic
from analyzers.simulation.recorded_jobs import (
    Traces,
    World,
    pooled,
    recorded_workload,
    sweep,
    world,
)
from analyzers.simulation.runner import CHUNK, Game, play_all
from analyzers.simulation.simulated_jobs import (
    Drift,
    Played,
    drifting,
    tried_limits_w,
)
from analyzers.simulation.traces import PUBLISHED, digest, read, read_cluster
from zeus_stream.errors import SettingsError, StorageError, explaining
from zeus_stream.quoting import quoted
from zeus_stream.screens.html.simulation_report import QUERIES, USUAL, page
from zeus_stream.settings import Settings

SYNTHETIC = Path("synthetic")
BATCH = 10_000
"""Rows of an answer at a time."""
_RESULT = """
SELECT world, drift, overlap, player, count(DISTINCT seed) AS seeds,
    sum(regret) / count(DISTINCT seed) AS regret,
    round(100 * (avg(energy_j / default_energy_j) FILTER (recurrence >= recurrences - 5) - 1), 9) + 0
        AS energy_change_percent,
    round(100 * (avg(time_s / default_time_s) FILTER (recurrence >= recurrences - 5) - 1), 9) + 0
        AS time_change_percent,
    avg(cost_j / default_cost_j) FILTER (recurrence < 5) AS cost_of_first_5,
    avg(cost_j / default_cost_j) FILTER (recurrence < 20) AS cost_of_first_20,
    count(*) FILTER (NOT converged) AS not_reached
FROM simulated WHERE {which} GROUP BY ALL
ORDER BY any_value(try_cast(regexp_extract(world, '^cluster ([0-9]+)', 1) AS INTEGER)) NULLS FIRST,
    world, drift, overlap, player
"""


class Wanted(Struct, frozen=True, kw_only=True):
    """Games to be played: every combination."""

    traces: Path | None
    """Directory; None: those of the package."""
    players: Sequence[str]
    seeds: int
    gpus: Sequence[str] = ()
    """GPU models, joined by + where recurrences run on any of them; none: each that the traces have."""
    workloads: Sequence[str] = ()
    """None: each that the traces have."""
    etas: Sequence[float] = (0.5,)
    betas: Sequence[float] = (2.0,)
    window: int = 0
    drifts: Sequence[str] = ("none",)
    overlap: float = 0.0
    cluster: Path | None = None
    """Table of submissions to play as well; `SYNTHETIC`: one that was never recorded."""


def simulate(
    path: Path,
    settings: Settings,
    wanted: Wanted,
    *,
    report: Path | None = None,
    console: Console,
) -> pa.Table:
    """Play what is not in the archive yet, and return the results of all that was wanted.

    ``report``: an HTML page, if one is wanted. Raises SettingsError: there is no such policy, workload, GPU
    model or drift. StorageError.
    """
    games = {_key(game): game for game in _games(wanted)}
    archive = DuckdbFile.open(path, settings)
    try:
        played = {row["game"] for row in _rows(archive, "SELECT game FROM simulations")}
        left = [game for key, game in games.items() if key not in played]
        if len(left) < len(games):
            console.print(f"{len(games) - len(left)} of {len(games)} games are in {path} already.")
        with Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=console, disable=not left,
        ) as progress:  # fmt: skip
            task = progress.add_task("games", total=len(left))
            rows: list[Row] = []
            for number, (game, tries) in enumerate(play_all(left), 1):
                rows += _stored(game, tries)
                progress.advance(task)
                if number % CHUNK == 0 or number == len(left):
                    archive.put([], rows, {}, replaying=False)
                    rows = []
        which = _which(list(games.values()))
        if report is not None:
            _write(report, _page(archive, list(games.values())))
        return _ask(archive, _RESULT.format(which=which))
    finally:
        archive.close()


def _page(archive: DuckdbFile, games: Sequence[Game]) -> str:
    """Return the HTML of a report on games that are in the archive."""
    of_cluster = [game for game in games if game.world.submissions]
    others = [game for game in games if not game.world.submissions]
    sql = {
        name: text.format(which=_which(of_cluster if name == "cluster" else others))
        for name, text in QUERIES.items()
    }
    answers = {name: _rows(archive, text) for name, text in sql.items()}
    _add_limits(answers["paths"], others)
    usual = sorted(others, key=lambda game: abs(game.world.job.eta - USUAL["eta"]))
    answers["sweep"] = sweep(game.world for game in usual)
    return page(answers, sql)


def _add_limits(paths: Sequence[dict[str, Any]], games: Sequence[Game]) -> None:
    """Add the power limit of each try to search paths of games without overlap."""
    worlds = {game.world.name: game.world for game in games if not game.world.pool and not game.overlap}
    by_game: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in paths:
        if row["world"] in worlds:
            by_game.setdefault((row["world"], row["player"], row["drift"]), []).append(row)
    for (name, player, _), rows in by_game.items():
        rules = PLAYERS[player](worlds[name]).rules
        limits_w = tried_limits_w(worlds[name], rules, (row["batch_size"] for row in rows))
        for row, limit_w in zip(rows, limits_w, strict=True):
            row["limit_w"] = limit_w


def _games(wanted: Wanted) -> Iterator[Game]:
    drifts: tuple[Drift, ...] = get_args(Drift)
    _known("policy", wanted.players, PLAYERS)
    _known("drift", wanted.drifts, drifts)
    traces = read(wanted.traces or PUBLISHED)
    of_traces = digest(wanted.traces) if wanted.traces else ""
    _known("workload", wanted.workloads, traces.workloads)
    _known("gpu", [gpu for gpus in wanted.gpus for gpu in gpus.split("+")], traces.powered)
    worlds = [
        made
        for gpus in wanted.gpus or traces.powered
        for name in wanted.workloads or traces.workloads
        for eta in wanted.etas
        for beta in wanted.betas
        if (made := _world(traces, gpus, name, eta, beta, wanted))
    ]
    if not worlds:
        raise SettingsError(
            "simulate: could not play: the traces have no workload with time and power on these GPU models"
            " whose every run reaches its target at some batch size. Name other GPU models or workloads,"
            " or an easier target in workloads.csv."
        )
    for made in worlds:
        for player in wanted.players:
            for drift in (known for known in drifts if known in wanted.drifts):
                for seed in range(wanted.seeds):
                    yield Game(
                        world=_named(made),
                        player=player,
                        seed=seed,
                        drift=drift,
                        overlap=wanted.overlap,
                        traces=of_traces,
                    )
    if wanted.cluster is not None:
        for game in _cluster(traces, wanted, wanted.cluster):
            yield replace(game, traces=of_traces)


def _cluster(traces: Traces, wanted: Wanted, path: Path) -> Iterator[Game]:
    """Yield the games of a cluster: each job group on the first of the GPU models."""
    gpu = next(iter(wanted.gpus or traces.powered))
    made = {
        name: of
        for name in wanted.workloads or traces.workloads
        if (of := _world(traces, gpu, name, wanted.etas[0], wanted.betas[0], wanted))
    }
    submissions = synthetic() if path == SYNTHETIC else read_cluster(path)
    try:
        groups = assigned(submissions, {name: of.by_default.time_s for name, of in made.items()})
    except ValueError as wrong:
        raise SettingsError(
            f"{path}: could not be played: {wrong}. Name fewer workloads with --workload."
        ) from wrong
    for group, (name, recurrences) in groups.items():
        of_group = replace(made[name], name=f"cluster {group}: {made[name].name}", submissions=recurrences)
        for player in wanted.players:
            for seed in range(wanted.seeds):
                yield Game(world=_named(of_group), player=player, seed=seed)


def _world(traces: Traces, gpus: str, name: str, eta: float, beta: float, wanted: Wanted) -> World | None:
    """Return a workload on a GPU model, or on a pool of them.

    None: that was not recorded, and it was not asked for by name.
    """
    members = []
    for gpu in gpus.split("+"):
        workload = recorded_workload(traces, gpu, traces.workloads[name])
        if workload is not None:
            members.append(world(traces, gpu, workload, eta=eta, beta=beta, window=wanted.window))
        elif wanted.workloads and wanted.gpus:
            raise SettingsError(
                f"simulate: could not play: {name} on {gpu} has no batch size at which every run reaches its"
                f" target, {traces.workloads[name].target:g}. Name another GPU model or workload,"
                " or an easier target in workloads.csv."
            )
        else:
            return None
    try:
        return members[0] if len(members) == 1 else pooled(members)
    except ValueError as wrong:
        raise SettingsError(
            f"simulate: could not play {name} on {gpus}: {wrong}. Name another pool or workload."
        ) from wrong


def _known(option: str, given: Sequence[str], known: Sequence[str] | Mapping[str, object]) -> None:
    for name in given:
        if name not in known:
            raise SettingsError(
                f"simulate: could not play: --{option} {name} is not known. Name some of: {', '.join(known)}."
            )


def _named(made: World) -> World:
    """Return a world with what is not usual about it in its name."""
    job = made.job
    parts = (("eta", job.eta, 0.5), ("beta", job.beta, 2.0), ("window", job.window, 0))
    unusual = "".join(f", {name} {value:g}" for name, value, usual in parts if value != usual)
    return replace(made, name=made.name + unusual)


def _key(game: Game) -> str:
    return (
        f"{game.world.name}; {game.player}; {game.drift}; overlap {game.overlap:g}; seed {game.seed}"
        f"{_source(game)}"
    )


def _source(game: Game) -> str:
    """Return what tells the submissions and traces of a game from others of the same names."""
    of = game.world.submissions
    count = f"; submissions {sha256(repr(of).encode()).hexdigest()[:12]}" if of else ""
    return count + (f"; traces {game.traces}" if game.traces else "")


def _stored(game: Game, tries: Sequence[Played]) -> list[Row]:
    made, key, worlds = game.world, _key(game), drifting(game.world, game.drift)
    optimum = {id(here): here.optimum_j for here in worlds}
    default = made.by_default
    return [
        SimulationRow(
            game=key,
            world=made.name,
            gpu=made.gpu,
            workload=made.dataset,
            player=game.player,
            seed=game.seed,
            eta=made.job.eta,
            beta=made.job.beta,
            cost_window=made.job.window,
            drift=game.drift,
            overlap=game.overlap,
            recurrences=len(worlds),
            default_energy_j=default.energy_j,
            default_time_s=default.time_s,
            default_cost_j=default.cost_j,
        ),
        *(
            SimulatedTryRow(
                game=key,
                number=number,
                recurrence=one.recurrence,
                batch_size=one.batch_size,
                epochs=one.epochs,
                energy_j=one.spent.energy_j,
                time_s=one.spent.time_s,
                cost_j=one.spent.cost_j,
                ended=one.ended,
                optimum_j=optimum[id(worlds[one.recurrence])] * made.scale(one.recurrence),
            )
            for number, one in enumerate(tries)
        ),
    ]


def _which(games: Sequence[Game]) -> str:
    """Return, in SQL, what tells these games from others in the archive."""

    def one_of(columns: str, values: Iterable[str]) -> str:
        return f"{columns} IN ({', '.join(sorted(values))})"

    if not games:
        return "false"
    worlds = {f"({quoted(of.world.name)}, {of.overlap:g}, {quoted(_source(of))})" for of in games}
    return " AND ".join(
        [
            one_of("(world, overlap, regexp_extract(game, '; seed [0-9]+(.*)', 1))", worlds),
            one_of("player", {quoted(game.player) for game in games}),
            one_of("drift", {quoted(game.drift) for game in games}),
            f"seed <= {max(game.seed for game in games)}",
        ]
    )


def _ask(archive: DuckdbFile, sql: str) -> pa.Table:
    with archive.reading() as reader:
        schema, batches = reader.batches(sql, BATCH)
        return pa.Table.from_batches(batches, schema)


def _rows(archive: DuckdbFile, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _ask(archive, sql).to_pylist()
    return rows


def _write(path: Path, text: str) -> None:
    cure = "Name another file with --report."
    with explaining(StorageError, f"{path}: the report could not be written", cure):
        path.write_text(text, encoding="utf-8")
