"""GPUs and hosts that are followed, and the commands on their way. Pure."""

from collections import deque
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from analyzers.fleet.session import Session
from analyzers.measurement import sensors
from analyzers.measurement.counters.counter_kind import CounterKind, KnownCounter
from analyzers.measurement.energy import Meter
from analyzers.measurement.energy_fit import Shape
from analyzers.measurement.sensors import Gain
from analyzers.measurement.timeline import Timeline
from analyzers.results.rows import GapRow, GpuRow
from zeus_stream.protocol.fields import BUDGET
from zeus_stream.protocol.notes import DeviceFound

Clocks = Mapping[str, int]
"""By host, the time of its latest frame (CLOCK_MONOTONIC there, ns)."""
CLOCKS_KEPT = 64
"""Readings of a GPU whose clock is remembered."""


class Use(Struct):
    """A run's use of a GPU."""

    run: str
    began_ns: int
    ended_ns: int | None = None


class Gpu(Struct, kw_only=True):
    """The state of one GPU."""

    host: str
    timeline: Timeline = field(default_factory=Timeline)
    shaped: Shape | None = None
    """None while no run has used it: of a large site's GPUs that saves most of the memory."""
    found: DeviceFound | None = None
    known: KnownCounter | None = None
    """Of its counter, by earlier runs under its driver."""
    uses: list[Use] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict)
    """Those that use it and are not measured to their end."""
    clocks_mhz: deque[int] = field(default_factory=lambda: deque(maxlen=CLOCKS_KEPT))
    """Of the latest readings while a run used it, where the device says them."""
    told: tuple[bool, str | None, int | None] = (False, None, None)
    """Whether its period was, and the kind and window of its counter."""
    told_gain: Gain | None = None
    """The calibration that its row has."""
    learned_ns: int = 0
    """Frame time at which it was last looked whether more of these is known."""

    @property
    def shape(self) -> Shape:
        """Of a GPU that a run uses: from now on there is one."""
        if self.shaped is None:
            self.shaped = Shape()
            integrates = self.found is None or self.found.driver == "simulated"  # as it is specified
            if self.known is not None:
                self.shaped.remember(self.known.kind, self.known.window_ns)
            elif not integrates:
                self.shaped.suspect(self.timeline.sensor.window_ns)
        return self.shaped

    @property
    def window_ns(self) -> int | None:
        """Of a counter that sees a part of the time, once that is known."""
        known = self.shaped or self.known
        return known.window_ns if known else None

    @property
    def meter(self) -> Meter:
        return Meter(self.timeline, self.shape)

    @property
    def busy_mhz(self) -> int | None:
        """The graphics clock at which it works: of the latest readings, the upper quartile."""
        known = sorted(self.clocks_mhz)
        return known[3 * len(known) // 4] if known else None

    @property
    def counter_kind(self) -> CounterKind | None:
        """The source of its energy, once it is known."""
        if self.timeline.estimator == "power":
            before = self.known.kind if self.known else None
            return "power" if self.timeline.period_ns else before  # no reading has come yet
        known = self.shaped or self.known
        return known.kind if known else None


class Allocation(Struct, frozen=True):
    """The share of a power budget that one GPU has."""

    group: str
    most_mw: int

    @property
    def holder(self) -> str:
        """The name under which limits of the GPU are held, in place of a run's."""
        return f"{BUDGET}{self.group}"[:200]


class Fleet(Struct):
    """The GPUs and hosts that are followed. The interpreter owns it."""

    gpus: dict[str, Gpu] = field(default_factory=dict)
    parts: dict[str, dict[str, None]] = field(default_factory=dict)
    """By host: its CPUs and their memory, which are among ``gpus``."""


def gpu_row(host: str, gpu: Gpu, found: DeviceFound) -> GpuRow:
    """Return the row of a GPU as it is known now."""
    period_ns = gpu.timeline.period_ns
    gain = gpu.timeline.gain or sensors.prior(found.gpu, found.driver)
    return GpuRow(
        gpu=found.gpu,
        host=host,
        index=found.index,
        name=found.name,
        driver=found.driver,
        counts_energy=found.counts_energy,
        min_limit_w=_watts(found.min_limit_mw),
        max_limit_w=_watts(found.max_limit_mw),
        default_limit_w=_watts(found.default_limit_mw),
        found_limit_w=_watts(found.found_limit_mw),
        mig=found.mig,
        period_ms=None if period_ns is None else period_ns / 1e6,
        counter_kind=gpu.counter_kind,
        sensor_window_ms=_sensor_window_ms(gpu),
        gone=gpu.timeline.gone,
        scope=found.scope,
        tenants=found.tenants,
        sensor_gain=None if gain is None else gain.gain,
        sensor_gain_error=None if gain is None else gain.gain_error,
        sensor_calibrated=gain is not None and gain.calibrated,
        sensor_gain_source="nothing is published of such a sensor" if gain is None else gain.source,
    )


def _sensor_window_ms(gpu: Gpu) -> float | None:
    """Return how much of each period the sensor sees; an integrating counter all of it."""
    window_ns = gpu.timeline.period_ns if gpu.counter_kind == "integrating" else gpu.window_ns
    return None if window_ns is None else window_ns / 1e6


def hangs(host: str, uuid: str, timeline: Timeline) -> Iterator[GapRow]:
    """Yield a gap for each stretch in which a GPU was not read, and each jump of its counter, once."""
    while timeline.hangs_ns:
        begin_ns, end_ns = timeline.hangs_ns.popleft()
        for_s = (end_ns - begin_ns) / 1e9
        reason = f"{uuid}: no reading for {for_s:.1f} s: the driver hung, or the collector was stopped"
        yield GapRow(host, "readings", begin_ns, 1, reason)
    while timeline.jumps:
        jump = timeline.jumps.popleft()
        reason = (
            f"{uuid}: its energy counter rose by {jump.grown_uj / 1e6:.0f} J where it can have drawn"
            f" {jump.most_uj / 1e6:.0f} J at most: what it drew there is not known"
        )
        yield GapRow(host, "energy counter", jump.t_ns, 1, reason)


def _watts(power_mw: int | None) -> float | None:
    return None if power_mw is None else power_mw / 1000
