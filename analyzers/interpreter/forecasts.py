"""Measured steps and epochs -> forecasts of runs. Pure.

Only runs whose script says how long they are have one. A step or an epoch counts once it is measured on all
GPUs of the run.
"""

from collections.abc import Iterable, Sequence

from analyzers.fleet.session import Session
from analyzers.interpreter.run_forecast import RunForecast, Spent
from analyzers.interpreter.state import FollowedForecast, SiteState
from analyzers.measurement.energy import KnownEnergy, NoEnergy, calibrated, measure
from analyzers.results.result import NOTHING, Result, rows_only
from analyzers.results.rows import Derived, ForecastRow, StepColumns, WindowRow, each_row
from zeus_stream.protocol.events import RunPlanned
from zeus_stream.protocol.fields import of_host
from zeus_stream.protocol.frames import Body, Events

MAX_ENDED = 1_000
"""Runs that have ended whose cost is remembered, if they are resumed; the oldest go."""
MAX_OPEN = 64
"""Steps and epochs of a run that wait for rows of some GPUs; of more, the oldest is left out."""


def handle(site: SiteState, host: str, body: Body, rows: Iterable[Derived]) -> Result:
    if isinstance(body, Events):
        _plan(site, host, body)
    if not site.forecasts:
        return NOTHING
    made = []
    followed_rows = (row for row in rows if not isinstance(row, StepColumns) or row.run in site.forecasts)
    for row in each_row(followed_rows):
        if isinstance(row, WindowRow) and row.kind in ("step", "epoch"):
            followed = site.forecasts.get(row.run)
            if followed is not None and (forecast := _take(site, followed, row)) is not None:
                made.append(forecast)
    for run in [run for run in site.forecasts if run not in site.runs]:
        site.ended_spent[run] = site.forecasts.pop(run).forecast.spent
        if len(site.ended_spent) > MAX_ENDED:
            del site.ended_spent[next(iter(site.ended_spent))]
    return rows_only(made) if made else NOTHING


def _plan(site: SiteState, host: str, body: Events) -> None:
    for event in body.events:
        if type(event) is not RunPlanned:
            continue
        session = site.sessions.get(body.session)
        if session is not None and session.host == host and session.ended is None:
            run = session.started.run
            if run not in site.forecasts:
                forecast = RunForecast(run=run, earlier=site.ended_spent.pop(run, None))
                site.forecasts[run] = FollowedForecast(forecast)
            site.forecasts[run].forecast.plan(event.epochs, event.steps)


def _take(site: SiteState, followed: FollowedForecast, row: WindowRow) -> ForecastRow | None:
    """Take in one row of a step or an epoch; return the forecast if it completes a round."""
    session = site.sessions.get(row.session)
    if session is None or (row.gpu is not None and of_host(row.gpu)):
        return None
    key = row.kind, row.index
    rows = followed.open.setdefault(key, [])
    rows.append(row)
    if len(rows) != _wanted(site, row.run):
        if len(followed.open) > MAX_OPEN:
            del followed.open[next(iter(followed.open))]
        return None
    del followed.open[key]
    forecast = followed.forecast
    block = forecast.block
    if row.kind == "epoch":
        forecast.epochs_done = row.index + 1
        if block is not None:
            return None
        forecast.begin_rounds(_spent(site, rows, at_end=False))
        forecast.end_round(_spent(site, rows, at_end=True))
        return forecast.forecast(session.wall_ns(row.end_ns))
    if block is not None and forecast.last is None:
        forecast.begin_rounds(_spent(site, rows, at_end=False))
    counted = _counted(rows)
    joules = [each.energy_j for each in counted if each.energy_j is not None]
    limits = {each.power_limit_w for each in rows}
    forecast.add_step(
        row.index,
        sum(joules) if len(joules) == len(counted) else None,
        max(each.duration_s for each in rows),
        limits.pop() if len(limits) == 1 else None,
    )
    if block is not None and (row.index + 1) % block == 0:
        forecast.end_round(_spent(site, rows, at_end=True))
        return forecast.forecast(session.wall_ns(row.end_ns))
    return None


def _wanted(site: SiteState, run: str) -> int:
    """Return the rows that a step of a run has: one for each GPU. 0: a rank is missing."""
    found = site.runs.get(run)
    ranks = [] if found is None else [each for each in found.sessions.values() if each.ended is None]
    if not ranks or len(ranks) < ranks[0].started.world_size:
        return 0
    return sum(max(1, len(each.gpus)) for each in ranks)


def _counted(rows: Sequence[WindowRow]) -> list[WindowRow]:
    """Return the rows whose energy counts: of a GPU that ranks share, that of the lowest rank.

    The macro ``of_lower_ranks`` does the same for the archive.
    """
    highest_first = sorted(rows, key=lambda row: row.rank, reverse=True)
    return list({row.gpu or row.session: row for row in highest_first}.values())


def _spent(site: SiteState, rows: Sequence[WindowRow], *, at_end: bool) -> Spent:
    """Return what the run has spent when these windows, of all its ranks and GPUs, began or ended."""
    seconds, joules = 0.0, 0.0
    known = True
    for row in rows:
        if (session := site.sessions.get(row.session)) is not None:
            t_ns = row.end_ns if at_end else row.begin_ns
            seconds = max(seconds, (t_ns - session.started.t_ns) / 1e9)
    for row in _counted(rows):
        session = site.sessions.get(row.session)
        if session is None:
            known = False
            continue
        energy = _energy(site, session, row.gpu, row.end_ns if at_end else row.begin_ns)
        known = known and isinstance(energy, KnownEnergy)
        joules += energy.energy_uj / 1e6 if isinstance(energy, KnownEnergy) else 0.0
    return Spent(seconds, joules if known else None)


def _energy(site: SiteState, session: Session, gpu: str | None, t_ns: int) -> KnownEnergy | NoEnergy:
    if gpu is None:
        return NoEnergy("the session has no GPU")
    timeline, span = site.fleet.gpus[gpu].timeline, ((session.started.t_ns,), (t_ns,))
    return calibrated(timeline, measure(timeline, *span), *span)[0]
