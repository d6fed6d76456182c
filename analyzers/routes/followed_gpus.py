"""The GPUs that are followed, and the host that may speak for each. Pure."""

from collections.abc import Collection, Iterable, Mapping

from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Clocks, Fleet, Gpu, gpu_row
from analyzers.fleet.ownership import Claims
from analyzers.measurement import sensors
from analyzers.measurement.counters.counter_kind import KnownCounter
from analyzers.measurement.sensors import Gain
from analyzers.results.rows import GapRow, Row
from zeus_stream.protocol.fields import of_host
from zeus_stream.protocol.notes import DeviceFound, DeviceGone

MAX_GPUS = 50_000
"""Of a site; notes about one more are not interpreted."""
FULL = f"{MAX_GPUS} GPUs are known, so others are not interpreted. Start the analyzer again, or another."


class FollowedGpus:
    """The GPUs of all hosts, parts of hosts among them."""

    def __init__(
        self, fleet: Fleet, pending: Pending, counters: Mapping[str, KnownCounter] | None = None
    ) -> None:
        """Begin with those of a fleet, which this alone changes. ``counters``: of GPUs, by earlier runs."""
        self.gains: Mapping[str, Gain] = {}
        """Calibrations, by GPU."""
        self._fleet = fleet
        self._pending = pending
        self._claims = Claims()
        self._counters = dict(counters or {})

    def calibrate(self, gains: Mapping[str, Gain]) -> None:
        """From now on, take these gains of GPUs (UUIDs) out of their energies."""
        self.gains = gains
        for uuid, gpu in self._fleet.gpus.items():
            gpu.timeline.gain = gains.get(uuid)

    def get(self, host: str, uuid: str) -> Gpu:
        """Return a GPU; it is followed from now on."""
        gpu = self._fleet.gpus.get(uuid)
        if gpu is None:
            gpu = self._fleet.gpus[uuid] = Gpu(host=host)
            if of_host(uuid):
                self._fleet.parts.setdefault(host, {})[uuid] = None
        return gpu

    def owner(self, host: str, uuid: str, now: Clocks) -> str:
        """Return the host that may speak for a GPU; a host that claims it may follow a silent one."""
        gpu = self._fleet.gpus.get(uuid)
        if gpu is None or gpu.host == host:
            return host
        if self._claims.passes(host, uuid, gpu.host, now):
            self._fleet.gpus[uuid] = Gpu(host=host)
            self._pending.forget_gpu(uuid)
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
        reason = self._claims.objection(host, name, owner)
        return () if reason is None else (GapRow(host, what, now[host], 1, reason),)

    def belongs(self, host: str, uuid: str) -> bool:
        """Return whether a GPU is known, and its host is the one that speaks of it."""
        gpu = self._fleet.gpus.get(uuid)
        return gpu is not None and gpu.host == host

    def full(self, gpus: Collection[str]) -> bool:
        """Return whether there is no room for those that are not known yet."""
        known = self._fleet.gpus
        if len(known) + len(gpus) <= MAX_GPUS:
            return False
        return len(known) + sum(gpu not in known for gpu in set(gpus)) > MAX_GPUS

    def found(self, host: str, note: DeviceFound) -> Row:
        """Take in what a collector found. Return the row of the GPU."""
        gpu = self.get(host, note.gpu)
        if gpu.found is not None and gpu.found.driver != note.driver:
            gpu.shaped = None  # another driver may count in another way
        gpu.host, gpu.found = host, note
        known = self._counters.get(note.gpu)
        gpu.known = known if known is not None and known.driver == note.driver else None
        gpu.timeline.interrupt(None)
        gpu.timeline.sensor, gpu.timeline.most_mw = sensors.sensor(note.name), note.max_limit_mw
        gpu.timeline.gain = gpu.told_gain = self.gains.get(note.gpu)
        return gpu_row(host, gpu, note)

    def learn(self, uuid: str, gpu: Gpu) -> None:
        """Remember the kind of a GPU's counter for later runs."""
        kind = gpu.shaped.kind if gpu.shaped else None
        if gpu.found is not None and kind is not None and kind != "power":
            gpu.known = self._counters[uuid] = KnownCounter(gpu.found.driver, kind, gpu.window_ns)

    def gone(self, host: str, note: DeviceGone) -> tuple[Row, ...]:
        """Take in that a GPU is not there at present. Return its row, once it had one."""
        gpu = self.get(host, note.gpu)
        gpu.timeline.interrupt(note.reason)
        return (gpu_row(host, gpu, gpu.found),) if gpu.found else ()

    def host_restarted(self, host: str) -> None:
        """Forget all readings of a host, whose clock began again."""
        for name, known in self._fleet.gpus.items():
            if known.host == host:
                self._fleet.gpus[name] = Gpu(host=host, found=known.found, known=known.known)
