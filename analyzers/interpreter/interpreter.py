"""The stream of frames -> rows of the archive, and what is to be done. Pure.

    Readings -> timelines of GPUs --.
    Events   -> sessions, windows ---+-> rows of windows, trials, ... and commands, answers
    Notes    -> GPUs, admissions, outcomes of commands

Time is that of the frames, by host. The same frames give the same results, command ids included.
"""

from collections.abc import Container, Iterable, Mapping
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from analyzers.batch_size.policy import Policy
from analyzers.batch_size.tracker import AdviceAsked, FrameMeasured, TriesForgotten
from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import FULL, gpu_row, hangs
from analyzers.fleet.session import Session
from analyzers.interpreter import events, forecasts, notes, sessions
from analyzers.interpreter.sessions import FEW, attempt, catch_up_with, drop, measure, needed_ns, users
from analyzers.interpreter.state import SiteState, new_site, validate
from analyzers.measurement.phases.phase_tracker import PhaseTracker
from analyzers.measurement.sensors import Gain
from analyzers.measurement.timeline import IDLE_NS, RECENT_NS
from analyzers.power_budget.enforcer import FrameHandled, LimitAsked, RunsChanged
from analyzers.power_budget.grants import GpuUse
from analyzers.power_limit.run import ReadingsCame, Run
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.memory import Memory
from analyzers.results.readings import READING, well_formed
from analyzers.results.result import NOTHING, ApplyControl, Instruction, Result, rows_only
from analyzers.results.rows import DecisionRow, GapRow, Row, RunRow
from zeus_stream.protocol.events import Ask, AskTry
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import Readings
from zeus_stream.protocol.snapshots import SearchNow

AHEAD_NS = 1_000_000_000
"""Readings cannot be later than their frame; so much is forgiven."""
LEARN_NS = 1_000_000_000
"""Between two looks at what is known of a counter: a look works out all readings that lie unread."""
LOOK_NS, LOOK_MORE_NS, LOOK_SELDOM_NS = 20_000_000, 200_000, 1_000_000_000
"""Between two looks at the windows of a session: alone on its host, more for each other, and at most."""


class Logged(Struct, frozen=True):
    """The next frame of a log."""

    frame: Frame
    body: Body
    hurried: bool = False
    """Frames wait: leave out what can be left out, the fit of the energy of single steps."""


class ProgressAsked(Struct, frozen=True):
    """A question of a script on a host. It is answered now, or once it can be, or after a timeout."""

    host: str
    ask: Ask | AskTry


class JobForgotten(Struct, frozen=True):
    """A job begins again: its tries count no more."""

    job: str


class Calibrated(Struct, frozen=True):
    """From now on, these gains of GPUs (UUIDs) are taken out of their energies."""

    gains: Mapping[str, Gain]


class ProfilesForgotten(Struct, frozen=True):
    """From now on, no run starts from profiles of these jobs that were measured until then (UTC, ns)."""

    wall_ns: Mapping[str, int]


class LinkSeen(Struct, frozen=True):
    """The state of the link to the collector of a host."""

    host: str
    connected: bool
    behind: int | None
    """Frames of its log that are to be interpreted; None: not known."""


Input: TypeAlias = Logged | ProgressAsked | JobForgotten | Calibrated | ProfilesForgotten | LinkSeen


class Interpreter:
    """The order in which an event passes the machines of a site."""

    def __init__(
        self,
        settings: RunSettings,
        memory: Memory | None = None,
        policy: tuple[str, Policy[Any]] | None = None,
        *,
        shared_jobs: frozenset[str] = frozenset(),
        began_under: Mapping[str, RunSettings] | None = None,
        pending: Pending | None = None,
    ) -> None:
        """Begin with no run.

        Args:
            settings: of runs that begin from now on.
            memory: rows of earlier starts.
            policy: name and policy that chooses batch sizes; the default sizes if not given.
            shared_jobs: jobs that are every user's.
            began_under: by session, the settings of runs that began under an earlier analyzer.
            pending: decides when a command leaves; at once if not given.
        """
        self.site = new_site(
            settings,
            memory or Memory(),
            policy,
            shared_jobs,
            began_under or {},
            pending or Pending(at_once=True),
        )

    def handle(self, event: Input, now_ns: int) -> Result:
        """Take in an event at frame time of its host. Return rows to store and instructions to carry out."""
        left, self.site.left = self.site.left, NOTHING
        rows, instructions = left | self._take(event, now_ns)
        if instructions or isinstance(event, LinkSeen):
            return Result(rows, self.site.pending.release(instructions))
        return Result(rows)

    def _take(self, event: Input, now_ns: int) -> Result:
        match event:
            case Logged(frame, body, hurried):
                return self._frame(frame, body, now_ns, hurried=hurried)
            case LinkSeen(host, connected, behind):
                self.site.pending.link(host, connected=connected, behind=behind)
                return NOTHING
            case _:
                return sessions.catch_up_all(self.site) | self._take_rare(event, now_ns)

    def _take_rare(
        self, event: ProgressAsked | JobForgotten | Calibrated | ProfilesForgotten, now_ns: int
    ) -> Result:
        site = self.site
        match event:
            case ProgressAsked(host, ask):
                try:
                    return self._ask(host, ask, now_ns)
                except Exception as wrong:  # noqa: BLE001  (as in `attempt`: a gap, and no answer)
                    reason = f"a question could not be answered: {repr(wrong)[:500]}. Report it with the log."
                    return rows_only([GapRow(host, "questions", now_ns, 1, reason)])
            case JobForgotten(job):
                return site.jobs.handle(TriesForgotten(job), site.now_ns)
            case Calibrated(gains):
                site.fleet.calibrate(gains)
            case ProfilesForgotten(wall_ns):
                site.profiles.forgotten_wall_ns = site.pipelines.known.forgotten_wall_ns = wall_ns
        return NOTHING

    def _ask(self, host: str, ask: Ask | AskTry, now_ns: int) -> Result:
        match ask:
            case Ask():
                return Result((), tuple(self.site.questions.ask(host, ask, now_ns)))
            case AskTry():
                return self.site.jobs.handle(AdviceAsked(host, ask), self.site.now_ns)

    def _frame(self, frame: Frame, body: Body, now_ns: int, *, hurried: bool) -> Result:
        """Take in a frame, measure what can be measured by then, and keep to power budgets."""
        site = self.site
        site.now_ns[frame.host] = now_ns
        result, enforces = NOTHING, site.enforcer.active
        match body:
            case Readings():
                result = attempt(site, frame, "readings", partial(take_readings, site, frame, body))
            case Events() if sessions.let_wait(site, frame, body):
                if not enforces and not is_due(site, frame.host, frame.t_ns):
                    return NOTHING
            case Events():
                result = events.handle(site, frame, body)
            case Notes():
                result = sessions.catch_up_all(site) | notes.handle(site, frame, body)
        if not (isinstance(body, Events) and any(isinstance(i, ApplyControl) for i in result.instructions)):
            # else with the next frame: a command does not wait for the fit of a second's steps
            result |= measure_due(site, frame, body, hurried=hurried)
        forecast = partial(forecasts.handle, site, frame.host, body, result.rows)
        result |= attempt(site, frame, "forecasts", forecast)
        if result is NOTHING and not site.enforcer.active:
            return result
        enforce = partial(self._enforce, frame.host, result)
        return attempt(site, frame, "budgets", enforce, otherwise=result)

    def _enforce(self, host: str, result: Result) -> Result:
        """Return what a frame gave, as far as power budgets grant it, and what they ask for."""
        if any(isinstance(row, (RunRow, DecisionRow)) for row in result.rows):
            self.site.enforcer.handle(RunsChanged(), self.site.now_ns)
        if result.instructions:
            granted = [self._granted(instruction) for instruction in result.instructions]
            result = Result(result.rows, tuple(granted))
        return result | self.site.enforcer.handle(FrameHandled(host), self.site.now_ns)

    def _granted(self, instruction: Instruction) -> Instruction:
        match instruction:
            case ApplyControl(control="power_limit"):
                (granted,) = self.site.enforcer.handle(LimitAsked(instruction), self.site.now_ns).instructions
                return granted
            case _:
                return instruction

    def measure_all(self) -> Result:
        """Measure what can be measured by now, at the end of a replay.

        A question may have had it measured before the restart. Such rows are stored, so they are to come in
        the replay: later ones are not compared with what is stored.
        """
        site = self.site
        result, site.left = site.left, NOTHING
        for session in list(site.sessions.values()):
            site.windows[session.session].hasten()
            t_ns = site.now_ns[session.host]
            frame = Frame(log_id="", offset=0, host=session.host, t_ns=t_ns, topic="", body=b"")
            result |= _measure_session(site, frame, session, hurried=False)
        return result

    def validate(self) -> None:
        """Check what holds between events. Raises AssertionError."""
        validate(self.site)

    # ---- what is known

    def shard_use(self) -> tuple[dict[str, GpuUse], dict[str, int]]:
        """Return what is used under power budgets, as `Enforcer.shard_use` does."""
        return self.site.enforcer.shard_use()

    def frame_ns(self, host: str) -> int:
        """Return the time of the latest frame of a host; 0: there was none."""
        return self.site.now_ns.get(host, 0)

    def hosts_without(self, runs: Container[str]) -> frozenset[str]:
        """Return the hosts with sessions, none of which is of these runs."""
        return frozenset(
            host
            for host, sessions in self.site.on.items()
            if sessions and not any(session.started.run in runs for session in sessions.values())
        )

    def cross_checks(self) -> dict[str, float]:
        """Return, by GPU, the energy its counter shows over that of its power readings, recently."""
        ratios = {uuid: gpu.timeline.counter_to_power for uuid, gpu in self.site.fleet.gpus.items()}
        return {uuid: ratio for uuid, ratio in ratios.items() if ratio is not None}

    def searches(self) -> dict[str, SearchNow]:
        runs = self.site.runs.items()
        return {name: run.search.progress for name, run in runs if run.settings.selector is not None}


# ---- readings of GPUs, and what can be measured by them


def take_readings(site: SiteState, frame: Frame, body: Readings) -> Result:
    host = frame.host
    if not well_formed(body):
        return _readings_gap(frame, 1, "a frame of them has figures that cannot be")
    rows = np.frombuffer(body.rows, READING)
    if rows.size and rows["t_hi_ns"].max() > frame.t_ns + AHEAD_NS:
        return _readings_gap(frame, len(rows), "they are later than they were logged")
    if site.fleet.full(body.gpus):
        return _readings_gap(frame, len(rows), FULL)
    owned, gaps = site.fleet.owned(host, body.gpus, "readings", site.now_ns)
    found: list[Row] = [*gaps]
    rows = rows.take(np.argsort(rows["gpu"], kind="stable"))
    indices, starts = np.unique(rows["gpu"], return_index=True)
    for index, (start, end) in zip(indices.tolist(), pairwise([*starts.tolist(), len(rows)]), strict=True):
        uuid = body.gpus[index]
        if uuid in owned:
            found += _add_readings(site, frame, uuid, rows[start:end])
    return rows_only(found)


def _add_readings(site: SiteState, frame: Frame, uuid: str, rows: np.ndarray) -> list[Row]:
    host = frame.host
    gpu = site.fleet.follow(host, uuid)
    gpu.timeline.add(rows)
    if gpu.sessions and (clock_mhz := int(rows["clock_mhz"][-1])) > 0:
        gpu.clocks_mhz.append(clock_mhz)
    found: list[Row] = [*hangs(host, uuid, gpu.timeline)]
    if gpu.timeline.crowded:
        if gpu.shaped:  # the end of a run may show what its counter counts
            gpu.shaped.identify(gpu.timeline, frame.t_ns)
        gpu.timeline.forget(needed_ns(site, uuid), RECENT_NS if users(site, uuid) else IDLE_NS)
    if gpu.shaped and gpu.shaped.crowded:
        gpu.shaped.forget(needed_ns(site, uuid))
    same_gain = gpu.reported_gain == gpu.timeline.gain
    if not gpu.found or (gpu.reported[0] and same_gain and not gpu.sessions):
        return found  # nothing is learned of a GPU that no run uses, but its period
    if 0 <= frame.t_ns - gpu.learned_ns < LEARN_NS:
        return found
    gpu.learned_ns = frame.t_ns
    learned = gpu.timeline.period_known, gpu.counter_kind, gpu.window_ns
    if learned != gpu.reported or not same_gain:
        gpu.reported, gpu.reported_gain = learned, gpu.timeline.gain
        site.fleet.learn(uuid, gpu)
        found.append(gpu_row(host, gpu, gpu.found))
    return found


def _readings_gap(frame: Frame, count: int, reason: str) -> Result:
    return rows_only([GapRow(frame.host, "readings", frame.t_ns, count, reason)])


def measure_due(site: SiteState, frame: Frame, body: Body, *, hurried: bool) -> Result:
    """Measure what can be measured by now; ``hurried``: without the fit of the energy of single steps."""
    now, host = site.now_ns, frame.host
    pause_ns = frame.t_ns - site.looked_ns.get(host, 0)
    due, result = is_due(site, host, frame.t_ns), NOTHING
    if due:
        site.looked_ns[host] = frame.t_ns
    for session in _to_measure(site, frame, body, pause_ns if due else None):
        result |= _measure_session(site, frame, session, hurried=hurried)
    for run in _searching(site, frame, body, due=due):
        work = partial(run.handle, ReadingsCame(), now)
        result |= attempt(site, frame, "trials", work, session=run.lead)
    look = partial(site.jobs.handle, FrameMeasured(host), now)
    result |= attempt(site, frame, "tries", look)
    if due:
        given = tuple(site.questions.time_out(host, frame.t_ns, 2 * site.settings.timeout_ns))
        result |= Result((), given) if given else NOTHING
    return result


def _searching(site: SiteState, frame: Frame, body: Body, *, due: bool) -> list[Run]:
    """Return the runs whose trials are looked at after a frame: those that wait for one's cost."""
    on_host = site.on[frame.host]
    if len(on_host) > FEW and not due and isinstance(body, Events):
        return []
    if len(on_host) <= FEW and isinstance(body, Events):
        looked_at: Iterable[Session] = [on_host[body.session]] if body.session in on_host else ()
    else:
        looked_at = on_host.values()
    names = dict.fromkeys(session.started.run for session in looked_at)
    runs = [run for name in names if (run := site.runs.get(name)) is not None]
    return [run for run in runs if run.search.waits]


def is_due(site: SiteState, host: str, now_ns: int) -> bool:
    """Return whether it is time to look at all sessions of a host."""
    pause_ns = max(LOOK_NS, len(site.on[host]) * LOOK_MORE_NS)
    return not 0 <= now_ns - site.looked_ns.get(host, 0) < pause_ns


def _to_measure(site: SiteState, frame: Frame, body: Body, pause_ns: int | None) -> list[Session]:
    """Return the sessions whose windows are looked at after a frame of their host.

    The more sessions a host has, the less often each is looked at, and the longest ago first: the work
    for a frame stays the same. ``pause_ns``: since the last look at all of them; None: it is not due.
    """
    on_host = site.on[frame.host]
    if len(on_host) <= FEW:
        if isinstance(body, Events):
            return [on_host[body.session]] if body.session in on_host else []
        return list(on_host.values())
    if pause_ns is None:
        return []
    every_ns = min(len(on_host) * LOOK_NS, LOOK_SELDOM_NS)
    asked = site.questions.sessions(frame.host)
    old = [each for each in on_host.values() if not 0 <= frame.t_ns - each.measured_ns < every_ns]
    if 0 <= pause_ns < every_ns:  # those that began together are measured one after the other
        old = sorted(old, key=attrgetter("measured_ns"))[: 1 + len(on_host) * pause_ns // every_ns]
    chosen = asked.union([each.session for each in old])
    return [each for each in on_host.values() if each.session in chosen]


def _measure_session(site: SiteState, frame: Frame, session: Session, *, hurried: bool) -> Result:
    caught_up = catch_up_with(site, session.session)
    if session.session not in site.sessions:
        return caught_up  # it was set aside
    session.measured_ns = frame.t_ns
    windows, phases = site.windows[session.session], site.phases[session.session]
    work = partial(measure, site, session, frame.t_ns, hurried=hurried)
    result = caught_up | attempt(site, frame, "windows", work, session=session)
    over = session.ended is not None and windows.empty
    if phases.marked:
        look = partial(_measure_phases, site, session, phases, frame.t_ns, ended=over)
        result |= attempt(site, frame, "phases", look)
    if over and session.session in site.sessions:
        drop(site, session)
    return result


def _measure_phases(
    site: SiteState, session: Session, phases: PhaseTracker, now_ns: int, *, ended: bool
) -> Result:
    meters = {gpu: site.fleet.gpus[gpu].meter for gpu in session.gpus}
    return rows_only(phases.measure(meters, now_ns, ended=ended))
