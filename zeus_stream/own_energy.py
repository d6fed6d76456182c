"""The energy of one of our services, estimated by its processor time. Pure."""

from msgspec import Struct

from zeus_stream.protocol.notes import OwnUse


class OwnEnergy(Struct, frozen=True):
    """Estimates of the energy of a service itself, J."""

    low_j: float
    """It has the share of the host's energy that it has of the time of all processors."""
    high_j: float
    """It has the share that it has of the time of processors at work, power at rest included."""

    def __add__(self, other: "OwnEnergy") -> "OwnEnergy":
        return OwnEnergy(self.low_j + other.low_j, self.high_j + other.high_j)

    @property
    def words(self) -> str:
        return f"{self.low_j:.1f} to {self.high_j:.1f} J since its start (an estimate by processor time)"


def own_energy(use: OwnUse, host_j: float | None) -> OwnEnergy | None:
    """Estimate the energy of a service. ``host_j``: of its host's CPUs and memory; None: not known."""
    if host_j is None or not use.host_cpu_ns or not use.took_ns:
        return None
    high_j = host_j * min(use.cpu_ns / use.host_cpu_ns, 1.0)
    return OwnEnergy(min(host_j * use.cpu_ns / (use.processors * use.took_ns), high_j), high_j)
