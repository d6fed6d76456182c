"""The route of records of our own services: processor time, and a part of the host's energy. Pure."""

from analyzers.results.result import Result, rows_only
from analyzers.results.rows import OwnUseRow
from zeus_stream.own_energy import own_energy
from zeus_stream.protocol.notes import OwnUse

MAX_HOSTS = 100_000
"""Whose last record is kept; past them, the oldest goes."""


class OwnUseRoute:
    """The route of these records."""

    def __init__(self) -> None:
        self._power_w: dict[str, float] = {}
        """By host, the mean power of its CPUs and memory by the last record that has it."""

    def handle(self, use: OwnUse) -> Result:
        """Return the row of a record. An analyzer, which may not read RAPL, has the power of its host."""
        seconds = use.took_ns / 1e9
        host_j = None if use.host_energy_mj is None else use.host_energy_mj / 1000
        if host_j is not None and seconds:
            self._power_w[use.host] = host_j / seconds
            if len(self._power_w) > MAX_HOSTS:
                del self._power_w[next(iter(self._power_w))]
        elif use.service == "analyzer" and use.host in self._power_w:
            host_j = self._power_w[use.host] * seconds
        energy = own_energy(use, host_j)
        reason = "" if energy is not None else use.reason or "the kernel does not say what others used"
        row = OwnUseRow(
            host=use.host,
            service=use.service,
            began_wall_ns=use.wall_ns - use.took_ns,
            ended_wall_ns=use.wall_ns,
            duration_s=seconds,
            cpu_s=use.cpu_ns / 1e9,
            host_cpu_s=None if use.host_cpu_ns is None else use.host_cpu_ns / 1e9,
            processors=use.processors,
            host_energy_j=host_j,
            energy_low_j=None if energy is None else energy.low_j,
            energy_high_j=None if energy is None else energy.high_j,
            reason=reason,
        )
        return rows_only([row])
