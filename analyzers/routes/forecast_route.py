"""The route of measured steps and epochs to the forecasts of runs. Pure.

Only runs whose script says how long they are have one. A step or an epoch counts once it is measured on all
GPUs of the run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from analyzers.fleet.fleet import Fleet
from analyzers.fleet.session import Session
from analyzers.forecast.run_forecast import RunForecast, Spent
from analyzers.measurement.calibration import calibrated
from analyzers.measurement.energy import Energy, Missing, measure
from analyzers.results.result import NOTHING, Result, rows_only
from analyzers.results.rows import ForecastRow, WindowRow
from analyzers.results.windows.step_columns import Derived, StepColumns, each_row
from analyzers.routes.open_sessions import OpenSessions
from zeus_stream.protocol.events import RunPlanned
from zeus_stream.protocol.fields import of_host
from zeus_stream.protocol.frames import Body, Events

MAX_ENDED = 1_000
"""Runs that have ended whose cost is remembered, if they are resumed; the oldest go."""
MAX_OPEN = 64
"""Steps and epochs of a run that wait for rows of some GPUs; of more, the oldest is left out."""


@dataclass(slots=True)
class _Followed:
    """One run, and its windows that some of its GPUs have measured."""

    forecast: RunForecast
    open: dict[tuple[str, int], list[WindowRow]] = field(default_factory=dict)


class ForecastRoute:
    """The forecasts of the runs that are open."""

    def __init__(self, sessions: OpenSessions, fleet: Fleet) -> None:
        self._sessions = sessions
        self._fleet = fleet
        self._runs: dict[str, _Followed] = {}
        self._ended: dict[str, Spent] = {}
        """What runs that ended had spent by then, by name."""

    def handle(self, host: str, body: Body, rows: Iterable[Derived]) -> Result:
        """Take in the plans in a frame, and the windows that were measured after it. Return forecasts."""
        if isinstance(body, Events):
            self._plan(host, body)
        if not self._runs:
            return NOTHING
        made = []
        followed_rows = (row for row in rows if not isinstance(row, StepColumns) or row.run in self._runs)
        for row in each_row(followed_rows):
            if isinstance(row, WindowRow) and row.kind in ("step", "epoch"):
                followed = self._runs.get(row.run)
                if followed is not None and (forecast := self._take(followed, row)) is not None:
                    made.append(forecast)
        for run in [run for run in self._runs if run not in self._sessions.runs]:
            self._ended[run] = self._runs.pop(run).forecast.spent
            if len(self._ended) > MAX_ENDED:
                del self._ended[next(iter(self._ended))]
        return rows_only(made) if made else NOTHING

    def _plan(self, host: str, body: Events) -> None:
        for event in body.events:
            if type(event) is not RunPlanned:
                continue
            session = self._sessions.of.get(body.session)
            if session is not None and session.host == host and session.ended is None:
                run = session.started.run
                if run not in self._runs:
                    self._runs[run] = _Followed(RunForecast(run=run, earlier=self._ended.pop(run, None)))
                self._runs[run].forecast.plan(event.epochs, event.steps)

    def _take(self, followed: _Followed, row: WindowRow) -> ForecastRow | None:
        """Take in one row of a step or an epoch; return the forecast if it completes a round."""
        session = self._sessions.of.get(row.session)
        if session is None or (row.gpu is not None and of_host(row.gpu)):
            return None
        key = row.kind, row.index
        rows = followed.open.setdefault(key, [])
        rows.append(row)
        if len(rows) != self._wanted(row.run):
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
            forecast.begin_rounds(self._spent(rows, at_end=False))
            forecast.end_round(self._spent(rows, at_end=True))
            return forecast.forecast(session.wall_ns(row.end_ns))
        if block is not None and forecast.last is None:
            forecast.begin_rounds(self._spent(rows, at_end=False))
        joules = [each.energy_j for each in rows if each.energy_j is not None]
        limits = {each.power_limit_w for each in rows}
        forecast.add_step(
            row.index,
            sum(joules) if len(joules) == len(rows) else None,
            max(each.duration_s for each in rows),
            limits.pop() if len(limits) == 1 else None,
        )
        if block is not None and (row.index + 1) % block == 0:
            forecast.end_round(self._spent(rows, at_end=True))
            return forecast.forecast(session.wall_ns(row.end_ns))
        return None

    def _wanted(self, run: str) -> int:
        """Return the rows that a step of a run has: one for each GPU. 0: a rank is missing."""
        found = self._sessions.runs.get(run)
        ranks = [] if found is None else [each for each in found.sessions.values() if each.ended is None]
        if not ranks or len(ranks) < ranks[0].started.world_size:
            return 0
        return sum(max(1, len(each.gpus)) for each in ranks)

    def _spent(self, rows: Iterable[WindowRow], *, at_end: bool) -> Spent:
        """Return what the run has spent when these windows, one for each GPU, began or ended."""
        seconds, joules = 0.0, 0.0
        known = True
        for row in rows:
            session = self._sessions.of.get(row.session)
            if session is None:
                known = False
                continue
            t_ns = row.end_ns if at_end else row.begin_ns
            seconds = max(seconds, (t_ns - session.started.t_ns) / 1e9)
            energy = self._energy(session, row.gpu, t_ns)
            known = known and isinstance(energy, Energy)
            joules += energy.energy_uj / 1e6 if isinstance(energy, Energy) else 0.0
        return Spent(seconds, joules if known else None)

    def _energy(self, session: Session, gpu: str | None, t_ns: int) -> Energy | Missing:
        """Return the energy of a GPU since the session began."""
        if gpu is None:
            return Missing("the session has no GPU")
        timeline, span = self._fleet.gpus[gpu].timeline, ((session.started.t_ns,), (t_ns,))
        return calibrated(timeline, measure(timeline, *span), *span)[0]
