"""The stream of frames -> rows of the archive, and what is to be done. Pure.

    Readings -> timelines of GPUs --.
    Events   -> sessions, windows ---+-> rows of windows, trials, ... and commands, answers
    Notes    -> GPUs, admissions, outcomes of commands

Time is that of the frames, by host. The same frames give the same results, command ids included.
"""

from collections.abc import Container, Mapping
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct

from analyzers.batch_size import job_events
from analyzers.batch_size.history import Known
from analyzers.batch_size.policy import Policy
from analyzers.batch_size.registry import Default
from analyzers.batch_size.tracker import Jobs
from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Fleet
from analyzers.fleet.questions import Questions
from analyzers.measurement.sensors import Gain
from analyzers.pipeline.pipelines import Pipelines
from analyzers.pipeline.remembering.known_pipelines import KnownPipelines
from analyzers.power_budget.enforcer import Enforcer, FrameHandled, LimitAsked, RunsChanged
from analyzers.power_limit.profiles import KnownProfiles, Memory
from analyzers.power_limit.run import Run
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.search_progress import SearchProgress
from analyzers.results.instructions import ApplyControl, Instruction
from analyzers.results.result import NOTHING, OWN, Result
from analyzers.results.rows import DecisionRow, RunRow
from analyzers.routes.attempts import Attempts
from analyzers.routes.event_route import EventRoute
from analyzers.routes.followed_gpus import FollowedGpus
from analyzers.routes.forecast_route import ForecastRoute
from analyzers.routes.note_route import NoteRoute
from analyzers.routes.open_sessions import OpenSessions
from analyzers.routes.reading_route import ReadingRoute
from analyzers.routes.step_route import StepRoute
from analyzers.routes.window_route import WindowRoute
from zeus_stream.protocol.events import Ask, AskTry
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import Readings

__all__ = ("OWN", "Asked", "Calibrated", "Forgotten", "Interpreter", "JobForgotten", "LinkSeen", "Logged")


class Logged(Struct, frozen=True):
    """The next frame of a log."""

    frame: Frame
    body: Body
    hurried: bool = False
    """Frames wait: leave out what can be left out, the fit of the energy of single steps."""


class Asked(Struct, frozen=True):
    """A question of a script on a host. It is answered now, or once it can be, or after a timeout."""

    host: str
    ask: Ask | AskTry


class JobForgotten(Struct, frozen=True):
    """A job begins again: its tries count no more."""

    job: str


class Calibrated(Struct, frozen=True):
    """From now on, these gains of GPUs (UUIDs) are taken out of their energies."""

    gains: Mapping[str, Gain]


class Forgotten(Struct, frozen=True):
    """From now on, no run starts from profiles of these jobs that were measured until then (UTC, ns)."""

    wall_ns: Mapping[str, int]


class LinkSeen(Struct, frozen=True):
    """The state of the link to the collector of a host."""

    host: str
    connected: bool
    behind: int | None
    """Frames of its log that are to be interpreted; None: not known."""


Input: TypeAlias = Logged | Asked | JobForgotten | Calibrated | Forgotten | LinkSeen


class Interpreter:
    """The machines of a site, and the order in which an event passes them. Holds what is open."""

    def __init__(
        self,
        settings: RunSettings,
        memory: Memory | None = None,
        policy: tuple[str, Policy[Any]] | None = None,
        jobs: Known | None = None,
        began_under: Mapping[str, RunSettings] | None = None,
        pending: Pending | None = None,
    ) -> None:
        """Begin with no run.

        Args:
            settings: of runs that begin from now on.
            memory: what earlier runs left.
            policy: name and policy that chooses batch sizes; the default sizes if not given.
            jobs: what is known of jobs that recur.
            began_under: by session, the settings of runs that began under an earlier analyzer.
            pending: decides when a command leaves; at once if not given.
        """
        name, chooser = policy or ("default", Default())
        runs: dict[str, Run] = {}
        self._now_ns: dict[str, int] = {}
        """By host: the time of its latest frame."""
        self._left = NOTHING
        """Comes with the result of the next event."""
        self._fleet = Fleet()
        self._pending = pending or Pending(at_once=True)
        self._known = KnownProfiles(memory)
        self._questions = Questions()
        self._jobs = Jobs(chooser, name, self._fleet, jobs or Known(), settings.timeout_ns)
        self._enforcer = Enforcer(self._fleet, self._pending, runs, settings)
        counters = None if memory is None else memory.counters
        self._gpus = FollowedGpus(self._fleet, self._pending, counters)
        pipelines = KnownPipelines(() if memory is None else memory.instructions)
        self._pipelines = Pipelines(
            self._fleet, settings.pipelines, self._pending, self._enforcer.allocations, pipelines
        )
        self._sessions = OpenSessions(
            self._fleet,
            self._pending,
            self._gpus,
            self._jobs,
            runs,
            self._enforcer.allocations,
            self._pipelines,
            settings=settings,
            known=self._known,
            began_under=began_under or {},
            names=jobs or Known(),
            earlier=() if memory is None else memory.uses,
        )
        self._lay_routes(settings.timeout_ns)

    def _lay_routes(self, timeout_ns: int) -> None:
        self._attempts = Attempts(self._sessions)
        self._steps = StepRoute(self._sessions, self._attempts)
        self._windows = WindowRoute(
            self._fleet,
            self._sessions,
            self._jobs,
            self._questions,
            self._attempts,
            self._steps,
            timeout_ns=timeout_ns,
        )
        self._readings = ReadingRoute(self._gpus, self._sessions)
        self._events = EventRoute(
            self._sessions,
            self._gpus,
            self._jobs,
            self._questions,
            self._attempts,
            self._pipelines,
            self._steps,
        )
        self._forecasts = ForecastRoute(self._sessions, self._fleet)
        self._notes = NoteRoute(
            self._fleet,
            self._pending,
            self._gpus,
            self._sessions,
            self._enforcer,
            self._windows,
            self._attempts,
            self._pipelines,
        )

    def handle(self, event: Input, now_ns: int) -> Result:
        """Take in an event. Return rows to be stored and instructions to be carried out.

        Args:
            event: what happened; frames come in the order of each log.
            now_ns: frame time of its host.
        """
        left, self._left = self._left, NOTHING
        rows, instructions = left | self._take(event, now_ns)
        if instructions or isinstance(event, LinkSeen):
            return Result(rows, self._pending.release(instructions))
        return Result(rows)

    def _take(self, event: Input, now_ns: int) -> Result:
        match event:
            case Logged(frame, body, hurried):
                return self._frame(frame, body, now_ns, hurried=hurried)
            case LinkSeen(host, connected, behind):
                self._pending.link(host, connected=connected, behind=behind)
                return NOTHING
            case _:
                return self._steps.catch_up_all(self._now_ns) | self._take_rare(event, now_ns)

    def _take_rare(self, event: Asked | JobForgotten | Calibrated | Forgotten, now_ns: int) -> Result:
        match event:
            case Asked(host, ask):
                return self._attempts.answer(host, now_ns, partial(self._ask, host, ask, now_ns))
            case JobForgotten(job):
                return self._jobs.handle(job_events.JobForgotten(job), self._now_ns)
            case Calibrated(gains):
                self._gpus.calibrate(gains)
            case Forgotten(wall_ns):
                self._known.forgotten_wall_ns = wall_ns
                self._pipelines.known.forgotten_wall_ns = wall_ns
        return NOTHING

    def _ask(self, host: str, ask: Ask | AskTry, now_ns: int) -> Result:
        match ask:
            case Ask():
                return Result((), tuple(self._questions.ask(host, ask, now_ns)))
            case AskTry():
                return self._jobs.handle(job_events.AdviceAsked(host, ask), self._now_ns)

    def _frame(self, frame: Frame, body: Body, now_ns: int, *, hurried: bool) -> Result:
        """Pass a frame to its route, measure what can be measured by then, and keep to power budgets."""
        self._now_ns[frame.host] = now_ns
        result, enforces = NOTHING, self._enforcer.active
        match body:
            case Readings():
                work = partial(self._readings.handle, frame, body, self._now_ns)
                result = self._attempts.make(frame, "readings", self._now_ns, work)
            case Events() if self._steps.put_off(frame, body, self._now_ns):
                if not enforces and not self._windows.is_due(frame.host, frame.t_ns):
                    return NOTHING
            case Events():
                result = self._steps.catch_up_with(body.session, self._now_ns)
                result |= self._events.handle(frame, body, self._now_ns)
            case Notes():
                result = self._steps.catch_up_all(self._now_ns)
                result |= self._notes.handle(frame, body, self._now_ns)
        if not (isinstance(body, Events) and any(isinstance(i, ApplyControl) for i in result.instructions)):
            # else with the next frame: a command does not wait for the fit of a second's steps
            result |= self._windows.handle(frame, body, self._now_ns, hurried=hurried)
        forecast = partial(self._forecasts.handle, frame.host, body, result.rows)
        result |= self._attempts.make(frame, "forecasts", self._now_ns, forecast)
        if result is NOTHING and not self._enforcer.active:
            return result
        enforce = partial(self._enforce, frame.host, result)
        return self._attempts.make(frame, "budgets", self._now_ns, enforce, otherwise=result)

    def _enforce(self, host: str, result: Result) -> Result:
        """Return what a frame gave, as far as power budgets grant it, and what they ask for."""
        if any(isinstance(row, (RunRow, DecisionRow)) for row in result.rows):
            self._enforcer.handle(RunsChanged(), self._now_ns)
        if result.instructions:
            granted = [self._granted(instruction) for instruction in result.instructions]
            result = Result(result.rows, tuple(granted))
        return result | self._enforcer.handle(FrameHandled(host), self._now_ns)

    def _granted(self, instruction: Instruction) -> Instruction:
        match instruction:
            case ApplyControl(control="power_limit"):
                (granted,) = self._enforcer.handle(LimitAsked(instruction), self._now_ns).instructions
                return granted
            case _:
                return instruction

    def settle(self) -> None:
        """Take in the steps that wait, before the state is written. The next event's result has theirs."""
        self._left |= self._steps.catch_up_all(self._now_ns)

    def measure_all(self) -> Result:
        """Measure what can be measured by now, at the end of a replay.

        A question may have had it measured before the restart. Such rows are stored, so they are to come in
        the replay: later ones are not compared with what is stored.
        """
        left, self._left = self._left, NOTHING
        return left | self._windows.measure_all(self._now_ns)

    # ---- what is known

    @property
    def gains(self) -> Mapping[str, Gain]:
        """Calibrations, by GPU."""
        return self._gpus.gains

    @property
    def forgotten_wall_ns(self) -> Mapping[str, int]:
        """By job, until when profiles are forgotten (UTC, ns)."""
        return self._known.forgotten_wall_ns

    def frame_ns(self, host: str) -> int:
        """Return the time of the latest frame of a host; 0: there was none."""
        return self._now_ns.get(host, 0)

    def open_sessions(self) -> dict[str, str]:
        """Return the sessions that are followed, and the run of each."""
        return {name: session.started.run for name, session in self._sessions.of.items()}

    def hosts_without(self, runs: Container[str]) -> frozenset[str]:
        """Return the hosts with sessions, none of which is of these runs."""
        return frozenset(
            host
            for host, sessions in self._sessions.on.items()
            if sessions and not any(session.started.run in runs for session in sessions.values())
        )

    def leases(self) -> Mapping[str, frozenset[str]]:
        """Return, by host, the GPUs whose leases are to be renewed."""
        return self._pending.leases()

    def waiting(self) -> Mapping[str, int]:
        """Return, by host, the number of commands that wait until its stream is no longer old."""
        return self._pending.waiting()

    def tries(self, job: str) -> int | None:
        """Return the number of tries that count for a job; None: it is not known."""
        return self._jobs.tries(job)

    def cross_checks(self) -> dict[str, float]:
        """Return, by GPU, the energy its counter shows over that of its power readings, recently."""
        ratios = {uuid: gpu.timeline.counter_to_power for uuid, gpu in self._fleet.gpus.items()}
        return {uuid: ratio for uuid, ratio in ratios.items() if ratio is not None}

    def searches(self) -> dict[str, SearchProgress]:
        """Return, by run, where the search for its power limit stands."""
        runs = self._sessions.runs.items()
        return {name: run.search.progress for name, run in runs if run.settings.selector is not None}
