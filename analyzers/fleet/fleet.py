"""What all runs of a site share: settings, GPUs, what is remembered, and what is asked for. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from analyzers.fleet.session import Session
from analyzers.measurement.counter_kind import CounterKind
from analyzers.measurement.energy import Meter
from analyzers.measurement.energy_fit import Shape
from analyzers.measurement.timeline import Timeline
from analyzers.power_limit.profiles import Profile, Workload
from analyzers.power_limit.selectors import Selector
from analyzers.results.rows import CommandRow, RecallRow
from zeus_stream.errors import SettingsError
from zeus_stream.protocol.fields import BUDGET
from zeus_stream.protocol.notes import DeviceFound
from zeus_stream.settings import Settings

STEPS_KEPT = 4_096
"""Boundaries a rank remembers beyond those of two trials: ranks run ahead of each other."""
PLANNED = (
    "select", "search", "stride_w", "wait_steps", "warmup_steps", "profile_steps", "settle_ms", "refreshes",
    "window_timeout_ms", "per_gpu", "profiling_share",
)  # fmt: skip
"""Settings that a `Plan` is made of."""
MAX_COMMANDS = 10_000
"""Commands remembered; the oldest without outcome go."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of the interpreter."""

    selector: Selector | None
    """None: only measure."""
    stride_mw: int = 25_000
    wait_steps: int = 1
    warmup_steps: int = 10
    profile_steps: int = 40
    settle_ns: int = 300_000_000
    refreshes: int = 10
    timeout_ns: int = 5_000_000_000
    """Frame time that readings of a window, ranks of a run and outcomes of commands are waited for."""
    exhaustive: bool = False
    """Measure every limit, for ``profile_steps`` after ``warmup_steps``."""
    per_gpu: bool = False
    """Lower GPUs that wait for others below the limit of their job."""
    profiling_share: float = 0.05
    """Of a run's steps, that profiling again may take."""
    start: int | None = None
    """Of the analyzer whose settings these are; None: of the one under way."""

    @property
    def steps_kept(self) -> int:
        """Boundaries that a rank remembers."""
        return STEPS_KEPT + 2 * (self.warmup_steps + self.profile_steps)

    @classmethod
    def of(cls, settings: Settings, selector: Selector | None, start: int | None = None) -> "Plan":
        """Raises SettingsError: there is no such search."""
        if settings.search not in ("adaptive", "exhaustive"):
            raise SettingsError(
                f"search = {settings.search!r}: could not be understood: there is no such search."
                " Choose adaptive or exhaustive."
            )
        return cls(
            selector,
            round(settings.stride_w * 1000),
            settings.wait_steps,
            settings.warmup_steps,
            settings.profile_steps,
            settings.settle_ms * 1_000_000,
            settings.refreshes,
            settings.window_timeout_ms * 1_000_000,
            settings.search == "exhaustive",
            settings.per_gpu,
            settings.profiling_share,
            start,
        )


@dataclass(slots=True)
class Use:
    """A run's use of a GPU."""

    run: str
    began_ns: int
    ended_ns: int | None = None


@dataclass(slots=True)
class Gpu:
    """What is known of one GPU."""

    host: str
    timeline: Timeline = field(default_factory=Timeline)
    shaped: Shape | None = None
    """None while no run has used it: of a large site's GPUs that saves most of the memory."""
    found: DeviceFound | None = None
    uses: list[Use] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict)
    """Those that use it and are not measured to their end."""
    commander: str | None = None
    """The run that may set its limit."""
    told: tuple[bool, str | None, int | None] = (False, None, None)
    """Whether its period was, and the kind and window of its counter."""

    @property
    def shape(self) -> Shape:
        """Of a GPU that a run uses: from now on there is one."""
        if self.shaped is None:
            self.shaped = Shape()
            simulated = self.found is None or self.found.driver == "simulated"  # a counter as it is specified
            self.shaped.suspect(blind=self.timeline.sensor.blind and not simulated)
        return self.shaped

    @property
    def window_ns(self) -> int | None:
        """Of a counter that sees a part of the time, once that is known."""
        return self.shaped.window_ns if self.shaped else None

    @property
    def meter(self) -> Meter:
        return Meter(self.timeline, self.shape)

    @property
    def counter_kind(self) -> CounterKind | None:
        """What its energy comes from, once that is known."""
        if self.timeline.estimator == "power":
            return "power" if self.timeline.period_ns else None
        return self.shaped.kind if self.shaped else None


@dataclass(frozen=True, slots=True)
class Ration:
    """What a power budget leaves a GPU."""

    group: str
    most_mw: int

    @property
    def holder(self) -> str:
        """The name under which limits of the GPU are held, in place of a run's."""
        return f"{BUDGET}{self.group}"[:200]


@dataclass(slots=True)
class Site:
    """What all runs share."""

    plan: Plan
    known: dict[Workload, tuple[Profile, ...]] = field(default_factory=dict)
    """What later runs may start from."""
    recalled: Mapping[tuple[str, int], RecallRow] = field(default_factory=dict)
    """What runs remembered when they were heard the first time, by session of the lead and round."""
    forgotten_wall_ns: Mapping[str, int] = field(default_factory=dict)
    """By job: profiles measured until then are not used."""
    gpus: dict[str, Gpu] = field(default_factory=dict)
    parts: dict[str, dict[str, None]] = field(default_factory=dict)
    """By host: its CPUs and their memory, which are among ``gpus``."""
    now_ns: dict[str, int] = field(default_factory=dict)
    """By host: the latest frame's time."""
    commands: dict[str, CommandRow] = field(default_factory=dict)
    """Those without outcome."""
    rations: dict[str, Ration] = field(default_factory=dict)
    """By GPU under a power budget."""

    def asking(self, command: str, run: str, gpu: str, limit_mw: int | None) -> CommandRow:
        """Return the row of a command that is sent now. None: release."""
        limit_w = None if limit_mw is None else limit_mw / 1000
        row = CommandRow(command, run, gpu, self.now_ns[self.gpus[gpu].host], limit_w, None, None, None, "")
        self.commands[command] = row
        if len(self.commands) > MAX_COMMANDS:
            del self.commands[next(iter(self.commands))]
        return row
