"""GPUs and hosts that are followed, and the commands on their way. Pure."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

from msgspec import Struct, field

from analyzers.dispatch.pending import Pending
from analyzers.fleet.ownership import Claims
from analyzers.fleet.session import Session
from analyzers.measurement import sensors
from analyzers.measurement.counter_kind import WINDOWS_NS, CounterKind, KnownCounter
from analyzers.measurement.energy import Meter
from analyzers.measurement.energy_fit import EnergyFit
from analyzers.measurement.sensors import Gain
from analyzers.measurement.timeline import Timeline
from analyzers.results.rows import GapRow, GpuRow, Row
from zeus_stream.protocol.fields import BUDGET, of_host, of_meter, spell_profiles
from zeus_stream.protocol.notes import DeviceFound, DeviceGone, GpuShared, PowerProfiles

Clocks = Mapping[str, int]
"""By host, the time of its latest frame (CLOCK_MONOTONIC there, ns)."""
CLOCKS_KEPT = 64
"""Readings of a GPU whose clock is remembered."""
OTHERS_KEPT = 256
"""Times in which processes of no run computed on a GPU, that are remembered."""
MAX_GPUS = 50_000
"""Most GPUs of a site; notes about one more are not interpreted."""
FULL = f"{MAX_GPUS} GPUs are known, so others are not interpreted. Start the analyzer again, or another."


class Use(Struct):
    """A run's use of a GPU."""

    run: str
    began_ns: int
    ended_ns: int | None = None


class Gpu(Struct, kw_only=True):
    """The state of one GPU."""

    host: str
    timeline: Timeline = field(default_factory=Timeline)
    shaped: EnergyFit | None = None
    """None while no run has used it: of a large site's GPUs that saves most of the memory."""
    found: DeviceFound | None = None
    profiles: str | None = None
    """The workload power profiles in force; None: it has none."""
    known: KnownCounter | None = None
    """The kind of its counter, as earlier runs under its driver found it."""
    uses: list[Use] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict)
    """The sessions that use it and are not measured to their end."""
    clocks_mhz: deque[int] = field(default_factory=lambda: deque(maxlen=CLOCKS_KEPT))
    """The clocks of the latest readings while a run used it, where the device reports them."""
    reported: tuple[bool, str | None, int | None] = (False, None, None)
    """In its last row: whether its period is known, and the kind and window of its counter."""
    reported_gain: Gain | None = None
    """The calibration that its row has."""
    others: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=OTHERS_KEPT))
    """Begin and end of times in which processes of no run computed on it, and their number."""
    learned_ns: int = 0
    """Frame time at which it was last looked whether more of these is known."""

    @property
    def shape(self) -> EnergyFit:
        """The fit of its energy, which exists from the first use on."""
        if self.shaped is None:
            self.shaped = EnergyFit()
            if self.known is not None:
                self.shaped.remember(self.known.kind, self.known.window_ns)
            elif self.found is not None and self.found.driver != "simulated":  # that one is specified
                self.shaped.suspect(sensors.suspected_ns(self.found.name))
        return self.shaped

    @property
    def window_ns(self) -> int | None:
        """The window of a counter that sees a part of the time, once it is known."""
        known = self.shaped or self.known
        return known.window_ns if known else None

    @property
    def meter(self) -> Meter:
        return Meter(self.timeline, self.shape)

    @property
    def counter_kind(self) -> CounterKind | None:
        """The source of its energy, once that is proven."""
        if self.timeline.estimator == "power":
            before = self.known.kind if self.known else None
            return "power" if self.timeline.period_ns else before  # no reading has come yet
        if self.shaped is None:
            return self.known.kind if self.known else None
        return self.shaped.proven_kind


class Allocation(Struct, frozen=True):
    """The share of a power budget that one GPU has."""

    group: str
    most_mw: int

    @property
    def holder(self) -> str:
        """The name under which limits of the GPU are held, in place of a run's."""
        return f"{BUDGET}{self.group}"[:200]


class Division(Struct, frozen=True):
    """The limits that the GPUs of a run have under a power budget, for each mean limit, ascending."""

    speed: tuple[float, ...]
    """At each, as a share of that at the highest."""
    limits_mw: Mapping[str, tuple[int, ...]]
    """By GPU; of one mean limit they add up to no more than that times the number of GPUs."""


class Divided(Protocol):
    """A run whose GPUs work on different things: equal limits are not the fastest."""

    @property
    def is_known(self) -> bool:
        """True once what they work on was measured."""

    def divide(self, gpus: Sequence[str], limits_mw: Sequence[int]) -> Division | None:
        """Return limits for mean limits (ascending, mW). None: what these GPUs work on is not known."""


class Fleet(Struct):
    """The GPUs and hosts that are followed, parts of hosts among them. The interpreter owns it."""

    NOT_STATE: ClassVar = frozenset[str](("gains",))
    """Calibrations come from a file."""

    gpus: dict[str, Gpu] = field(default_factory=dict)
    parts: dict[str, dict[str, None]] = field(default_factory=dict)
    """By host: its CPUs and their memory, which are among ``gpus``."""
    gains: Mapping[str, Gain] = field(default_factory=dict)
    """Calibrations, by GPU."""
    counters: dict[str, KnownCounter] = field(default_factory=dict)
    """By GPU, the kind of its counter by earlier runs."""
    claims: Claims = field(default_factory=Claims)
    pending: Pending = field(default_factory=Pending)
    """Limits in force: of a GPU that passes to another host, none is."""

    def calibrate(self, gains: Mapping[str, Gain]) -> None:
        self.gains = gains
        for uuid, gpu in self.gpus.items():
            gpu.timeline.gain = gains.get(uuid)

    def follow(self, host: str, uuid: str) -> Gpu:
        """Return a GPU; it is followed from now on."""
        gpu = self.gpus.get(uuid)
        if gpu is None:
            gpu = self.gpus[uuid] = Gpu(host=host)
            if of_host(uuid) and not of_meter(uuid):  # one is read too seldom for windows to wait for it
                self.parts.setdefault(host, {})[uuid] = None
        return gpu

    def full(self, gpus: Collection[str]) -> bool:
        """Return whether there is no room for those that are not known yet."""
        if len(self.gpus) + len(gpus) <= MAX_GPUS:
            return False
        return len(self.gpus) + sum(gpu not in self.gpus for gpu in set(gpus)) > MAX_GPUS

    # ---- who may speak for a GPU

    def belongs(self, host: str, uuid: str) -> bool:
        gpu = self.gpus.get(uuid)
        return gpu is not None and gpu.host == host

    def owner(self, host: str, uuid: str, now: Clocks) -> str:
        """Return the host that may speak for a GPU; a host that claims it may follow a silent one."""
        gpu = self.gpus.get(uuid)
        if gpu is None or gpu.host == host:
            return host
        if self.claims.passes(host, uuid, gpu.host, now):
            self.gpus[uuid] = Gpu(host=host)
            self.pending.forget_gpu(uuid)
            return host
        return gpu.host

    def owned(
        self, host: str, gpus: Iterable[str], what: str, now: Clocks
    ) -> tuple[set[str], tuple[Row, ...]]:
        """Return the GPUs for which a host may speak, and a gap for each of another host."""
        owners = {uuid: self.owner(host, uuid, now) for uuid in gpus}
        gaps = tuple(
            gap
            for uuid, owner in owners.items()
            if owner != host
            for gap in self.objection(host, uuid, owner, what, now)
        )
        return {uuid for uuid, owner in owners.items() if owner == host}, gaps

    def objection(self, host: str, name: str, owner: str, what: str, now: Clocks) -> tuple[Row, ...]:
        """Return a gap the first time that a host speaks for what belongs to another."""
        reason = self.claims.objection(host, name, owner)
        return () if reason is None else (GapRow(host, what, now[host], 1, reason),)

    # ---- what collectors say of GPUs

    def found(self, host: str, note: DeviceFound) -> Row:
        gpu = self.follow(host, note.gpu)
        if gpu.found is not None and gpu.found.driver != note.driver:
            gpu.shaped = None  # another driver may count in another way
        gpu.host, gpu.found = host, note
        known = self.counters.get(note.gpu)
        gpu.known = known if known is not None and known.driver == note.driver else None
        gpu.timeline.interrupt(None, note.t_ns)
        gpu.timeline.sensor, gpu.timeline.most_mw = sensors.sensor(note.name), note.max_limit_mw
        gpu.timeline.gain = gpu.reported_gain = self.gains.get(note.gpu)
        return gpu_row(host, gpu, note)

    def requested(self, host: str, note: PowerProfiles) -> Row | None:
        """Take in the power profiles of a GPU; return its row, if it was found."""
        gpu = self.follow(host, note.gpu)
        gpu.profiles = spell_profiles(note.requested if note.enforced is None else note.enforced)
        return None if gpu.found is None else gpu_row(host, gpu, gpu.found)

    def learn(self, uuid: str, gpu: Gpu) -> None:
        kind = gpu.shaped.proven_kind if gpu.shaped else None
        if gpu.found is not None and kind is not None and kind != "power":
            gpu.known = self.counters[uuid] = KnownCounter(gpu.found.driver, kind, gpu.window_ns)

    def gone(self, host: str, note: DeviceGone) -> tuple[Row, ...]:
        gpu = self.follow(host, note.gpu)
        gpu.timeline.interrupt(note.reason, note.t_ns)
        gap = GapRow(host, "devices", note.t_ns, 1, f"GPU lost: {note.reason}")
        return (gap, gpu_row(host, gpu, gpu.found)) if gpu.found else (gap,)

    def shared(self, host: str, note: GpuShared) -> None:
        """Take in that processes of no run compute on a GPU, or that they are gone."""
        others = self.follow(host, note.gpu).others
        if others and others[-1][1] > note.t_ns:
            begin_ns, _, count = others.pop()
            others.append((begin_ns, note.t_ns, count))
        if note.processes:
            others.append((note.since_ns, 2**62, note.processes))

    def host_restarted(self, host: str) -> None:
        for name, known in self.gpus.items():
            if known.host == host:
                self.gpus[name] = Gpu(host=host, found=known.found, known=known.known)


def known_counters(gpus: Iterable[GpuRow]) -> dict[str, KnownCounter]:
    found: dict[str, KnownCounter] = {}
    for row in gpus:
        if row.counter_kind == "integrating":
            found[row.gpu] = KnownCounter(row.driver, "integrating", None)
        elif row.counter_kind == "boxcar" and row.sensor_window_ms is not None:
            window_ns = round(row.sensor_window_ms * 1e6)
            if WINDOWS_NS[0] <= window_ns <= WINDOWS_NS[-1]:
                found[row.gpu] = KnownCounter(row.driver, "boxcar", window_ns)
    return found


def gpu_row(host: str, gpu: Gpu, found: DeviceFound) -> GpuRow:
    period_ns = gpu.timeline.refresh_period_ns
    gain = gpu.timeline.gain or sensors.prior(found.gpu, found.driver)
    if of_meter(found.gpu) and found.error_ppm is not None:
        gain = sensors.Gain(1.0, found.error_ppm / 1e6, 0.0, "the setting `meters`", "")
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
        power_profile=gpu.profiles,
        sensor_gain=None if gain is None else gain.gain,
        sensor_gain_error=None if gain is None else gain.gain_error,
        sensor_calibrated=gain is not None and gain.calibrated,
        sensor_gain_source="nothing is published of such a sensor" if gain is None else gain.source,
    )


def _sensor_window_ms(gpu: Gpu) -> float | None:
    """Return how much of each period the sensor sees; an integrating counter all of it."""
    window_ns = gpu.timeline.refresh_period_ns if gpu.counter_kind == "integrating" else gpu.window_ns
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
        drew = "what it drew there is not known"
        if jump.filled_uj is not None:
            drew = f"{jump.filled_uj / 1e6:.0f} J are taken in their place, by the power beside it"
        reason = (
            f"{uuid}: its energy counter rose by {jump.grown_uj / 1e6:.0f} J where it can have drawn"
            f" {jump.most_uj / 1e6:.0f} J at most: {drew}"
        )
        yield GapRow(host, "energy counter", jump.t_ns, 1, reason)


def _watts(power_mw: int | None) -> float | None:
    return None if power_mw is None else power_mw / 1000
