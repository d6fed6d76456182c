"""Asks the services of a setup for one scrape, and keeps what counters need between two scrapes."""

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Literal

from zeus_stream.errors import RefusedError, UnreachableError, ZeusStreamError
from zeus_stream.paths import Places
from zeus_stream.protocol.snapshots import RunNow, Snapshot
from zeus_stream.quoting import quoted
from zeus_stream.screens.metrics.job_metrics import JobMetrics
from zeus_stream.screens.metrics.metrics import Family, Names, gpu_families, service_families, up_family
from zeus_stream.transport.client import Connection, ask_now
from zeus_stream.transport.endpoints import Distant

Process = Literal["collector", "analyzer"]
ANSWER_S = 2.0
QUERY_S = 10.0
MAX_LATER = 1_000
"""Closed runs whose waste is still to be asked for; the oldest is dropped."""
TRIES = 10
_WASTE = "SELECT cause, energy_j, share IS NOT NULL AS closed FROM waste_of({run}) WHERE cause <> 'steps'"
_log = logging.getLogger(__name__)


class Scrape:
    """The metrics of one setup. For any thread; one asks at a time."""

    def __init__(
        self, where: Mapping[Process, Places | Distant], dcgm: Names = "none", *, whole: bool = False
    ) -> None:
        """``dcgm``: dcgm-exporter's names as well. ``whole``: count runs from their begin on."""
        self._where = where
        self._dcgm = dcgm
        self._jobs = JobMetrics(whole=whole)
        self._later: dict[str, tuple[RunNow, int]] = {}
        self._lock = threading.Lock()
        self._begun = 0
        """Scrapes that asked the services."""
        self._latest: list[Family] = []
        self.ended: list[RunNow] = []
        """Runs that have ended since `take_ended` was called last."""

    def families(self) -> list[Family]:
        """Return all families now. A process that does not answer has only ``zeus_stream_up`` 0.

        It is waited for, so scrapes that came in the meantime share the answer to the next question.
        """
        begun = self._begun
        with self._lock:
            if self._begun > begun:
                return self._latest
            self._begun += 1
            families: list[Family] = []
            answers: dict[str, bool] = {}
            for process in self._where:
                snapshot = self._ask(process)
                answers[process] = snapshot is not None
                if snapshot is not None:
                    families += self._of(process, snapshot)
            self._latest = [*families, up_family(answers)]
            return self._latest

    def take_ended(self) -> list[RunNow]:
        """Return the runs that have ended since the last call."""
        with self._lock:
            ended, self.ended = self.ended, []
        return ended

    def _ask(self, process: Process) -> Snapshot | None:
        try:
            return ask_now(self._where[process], process=process, timeout_s=ANSWER_S)
        except (UnreachableError, RefusedError) as wrong:
            _log.info("%s", wrong)
            return None

    def _of(self, process: Process, snapshot: Snapshot) -> Sequence[Family]:
        if process == "collector":
            return [*gpu_families(snapshot, self._dcgm), *service_families(snapshot)]
        ended = self._jobs.take(snapshot.runs)
        self.ended = [*self.ended, *ended][-MAX_LATER:]
        self._later |= {run.run: (run, 0) for run in ended}
        self._ask_waste()
        return [*self._jobs.families(snapshot), *service_families(snapshot)]

    def _ask_waste(self) -> None:
        """Ask for the waste of one run that has ended; it is asked again while its last window is open."""
        while len(self._later) > MAX_LATER:
            del self._later[next(iter(self._later))]
        if not self._later:
            return
        name, (run, tries) = next(iter(self._later.items()))
        del self._later[name]
        query = _WASTE.format(run=quoted(name))
        try:
            rows = Connection(self._where["analyzer"]).sql(query, timeout_s=QUERY_S).to_pylist()
        except ZeusStreamError as wrong:
            _log.info("%s", wrong)
            rows = []
        if rows and all(row["closed"] for row in rows):
            self._jobs.add_waste(run.job, {row["cause"]: max(0.0, row["energy_j"]) for row in rows})
        elif tries < TRIES:
            self._later[name] = run, tries + 1
