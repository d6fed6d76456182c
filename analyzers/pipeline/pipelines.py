"""The pipelines of a site: passes each event to the pipeline of its run. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Allocation, Clocks, Fleet
from analyzers.pipeline.known_pipelines import KnownPipelines
from analyzers.pipeline.pipeline_events import (
    ClockLost,
    ClockSettled,
    PipelineEvent,
    StageBegan,
    StageEnded,
    StageRan,
)
from analyzers.pipeline.pipeline_run import PipelineRun
from analyzers.power_limit.run_settings import PipelineSettings
from analyzers.results.result import NOTHING, Result, in_order

MAX_PIPELINES = 1_000
"""Runs at once; one more is not planned for."""


class Pipelines:
    """The pipelines of a site. None is planned for without settings."""

    NOT_STATE: ClassVar = frozenset[str](("_settings",))

    def __init__(
        self,
        fleet: Fleet,
        settings: PipelineSettings | None,
        pending: Pending,
        shares: Mapping[str, Allocation] = MappingProxyType({}),
        known: KnownPipelines | None = None,
    ) -> None:
        """Begin with no pipeline. ``settings``: None: nothing is planned. ``shares``: of budgets, by GPU."""
        self._pending = pending
        self._fleet, self._settings, self._shares = fleet, settings, shares
        self.known = known or KnownPipelines()
        self._runs: dict[str, PipelineRun] = {}

    def plans_for(self, run: str) -> bool:
        """Tell whether the clocks of a run are those of a pipeline."""
        return run in self._runs

    def handle(self, event: PipelineEvent, now: Clocks) -> Result:
        """Take in an event. Return rows to be stored and instructions to be carried out."""
        match event:
            case ClockSettled() | ClockLost():
                return in_order([run.handle(event, now) for run in self._runs.values()])
            case StageBegan(session) | StageRan(session) | StageEnded(session):
                name = session.started.run
                run = self._runs.get(name)
                if run is None and isinstance(event, StageBegan) and self._settings is not None:
                    if len(self._runs) >= MAX_PIPELINES:
                        return NOTHING
                    run = self._runs[name] = PipelineRun(
                        name, self._fleet, self._settings, self._shares, self.known, self._pending
                    )
                if run is None:
                    return NOTHING
                result = run.handle(event, now)
                if run.empty:
                    del self._runs[name]
                return result
