"""Energies of a run for experiment trackers: W&B, MLflow, TensorBoard and Aim, while it trains.

    daemon thread --every 10 s--> analyzer: blocks of steps and epochs measured since --> tracker

Energy is known seconds after its step. It has an axis of its own where a tracker would drop late steps, and
never moves the step of other metrics. Only rank 0 reports, for all ranks. When something fails it warns once.
"""

import atexit
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from zeus_stream.errors import SettingsError, ZeusStreamError
from zeus_stream.quoting import quoted
from zeus_stream.training.default import default_publisher
from zeus_stream.training.publisher import Publisher
from zeus_stream.transport.client import connect

BLOCK, BLOCK_S = 50, 60.0
"""A point is so many steps, or fewer that take so long."""
EVERY_S = 10.0
FLUSH_S = 5.0
"""Longest wait for the last points when the run ends."""
AGAIN_S, QUIET = 0.3, 3
"""Time between two questions then, and answers without a new point after which nothing more comes."""
SUMMARY = ("energy/total_j", "energy/saved_percent", "energy/limit_w")
"""Figures of the whole run, for the tables of runs."""
MAX_POINTS = 1_000
"""That wait for a tracker; of more, the oldest is dropped."""
QUERY_S = 5.0
STEP, EPOCH = "energy/step", "energy/epoch"
_log = logging.getLogger("zeus_stream")
_EACH_RANK = """(
    {last} OR {index} <= ALL (
        SELECT max(index) FROM windows WHERE run = {run} AND kind = '{index}'
            AND session NOT IN (SELECT session FROM windows WHERE run = {run} AND kind = 'run')
        GROUP BY rank
    )
)"""
"""The rows of a slower host come later: until the end, nothing is logged that a rank has yet to add to.

A rank that has ended adds no more: a run may go on with fewer of them.
"""
_POINTS = """
SELECT max(step) AS step, avg(energy_j) AS step_j, 1000 * avg(duration_s) AS step_ms,
    sum(energy_j) / sum(duration_s) AS power_w, max(highest_limit_w) AS limit_w, sum(energy_j) AS block_j,
    epoch(max(began_at)) + arg_max(duration_s, step) AS at_s
FROM (
    SELECT *, (row_number() OVER (ORDER BY step) - 1) // {block} AS block
    FROM steps WHERE run = {run} AND step >= {first} AND energy_j IS NOT NULL AND {each_rank}
) GROUP BY block HAVING count(*) >= {least} OR sum(duration_s) >= {block_s} ORDER BY step
"""
_EPOCHS = """
SELECT epoch, energy_j, epoch(began_at) + duration_s AS at_s FROM epochs
WHERE run = {run} AND epoch >= {first} AND energy_j IS NOT NULL AND {each_rank} ORDER BY epoch
"""
_SAVED = "SELECT energy_saved_percent FROM saving_of({run})"
Ask = Callable[[str], list[dict[str, Any]]]


class TrackedPoint(Struct, frozen=True):
    """Figures of one block of steps, or of one epoch."""

    step: int
    """Of the last step in it, or of the epoch."""
    at_s: float
    """UTC, s since 1970, when it ended."""
    values: Mapping[str, float]


class Sink(Protocol):
    """One tracker."""

    def write(self, points: Sequence[TrackedPoint], *, last: bool) -> int:
        """Write points in order, and return how many it took. ``last``: nothing follows."""

    def summarize(self, values: Mapping[str, float]) -> None:
        """Keep the figures of the whole run where tables of runs sort by them."""


class Wandb:
    """A run of W&B. A point is added to the row that is open, so that no row and no step is of ours alone."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._row: int | None = None
        run.define_metric("energy/*", step_metric=STEP)
        run.define_metric("energy/epoch_j", step_metric=EPOCH)

    def write(self, points: Sequence[TrackedPoint], *, last: bool) -> int:
        taken = 0
        for point in points:
            if self._run.step == self._row:  # it is open still: another point would replace the one in it
                if not last:
                    break
                self._run.log({}, commit=True)
            self._row = self._run.step
            axis = EPOCH if "energy/epoch_j" in point.values else STEP
            self._run.log({**point.values, axis: point.step}, commit=last)
            taken += 1
        return taken

    def summarize(self, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))


class Mlflow:
    """The run of MLflow that is active. Each value has its step and its time."""

    def __init__(self, mlflow: Any) -> None:
        active = mlflow.active_run()
        if active is None:
            raise SettingsError(
                "log_energy_to: could not use mlflow: no run is active. Call mlflow.start_run() before it."
            )
        self._run_id = active.info.run_id
        self._client = mlflow.MlflowClient()
        self._metric = mlflow.entities.Metric

    def write(self, points: Sequence[TrackedPoint], *, last: bool) -> int:
        for point in points:
            at_ms = round(point.at_s * 1000)
            metrics = [self._metric(name, value, at_ms, point.step) for name, value in point.values.items()]
            self._client.log_batch(self._run_id, metrics=metrics)
        return len(points)

    def summarize(self, values: Mapping[str, float]) -> None:
        """Do nothing: its table of runs has the last value of each metric."""


class TensorBoard:
    """A writer of TensorBoard, torch's or its own."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        names = inspect.signature(writer.add_scalar).parameters
        self._time = "walltime" if "walltime" in names else "wall_time"
        self._step = "global_step" if "global_step" in names else "step"

    def write(self, points: Sequence[TrackedPoint], *, last: bool) -> int:
        for point in points:
            for name, value in point.values.items():
                self._writer.add_scalar(name, value, **{self._step: point.step, self._time: point.at_s})
        if last:
            self._writer.flush()
        return len(points)

    def summarize(self, values: Mapping[str, float]) -> None:
        """Do nothing: it has no table of runs without hyperparameters."""


class Aim:
    """A run of Aim, which takes late steps as they are."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, points: Sequence[TrackedPoint], *, last: bool) -> int:
        for point in points:
            for name, value in point.values.items():
                self._run.track(value, name=name, step=point.step)
        return len(points)

    def summarize(self, values: Mapping[str, float]) -> None:
        self._run["energy"] = {name.removeprefix("energy/"): value for name, value in values.items()}


def sink_of(tracker: Any) -> Sink:
    """Return the sink of a tracker. Raises SettingsError: it is none that is known."""
    if hasattr(tracker, "define_metric") and hasattr(tracker, "log"):
        return Wandb(tracker)
    if hasattr(tracker, "MlflowClient"):
        return Mlflow(tracker)
    if hasattr(tracker, "add_scalar"):
        return TensorBoard(tracker)
    if hasattr(tracker, "track"):
        return Aim(tracker)
    raise SettingsError(
        f"log_energy_to: could not use {tracker!r}: it is no tracker that is known. Give wandb.run, mlflow,"
        " a SummaryWriter of TensorBoard, or an aim.Run."
    )


class TrackedPoints:
    """The points of one run that are measured since they were asked for last."""

    def __init__(self, run: str, ask: Ask, step: int = 0, epoch: int = 0) -> None:
        """``step``, ``epoch``: the first of them."""
        self._run = quoted(run)
        self._ask = ask
        self._step, self._epoch = step, epoch
        self._total_j = 0.0

    def new(self, *, last: bool = False) -> list[TrackedPoint]:
        """Return what is new, ``last``: also of a block that is not full. Raises ZeusStreamError."""
        least = 1 if last else BLOCK
        which = self._which("step", self._step, last=last)
        found = self._ask(_POINTS.format(**which, block=BLOCK, least=least, block_s=BLOCK_S))
        points = []
        saved = None
        if found:
            rows = self._ask(_SAVED.format(run=self._run))
            saved = rows[0]["energy_saved_percent"] if rows else None
        for row in found:
            self._total_j += row["block_j"]
            self._step = row["step"] + 1
            known = {
                "energy/step_j": row["step_j"],
                "energy/step_ms": row["step_ms"],
                "energy/power_w": row["power_w"],
                "energy/limit_w": row["limit_w"],
                "energy/total_j": self._total_j,
                "energy/saved_percent": saved,
            }
            values = {name: value for name, value in known.items() if value is not None}
            points.append(TrackedPoint(row["step"], row["at_s"], values))
        for row in self._ask(_EPOCHS.format(**self._which("epoch", self._epoch, last=last))):
            self._epoch = row["epoch"] + 1
            points.append(TrackedPoint(row["epoch"], row["at_s"], {"energy/epoch_j": row["energy_j"]}))
        return points

    def _which(self, index: str, first: int, *, last: bool) -> Mapping[str, object]:
        """Return what selects the steps or epochs from one on that each rank has measured."""
        each_rank = _EACH_RANK.format(run=self._run, last=str(last).lower(), index=index)
        return {"run": self._run, "first": first, "each_rank": each_rank}


class EnergyLog:
    """Energies on their way to trackers. `log_energy_to` returns one; `close` sends what is left.

    Example:
        >>> log = zeus_stream.log_energy_to(wandb.run)
        >>> log.close()                      # before wandb.finish()
    """

    def __init__(
        self, sinks: Sequence[Sink], new: Callable[..., Iterable[TrackedPoint]], every_s: float
    ) -> None:
        """Begin. ``new`` returns what is new; with ``last=True`` also a block that is not full."""
        self._waiting = [(sink, deque[TrackedPoint](maxlen=MAX_POINTS)) for sink in sinks]
        self._new = new
        self._every_s = every_s
        self._ended = threading.Event()
        self._given_up = threading.Event()
        self._summary: dict[str, float] = {}
        self._warned = False
        self._thread = threading.Thread(target=self._follow, name="zeus-stream trackers", daemon=True)
        if sinks:
            self._thread.start()
            atexit.register(self.close)

    def __repr__(self) -> str:
        names = ", ".join(type(sink).__name__ for sink, _ in self._waiting) or "nothing: another rank reports"
        return f"<EnergyLog to {names}: {'closed' if self._ended.is_set() else 'open'}>"

    def close(self) -> None:
        """Send the last points, for at most `FLUSH_S`. Call it before the tracker's run is finished."""
        atexit.unregister(self.close)
        if not self._ended.is_set():
            self._ended.set()
            if self._thread.is_alive():
                self._thread.join(FLUSH_S)
            self._given_up.set()

    def _follow(self) -> None:
        while not self._ended.wait(self._every_s):
            self._send(last=False)
        quiet = 0
        while quiet < QUIET and not self._given_up.is_set():  # energy comes some time after its step
            quiet = 0 if self._send(last=False) else quiet + 1
            self._given_up.wait(AGAIN_S)
        self._send(last=True)

    def _send(self, *, last: bool) -> int:
        """Log what is new, unless it is too late for it. Return the number of new points."""
        try:
            points = list(self._new(last=last))
        except ZeusStreamError as wrong:
            self._warn(str(wrong))
            points = []
        for point in points:
            self._summary |= {name: point.values[name] for name in SUMMARY if name in point.values}
        for sink, waiting in self._waiting:
            waiting.extend(points)
            if self._given_up.is_set():  # the tracker's run may be finished by now
                break
            try:
                for _ in range(sink.write(tuple(waiting), last=last)):
                    waiting.popleft()
                if last and self._summary:
                    sink.summarize(self._summary)
            except Exception as wrong:  # noqa: BLE001  (a tracker's failure must not reach the training)
                self._warn(f"trackers: could not log energies: {wrong!r}. The training goes on without them.")
        return len(points)

    def _warn(self, sentence: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("zeus-stream: %s", sentence)


def log_energy_to(*trackers: Any, publisher: Publisher | None = None, every_s: float = EVERY_S) -> EnergyLog:
    """Log the energies of this run to experiment trackers, from now on until it ends.

    Points are epochs, and blocks of 50 steps or of a minute: ``energy/step_j``, ``energy/step_ms``,
    ``energy/power_w``, ``energy/limit_w``, ``energy/total_j``, ``energy/saved_percent``, ``energy/epoch_j``.
    They come seconds late, and leave the steps of your other metrics as they are. Ranks other than 0 log
    nothing.

    Args:
        trackers: ``wandb.run``, the module ``mlflow``, a ``SummaryWriter`` of TensorBoard, an ``aim.Run``.
        publisher: that of the script. None: the default one.
        every_s: seconds between two questions to the analyzer.

    Raises:
        SettingsError: an argument is no tracker.

    Example:
        >>> zeus_stream.log_energy_to(wandb.run)
    """
    publisher = publisher or default_publisher()
    started, (step, epoch) = publisher.started, publisher.next_numbers
    sinks = [sink_of(tracker) for tracker in trackers] if started.rank == 0 else []

    def ask(query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = connect().sql(query, timeout_s=QUERY_S).to_pylist()
        return rows

    return EnergyLog(sinks, TrackedPoints(started.run, ask, step, epoch).new, every_s)
