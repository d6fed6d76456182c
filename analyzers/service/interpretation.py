"""The interpreter in a thread of its own: what is slow there holds up no lease, command, status or query.

Readings of hosts at rest are not slow: to wake the thread takes longer, so the event loop interprets them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct

from analyzers.checkpoints import state_classes
from analyzers.checkpoints.checkpoint_taker import CheckpointTaker
from analyzers.interpreter.interpreter import Input, Interpreter, JobForgotten, LinkSeen, Logged
from analyzers.measurement.sensors import Gain
from analyzers.measurement.timeline import AGREES
from analyzers.power_limit.search.search_progress import settled
from analyzers.results.result import Result, in_order, rows_only
from zeus_stream.clock import monotonic_ns, thread_time_ns
from zeus_stream.protocol.fields import MOST_WORDS
from zeus_stream.protocol.frames import Body, Frame
from zeus_stream.protocol.queries import StatusRows
from zeus_stream.protocol.readings import Readings
from zeus_stream.protocol.snapshots import SearchNow

T = TypeVar("T")
Links = Callable[[Mapping[str, Frame]], Iterable[LinkSeen]]

AT_ONCE_NS = 100_000_000
"""Work of the thread after which what was decided leaves it, and others have their turn."""
SHED_NS = 1_000_000_000
"""The energy of single steps is fitted while no frame waits longer than this."""
OWED_NS = 250_000_000
"""And where no search waits, while the work that waits is less than this."""
RECENT_NS = 5_000_000_000
"""The share of the processor that the work takes fades with this."""
INSIGHT_NS = 1_000_000_000
"""Between two looks at what the status shows."""
CHECKED_NS = 30_000_000_000
"""Between two comparisons of counters with power while sessions are open: each works out all readings."""
CHECKED_AT_REST_NS = 600_000_000_000
"""Between two of them while none is, once they have shown anything."""
SLIGHT_BYTES = 10_000
"""Most bytes of readings of hosts at rest that the event loop interprets itself."""
SLIGHT_SHARE = 0.02
"""Largest share of a core for such work: a large site leaves it to the thread."""
PAUSE_S = 0.25
"""Between two looks at the feed of a host whose runs search for nothing: one turn for many frames."""
SEARCHES_NS = 200_000_000
"""Between two looks at the searches of runs, unless something is to be done."""

FORGOTTEN_SHOWN = 20
"""Jobs in the status whose profiles were forgotten last."""


class Insight(Struct, frozen=True):
    """The interpreter's knowledge of GPUs and jobs, a short time ago."""

    cross_checks: Mapping[str, float]
    """By GPU: the energy of its counter over that of its power readings."""
    gains: Mapping[str, Gain]
    """By GPU: its calibration."""
    forgotten_wall_ns: Mapping[str, int]
    """By job: profiles measured until then are not used (UTC, ns)."""

    @property
    def status_rows(self) -> StatusRows:
        """Return it as rows of the status."""
        rows = []
        for gpu, ratio in self.cross_checks.items():
            says = "agrees" if AGREES[0] <= ratio <= AGREES[1] else "DOUBTFUL: its joules cannot be believed"
            rows.append((f"gpu {gpu}"[:MOST_WORDS], "counter over power", f"{ratio:.2f}, {says}"))
        for gpu, gain in self.gains.items():
            rows.append((f"gpu {gpu}"[:MOST_WORDS], "calibration", f"{gain.words}, from {gain.source}"))
        forgotten = sorted(self.forgotten_wall_ns.items(), key=lambda item: -item[1])[:FORGOTTEN_SHOWN]
        for job, wall_ns in forgotten:
            until = f"{datetime.fromtimestamp(wall_ns // 10**9, UTC):%F %T} UTC"
            rows.append(("profiles", "forgotten", f"{job}, up to {until}"))
        return rows


def sheds(behind_ns: int, share: float, *, searching: bool) -> bool:
    """Return whether the energy of single steps is to be left out: work waits, or a search does.

    ``share``: of a core that interpretation takes. One that gets little of a busy host is behind, and may yet
    have little to do. It catches up.
    """
    return behind_ns > SHED_NS and (searching or share * behind_ns > OWED_NS)


class Interpretation:
    """The only way to the interpreter. Calls wait for each other, the event loop for none of them."""

    def __init__(self, interpreter: Interpreter, taker: CheckpointTaker | None = None) -> None:
        """``taker``: takes checkpoints of it; none are taken if not given."""
        self._interpreter = interpreter
        self._turn = anyio.CapacityLimiter(1)
        self._looked_ns = self._searched_ns = self._checked_ns = 0
        self._share, self._share_ns = 0.0, monotonic_ns()
        """The share of a core that the work took recently, and when that was."""
        self._taker = taker
        self.insight = Insight({}, {}, {})
        self.searches: Mapping[str, SearchNow] = {}
        """By open run, where the search for its power limit stood a short time ago."""
        self.gathering: frozenset[str] = frozenset()
        """Hosts whose frames may come together, as of the last look at the searches."""
        self.used: frozenset[str] = frozenset()
        """Hosts with sessions, as of the same look."""
        self.leases: Mapping[str, frozenset[str]] = {}
        """By host, the GPUs whose leases are to be renewed, as of the last work."""
        self.waiting: Mapping[str, int] = {}
        """By host, the number of commands that wait, as of the last work."""
        self.stalled_ns: int | None = None
        """Since when (CLOCK_MONOTONIC) the work under way has lasted; None: there is none."""

    def pause_s(self, host: str) -> float:
        """Return how long frames of a host may come together before they are interpreted."""
        return PAUSE_S if host in self.gathering else 0.0

    async def run(self, work: Callable[[Interpreter], T]) -> T:
        return await run_sync(self._run, work, limiter=self._turn)

    async def handle(self, event: Input, host: str = "") -> Result:
        """Return what an event other than a frame gives; ``host``: the one it is about."""
        return await self.run(lambda known: known.handle(event, known.frame_ns(host)))

    async def end_replay(self) -> Result:
        """Take in that all is interpreted that an earlier start had; return what else that may have given."""
        if self._taker is not None:
            self._taker.whole = True
        await self.run(_prepare)
        return await self.run(Interpreter.measure_all)

    async def forget(self, job: str) -> Result:
        """Let a job begin again, and have that in the next checkpoint."""
        result = await self.handle(JobForgotten(job))
        if self._taker is not None:
            self._taker.times.wanted = True
        return result

    async def interpret(
        self, frames: Sequence[tuple[Frame, Body]], behind_ns: int, links: Links
    ) -> tuple[int, Result]:
        """Interpret the first of these frames, at least one. Return how many, and what they gave.

        ``behind_ns``: since when the oldest waits. ``links``: all links, given the last frame of each host.
        """

        slight = self._slight(frames)

        def work(interpreter: Interpreter) -> tuple[int, Result]:
            hurried = sheds(behind_ns, self._share, searching=not self.pause_s(frames[0][0].host))
            began_ns, results = monotonic_ns(), list[Result]()
            for frame, body in frames:
                results.append(interpreter.handle(Logged(frame, body, hurried), frame.t_ns))
                if monotonic_ns() >= began_ns + AT_ONCE_NS:
                    break
            last = {frame.host: frame for frame, _ in frames[: len(results)]}
            follows = [interpreter.handle(seen, 0) for seen in links(last)]
            result = in_order([*results, *follows])
            if result.instructions:
                self._searched_ns = 0  # a search may have begun: the next step is waited for
            if self._taker is not None:
                spent_ns = monotonic_ns() - began_ns
                taken = self._taker.take(
                    interpreter.site,
                    frames[: len(results)],
                    result.rows,
                    spent_ns,
                    hurried=slight or bool(result.instructions),
                )
                result |= rows_only(taken)
            return len(results), result

        return self._run(work) if slight else await self.run(work)

    def _slight(self, frames: Sequence[tuple[Frame, Body]]) -> bool:
        """Return whether these take less work than waking the thread: no session is open anywhere."""
        return (
            not (self.used or self._turn.borrowed_tokens or self._share > SLIGHT_SHARE)
            and all(isinstance(body, Readings) for _, body in frames)
            and sum(len(frame.body) for frame, _ in frames) <= SLIGHT_BYTES
            and not (self._taker is not None and self._taker.times.due(monotonic_ns()))
            and not self._is_check_due(monotonic_ns())
        )

    def _is_check_due(self, now_ns: int) -> bool:
        pause_ns = CHECKED_NS if self.used or not self.insight.cross_checks else CHECKED_AT_REST_NS
        return now_ns - self._checked_ns >= pause_ns

    def _run(self, work: Callable[[Interpreter], T]) -> T:
        self.stalled_ns, worked_ns = monotonic_ns(), thread_time_ns()
        try:
            done = work(self._interpreter)
            site = self._interpreter.site
            self.leases, self.waiting = site.pending.leases(), site.pending.waiting()
            if self.stalled_ns - self._looked_ns >= INSIGHT_NS:
                self._looked_ns = self.stalled_ns
                checks = self.insight.cross_checks
                if self._is_check_due(self.stalled_ns):
                    self._checked_ns, checks = self.stalled_ns, self._interpreter.cross_checks()
                self.insight = Insight(checks, site.fleet.gains, site.profiles.forgotten_wall_ns)
            if self.stalled_ns - self._searched_ns >= SEARCHES_NS:
                self._searched_ns = self.stalled_ns
                self.searches = self._interpreter.searches()
                waiting = {run for run, search in self.searches.items() if not settled((search,))}
                self.gathering = self._interpreter.hosts_without(waiting)
                self.used = self._interpreter.hosts_without(())
        finally:
            fades = math.exp((self._share_ns - self.stalled_ns) / RECENT_NS)
            self._share = self._share * fades + (thread_time_ns() - worked_ns) / RECENT_NS
            self._share_ns, self.stalled_ns = self.stalled_ns, None
        return done


def _prepare(_: Interpreter) -> None:
    """Do now what the first median and the first checkpoint would do, before the first command of a run."""
    import numpy.ma  # noqa: F401, PLC0415  (15 ms)

    state_classes.version()
