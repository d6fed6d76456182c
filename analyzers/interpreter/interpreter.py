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

from analyzers.batch_size.policy import Policy
from analyzers.batch_size.tracker import AdviceAsked, TriesForgotten
from analyzers.dispatch.pending import Pending
from analyzers.interpreter import events, forecasts, notes, readings, sessions
from analyzers.interpreter.sessions import attempt
from analyzers.interpreter.state import new_site, validate
from analyzers.measurement.sensors import Gain
from analyzers.power_budget.enforcer import FrameHandled, LimitAsked, RunsChanged
from analyzers.power_budget.grants import GpuUse
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.memory import Memory
from analyzers.results.result import NOTHING, ApplyControl, Instruction, Result, rows_only
from analyzers.results.rows import DecisionRow, GapRow, RunRow
from zeus_stream.protocol.events import Ask, AskTry
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import Readings
from zeus_stream.protocol.snapshots import SearchNow


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
                result = attempt(site, frame, "readings", partial(readings.handle, site, frame, body))
            case Events() if sessions.let_wait(site, frame, body):
                if not enforces and not readings.is_due(site, frame.host, frame.t_ns):
                    return NOTHING
            case Events():
                result = events.handle(site, frame, body)
            case Notes():
                result = sessions.catch_up_all(site) | notes.handle(site, frame, body)
        if not (isinstance(body, Events) and any(isinstance(i, ApplyControl) for i in result.instructions)):
            # else with the next frame: a command does not wait for the fit of a second's steps
            result |= readings.measure_due(site, frame, body, hurried=hurried)
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
        left, self.site.left = self.site.left, NOTHING
        return left | readings.measure_all(self.site)

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
