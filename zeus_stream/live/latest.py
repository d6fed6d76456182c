"""The latest reading of every GPU, and what is known to be missing: the memory behind a `Snapshot`. Pure.

    frames of collectors --> Latest --+
    runs (by the service) ------------+--> snapshot: bounded rows, totals of all

Instants are arguments: ``t_ns`` on the clock of a reading's host, ``now_ns`` on that of this process (both
CLOCK_MONOTONIC).
"""

import sys
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from struct import Struct
from types import MappingProxyType

from msgspec.structs import replace

from zeus_stream.protocol.fields import MOST_COUNT, MOST_WORDS, Unknown, of_host
from zeus_stream.protocol.notes import (
    ControlApplied,
    ControlLeaseEnded,
    ControlRefused,
    DeviceFound,
    DeviceGone,
    GpuInUse,
    GpuShared,
    Lost,
    Note,
)
from zeus_stream.protocol.readings import ABSENT, READING_BYTES, READING_STRUCT, Readings, Seen
from zeus_stream.protocol.snapshots import (
    MAX_GAP_ROWS,
    MAX_GPU_ROWS,
    MAX_RUN_ROWS,
    GapNow,
    GpuNow,
    HostNow,
    PartNow,
    RunNow,
    Snapshot,
    State,
    Totals,
)

SILENT_NS = 7_000_000_000
"""A GPU without a reading for so long, or for `SILENT_PAUSES` of its usual pauses, is silent: one that
goes to rest is read every 5.4 s from then on."""
SILENT_PAUSES = 3
PASSES_NS = 60_000_000_000
"""A GPU whose host sent nothing for so long may be named by another host."""
MAX_DEVICES = 50_000
MINUTE_NS = 60_000_000_000
MINUTES = 60
_ROW = Struct(READING_STRUCT)
_WORDS = READING_BYTES // 2
_GROWS = {Seen.CHANGED, Seen.UNCHANGED, Seen.RESTED, Seen.SAMPLED}
_MOST_MJ, _MOST_MW, _MOST_MHZ, _MOST_C, _MOST_PERCENT = 2**53, 100_000_000, 100_000, 3_000, 1_000


@dataclass(slots=True, kw_only=True)
class LatestDevice:
    """One GPU or part of a host."""

    host: str
    found: DeviceFound | None = None
    gone: str | None = None
    others: int = 0
    """Processes of no run that compute on it."""
    use: GpuInUse | None = None
    row: tuple[int, ...] | None = None
    """The fields of its last reading, in the order of `READING_STRUCT`."""
    last_mj: int | None = None
    """Of its counter; None: it has none."""
    energy_mj: int = 0
    """Since it was first seen."""
    seen_ns: int | None = None
    """When its last reading came; None: it came from the archive, some time ago."""
    behind_ns: int = 0
    """Age of the reading when it came."""
    pause_ns: int = 0
    """Between its last two readings."""
    rests_ns: int | None = None
    """When a frame named it as at rest, and no reading of it overdue."""

    def age_ns(self, now_ns: int) -> int | None:
        return None if self.seen_ns is None else max(0, now_ns - self.seen_ns) + self.behind_ns

    def state(self, now_ns: int) -> State:
        """Return whether the device answers."""
        if self.gone is not None:
            return "gone"
        if self.rests_ns is not None and now_ns - self.rests_ns <= SILENT_NS:
            return "there"
        age_ns = self.age_ns(now_ns)
        silent = age_ns is None or age_ns > max(SILENT_NS, SILENT_PAUSES * self.pause_ns)
        return "silent" if silent else "there"


@dataclass(slots=True)
class _Minutes:
    """Energy of the last hour of a host, by minute of its clock: what a log hands on late is not of now."""

    began_ns: int
    t_ns: int = 0
    """Of the last frame, on the host's clock."""
    seen_ns: int = 0
    """When it came, on the clock of this process."""
    energy_mj: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, energy_mj: int, t_ns: int, now_ns: int) -> None:
        self.t_ns, self.seen_ns = t_ns, now_ns
        minute = t_ns // MINUTE_NS
        if self.energy_mj and self.energy_mj[-1][0] == minute:
            energy_mj += self.energy_mj.pop()[1]
        self.energy_mj.append((minute, energy_mj))
        while self.energy_mj[0][0] <= minute - MINUTES:
            self.energy_mj.popleft()

    def clock_ns(self, now_ns: int) -> int:
        """Return the time on the host's clock."""
        return self.t_ns + now_ns - self.seen_ns

    def whole(self, now_ns: int) -> tuple[int, int]:
        """Return the energy of the last hour, and the time that it is of, ns."""
        t_ns = self.clock_ns(now_ns)
        first = t_ns // MINUTE_NS - MINUTES + 1
        energy_mj = sum(mj for minute, mj in self.energy_mj if minute >= first)
        return energy_mj, t_ns - max(self.began_ns, first * MINUTE_NS)


class Latest:
    """The state of devices and gaps, as frames tell it."""

    def __init__(self) -> None:
        self.devices: dict[str, LatestDevice] = {}
        self._gaps: dict[tuple[str, str], tuple[int, str]] = {}
        self._gap_count = 0
        self._counts = Counter({"commands applied": 0, "commands refused": 0, "leases ended": 0})
        self._minutes: dict[str, _Minutes] = {}
        """By host."""
        self._in_order: list[tuple[str, LatestDevice]] | None = None
        """By host and index; None: to be sorted again."""

    @classmethod
    def joined(cls, parts: Iterable["Latest"]) -> "Latest":
        """Return what several know together that follow partly the same hosts. Commands are not counted."""
        whole = cls()
        whole._counts.clear()
        for part in parts:
            for gpu, device in part.devices.items():
                if gpu not in whole.devices or (whole.devices[gpu].seen_ns or 0) < (device.seen_ns or 0):
                    whole.devices[gpu] = device
            for host, minutes in part._minutes.items():  # noqa: SLF001  (of this class)
                if host not in whole._minutes or minutes.began_ns < whole._minutes[host].began_ns:
                    whole._minutes[host] = minutes
            for key, gap in part._gaps.items():  # noqa: SLF001
                whole._gaps[key] = max(gap, whole._gaps.get(key, gap))
        whole._gap_count = sum(count for count, _ in whole._gaps.values())
        return whole

    def restart(self) -> None:
        """Take in that this process was restarted: readings before that are of an unknown age."""
        for device in self.devices.values():
            device.seen_ns = device.rests_ns = None
        self._minutes.clear()

    def take_readings(self, host: str, t_ns: int, body: Readings, now_ns: int | None) -> None:
        """Take in the readings of a frame, but rows that cannot be. ``t_ns``: on their host's clock.

        ``now_ns``: when they came; None: they come from the archive.
        """
        if len(body.rows) % READING_BYTES:
            return
        devices = [self._device(host, gpu, now_ns) for gpu in body.gpus]
        for device in devices if now_ns is not None and not body.rows else ():
            if device is not None:
                device.rests_ns, device.gone = now_ns, None
        used_mj, first_ns = 0, t_ns
        for row in _rows_that_tell(body.rows):
            device = devices[row[9]] if row[9] < len(devices) else None
            if device is None:
                continue
            _, t_hi_ns, energy_mj, *_, seen = row
            before, device.row = device.row, row
            first_ns = min(first_ns, t_hi_ns)
            device.gone, known = None, device.seen_ns is not None
            if before is not None:
                device.pause_ns = max(0, t_hi_ns - before[1])
            device.seen_ns, device.behind_ns = now_ns, max(0, t_ns - t_hi_ns)
            if not 0 <= energy_mj <= _MOST_MJ:
                continue
            more_mj = 0 if device.last_mj is None or seen == Seen.RESET else energy_mj - device.last_mj
            device.last_mj = energy_mj
            if more_mj > 0:
                device.energy_mj += more_mj
                if known and not of_host(body.gpus[row[9]]):  # else it is of a time that nobody knows
                    used_mj += more_mj
        if now_ns is not None:
            if host not in self._minutes or t_ns < self._minutes[host].t_ns:  # new, or it has booted
                self._minutes[host] = _Minutes(first_ns)
            self._minutes[host].add(used_mj, t_ns, now_ns)

    def take_note(self, host: str, note: Note | Unknown) -> None:
        """Take in what a collector notes of a device, or of data that is lost."""
        match note:
            case DeviceFound(gpu=gpu):
                if (device := self._device(host, gpu, None)) is not None:
                    device.found, device.gone, device.others, device.use = note, None, 0, None
                    self._in_order = None
            case GpuShared(gpu=gpu, processes=others):
                if (device := self._device(host, gpu, None)) is not None:
                    device.others = others
            case GpuInUse(gpu=gpu):
                if (device := self._device(host, gpu, None)) is not None:
                    device.use = note
            case DeviceGone(gpu=gpu, reason=reason):
                if (device := self._device(host, gpu, None)) is not None:
                    device.gone = reason
            case Lost(what=what, count=count, reason=reason):
                self.add_gap(host, what, count, reason)
            case ControlApplied():
                self._counts["commands applied"] += 1
            case ControlRefused():
                self._counts["commands refused"] += 1
            case ControlLeaseEnded():
                self._counts["leases ended"] += 1
            case _:
                pass  # nothing about devices

    def add_gap(self, host: str, what: str, count: int, reason: str) -> None:
        """Count data that is known to be missing."""
        before, _ = self._gaps.pop((host, what), (0, ""))
        self._gaps[host, what] = min(before + count, MOST_COUNT), reason[:MOST_WORDS]
        self._gap_count = min(self._gap_count + count, MOST_COUNT)
        if len(self._gaps) > MAX_GAP_ROWS:
            del self._gaps[next(iter(self._gaps))]

    def _device(self, host: str, gpu: str, now_ns: int | None) -> LatestDevice | None:
        """Return a device if this host may speak for it."""
        if (device := self.devices.get(gpu)) is None:
            if len(self.devices) >= MAX_DEVICES or gpu == "-":
                return None
            device = self._add(gpu, host)
        elif device.host != host:
            silent = now_ns is not None and (device.age_ns(now_ns) or 0) > PASSES_NS
            if not silent:
                return None
            device = self._add(gpu, host)
        return device

    def _add(self, gpu: str, host: str) -> LatestDevice:
        self._in_order = None
        device = self.devices[gpu] = LatestDevice(host=host)
        return device

    def computes(self, gpu: str) -> bool:
        """Tell whether a GPU is there and was in use when its utilization was read last."""
        device = self.devices.get(gpu)
        return device is not None and device.gone is None and device.row is not None and device.row[8] > 0

    # ---- the answer

    def counts(self) -> list[tuple[str, int]]:
        """Return the outcomes of commands that were noted, by kind."""
        return sorted(self._counts.items())

    def snapshot(
        self,
        base: Snapshot,
        runs: Sequence[RunNow],
        now_ns: int,
        *,
        host: str | None = None,
        saved: tuple[float | None, float | None] = (None, None),
        steps_j: Mapping[str, float] = MappingProxyType({}),
    ) -> Snapshot:
        """Return the state now.

        ``base``: what the service knows of itself and of hosts (`answer.blank`). ``runs``: open, or ended a
        short time ago; `watts` is filled in here. ``host``: rows of it only; totals are of all. ``saved``:
        joules and percent, of all runs. ``steps_j``: by GPU, the energy of its last steps.
        """
        users = {gpu: run.run for run in runs if run.ended_wall_ns is None for gpu in run.gpus}
        devices = self._ordered()
        rows = [
            _gpu(gpu, device, users.get(gpu), steps_j.get(gpu), now_ns, self._use_age_ms(device, now_ns))
            for gpu, device in devices
            if host in (None, device.host) and not of_host(gpu)
        ]
        shown = [run for run in runs if host is None or host in run.hosts]
        gaps = [
            GapNow(host=at, what=what, count=count, reason=reason)
            for (at, what), (count, reason) in reversed(self._gaps.items())
            if host in (None, at)
        ]
        return replace(
            base,
            totals=self._totals(base.hosts, runs, now_ns, saved),
            hosts=tuple(each for each in base.hosts if host in (None, each.host))[:MAX_GPU_ROWS],
            gaps=tuple(gaps[:MAX_GAP_ROWS]),
            gpus=tuple(rows[:MAX_GPU_ROWS]),
            parts=self._parts(now_ns, host),
            runs=tuple(replace(run, watts=self._watts(run, now_ns)) for run in shown[:MAX_RUN_ROWS]),
            gpus_left_out=max(0, len(rows) - MAX_GPU_ROWS),
            runs_left_out=max(0, len(shown) - MAX_RUN_ROWS),
        )

    def _ordered(self) -> list[tuple[str, LatestDevice]]:
        """Return all devices by host and index."""
        if self._in_order is None:
            self._in_order = sorted(
                self.devices.items(), key=lambda item: (item[1].host, _index(item[1]), item[0])
            )
        return self._in_order

    def _watts(self, run: RunNow, now_ns: int) -> float | None:
        """Return the power of an open run. One that has ended draws none, whatever its GPUs do."""
        if run.ended_wall_ns is not None:
            return None
        powers = [self._power_mw(self.devices.get(gpu), now_ns) for gpu in run.gpus]
        known = [power for power in powers if power is not None]
        return sum(known) / 1000 if known and len(known) == len(powers) else None

    def _use_age_ms(self, device: LatestDevice, now_ns: int) -> int | None:
        """Return the age of what is known of processes. None: nothing is, or nothing came since the start."""
        if device.use is None or device.host not in self._minutes:
            return None
        return _ms(max(0, self._minutes[device.host].clock_ns(now_ns) - device.use.t_ns))

    def _power_mw(self, device: LatestDevice | None, now_ns: int) -> int | None:
        if device is None or device.row is None or device.state(now_ns) != "there":
            return None
        return _known(device.row[3], _MOST_MW)

    def _parts(self, now_ns: int, host: str | None) -> tuple[PartNow, ...]:
        return tuple(
            PartNow(
                part=gpu,
                host=device.host,
                energy_mj=_energy_mj(device),
                power_mw=self._power_mw(device, now_ns),
                age_ms=_ms(device.age_ns(now_ns)),
            )
            for gpu, device in self._ordered()
            if of_host(gpu) and host in (None, device.host)
        )[:MAX_GPU_ROWS]

    def _totals(
        self,
        hosts: Sequence[HostNow],
        runs: Iterable[RunNow],
        now_ns: int,
        saved: tuple[float | None, float | None],
    ) -> Totals:
        gpus = [device for gpu, device in self.devices.items() if not of_host(gpu)]
        powers = [power for device in gpus if (power := self._power_mw(device, now_ns)) is not None]
        counted = not gpus or any(_energy_mj(device) is not None for device in gpus)
        hour = [minutes.whole(now_ns) for minutes in self._minutes.values()]
        return Totals(
            hosts=len(hosts),
            hosts_connected=sum(each.state == "connected" for each in hosts),
            gpus=len(gpus),
            gpus_there=sum(device.state(now_ns) == "there" for device in gpus),
            runs=sum(run.ended_wall_ns is None for run in runs),
            power_mw=min(sum(powers), _MOST_MJ) if powers else None,
            hour_mj=min(sum(energy_mj for energy_mj, _ in hour), _MOST_MJ) if hour and counted else None,
            hour_s=min(max((of_ns for _, of_ns in hour), default=0) // 10**9, 60 * MINUTES),
            saved_j=saved[0],
            saved_percent=saved[1],
            gaps=self._gap_count,
        )


def _rows_that_tell(rows: bytes) -> Iterable[tuple[int, ...]]:
    """Return of each GPU the first row and the last two, in order; all where a counter may have fallen.

    To look at each took a third of the processor time of an analyzer that catches up.
    """
    words = memoryview(rows).cast("H")
    gpus, seen = words[_WORDS - 2 :: _WORDS].tolist(), words[_WORDS - 1 :: _WORDS].tolist()
    if sys.byteorder != "little" or not _GROWS.issuperset(seen):
        return _ROW.iter_unpack(rows)
    places, backwards, end = set[int](), gpus[::-1], len(gpus) - 1
    for gpu in set(gpus):
        last = backwards.index(gpu)
        places |= {gpus.index(gpu), end - last}
        with suppress(ValueError):  # it has one row
            places.add(end - backwards.index(gpu, last + 1))
    return (_ROW.unpack_from(rows, place * READING_BYTES) for place in sorted(places))


def _index(device: LatestDevice) -> int:
    return device.found.index if device.found else 1 << 30


def _known(value: int, most: int) -> int | None:
    """Return a field of a reading, or None if the device does not say or it cannot be."""
    return value if ABSENT < value <= most else None


def _ms(t_ns: int | None) -> int | None:
    return None if t_ns is None else t_ns // 1_000_000


def _energy_mj(device: LatestDevice) -> int | None:
    return None if device.last_mj is None else min(device.energy_mj, _MOST_MJ)


def _gpu(
    gpu: str, device: LatestDevice, run: str | None, step_j: float | None, now_ns: int, use_age_ms: int | None
) -> GpuNow:
    found, state, use = device.found, device.state(now_ns), device.use
    fields = (device.row[3:9] if device.row else ()) or (ABSENT,) * 6
    power_mw, limit_mw, requested_mw, clock_mhz, temperature_c, utilization_pct = fields
    return GpuNow(
        gpu=gpu,
        host=device.host,
        index=found.index if found else None,
        model=found.name if found else None,
        driver=found.driver if found else None,
        energy_mj=_energy_mj(device),
        power_mw=_known(power_mw, _MOST_MW),
        limit_mw=_known(limit_mw, _MOST_MW),
        requested_mw=_known(requested_mw, _MOST_MW),
        found_mw=found.found_limit_mw if found else None,
        least_mw=found.min_limit_mw if found else None,
        most_mw=found.max_limit_mw if found else None,
        clock_mhz=_known(clock_mhz, _MOST_MHZ),
        temperature_c=_known(temperature_c, _MOST_C),
        utilization_pct=_known(utilization_pct, _MOST_PERCENT),
        age_ms=_ms(device.age_ns(now_ns)),
        run=run,
        state=state,
        why=device.gone or "",
        step_j=step_j if run is not None else None,
        others=device.others,
        memory_bytes=use.memory_bytes if use else None,
        memory_total_bytes=use.memory_total_bytes if use else None,
        processes=use.processes if use else None,
        processes_left_out=use.left_out if use else 0,
        use_age_ms=use_age_ms,
    )
