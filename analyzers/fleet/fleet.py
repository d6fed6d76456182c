"""GPUs and hosts that are followed, and the commands on their way. Pure."""

from dataclasses import dataclass, field

from analyzers.fleet.session import Session
from analyzers.measurement.counter_kind import CounterKind
from analyzers.measurement.energy import Meter
from analyzers.measurement.energy_fit import Shape
from analyzers.measurement.timeline import Timeline
from analyzers.results.rows import CommandRow
from zeus_stream.protocol.fields import BUDGET
from zeus_stream.protocol.notes import DeviceFound

MAX_COMMANDS = 10_000
"""Commands remembered; the oldest without outcome go."""


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
class Allocation:
    """The share of a power budget that one GPU has."""

    group: str
    most_mw: int

    @property
    def holder(self) -> str:
        """The name under which limits of the GPU are held, in place of a run's."""
        return f"{BUDGET}{self.group}"[:200]


@dataclass(slots=True)
class Fleet:
    """The GPUs and hosts that are followed. The interpreter owns it."""

    gpus: dict[str, Gpu] = field(default_factory=dict)
    parts: dict[str, dict[str, None]] = field(default_factory=dict)
    """By host: its CPUs and their memory, which are among ``gpus``."""
    now_ns: dict[str, int] = field(default_factory=dict)
    """By host: the latest frame's time."""
    commands: dict[str, CommandRow] = field(default_factory=dict)
    """Those without outcome."""

    def asking(self, command: str, run: str, gpu: str, limit_mw: int | None) -> CommandRow:
        """Return the row of a command that is sent now. None: release."""
        limit_w = None if limit_mw is None else limit_mw / 1000
        row = CommandRow(command, run, gpu, self.now_ns[self.gpus[gpu].host], limit_w, None, None, None, "")
        self.commands[command] = row
        if len(self.commands) > MAX_COMMANDS:
            del self.commands[next(iter(self.commands))]
        return row
