"""The collector's own processor time, and the energy of the CPUs that it runs on."""

from collectors.device import Bus, Device
from zeus_stream.errors import DeviceError
from zeus_stream.own_cost import OwnEnergy, OwnUseMeter, own_energy
from zeus_stream.protocol.notes import OwnUse

OFF = "CPUs are not read: --cpu off"


class CollectorUse:
    """Records of the collector's own use."""

    def __init__(self, host: str, cpus: Bus | None) -> None:
        """``cpus``: opens the host's packages and their memory. None: they are not to be read."""
        self._meter = OwnUseMeter("collector", host)
        self._cpus = cpus
        self._devices: tuple[Device, ...] = ()
        self._last_mj: tuple[int, ...] = ()
        self._reason = OFF
        self._energy: OwnEnergy | None = None
        self._counted()

    def record(self) -> OwnUse:
        """Return the use since the last record."""
        use = self._meter.record(self._counted(), self._reason)
        known_j = None if use.host_energy_mj is None else use.host_energy_mj / 1000
        if (energy := own_energy(use, known_j)) is not None:
            self._energy = energy if self._energy is None else self._energy + energy
        return use

    @property
    def energy(self) -> str:
        """The energy so far, or why it is not known."""
        if self._energy is None:
            return f"not known: {self._reason}" if self._reason else "not known yet"
        return self._energy.words

    def _counted(self) -> int | None:
        """Return the energy of all packages and memory since the last call, mJ; None: `_reason` says why."""
        if self._cpus is None:
            return None
        last_mj, self._last_mj = self._last_mj, ()
        try:
            if not last_mj:
                self._devices = self._cpus.discover()
                for device in self._devices:
                    device.describe()
            now_mj = tuple(device.sample().energy_mj or 0 for device in self._devices)
        except DeviceError as wrong:
            self._reason = str(wrong)
            return None
        self._last_mj = now_mj
        self._reason = "" if last_mj else "the counters of its CPUs were read for the first time"
        return sum(now_mj) - sum(last_mj) if last_mj else None
