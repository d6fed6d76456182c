"""Surroundings of a simulated GPU for time that is only a number."""

from dataclasses import dataclass, field

from zeus_stream.protocol.fields import UNLOCKED, Control
from zeus_stream.simulated_gpu.shared_memory import LimitChange, Load


@dataclass(slots=True, kw_only=True)
class ScheduledLoads:
    """Surroundings in memory, for time that is only a number: loads are put in by hand, in their order."""

    first: LimitChange
    pending: list[Load] = field(default_factory=list)
    """Loads the GPU does not know yet. Append a load later than it begins, and it arrives late."""
    _changes: list[LimitChange] = field(init=False)
    _limit_mw: int = field(init=False)
    _told: int = 0
    _locked_mhz: dict[Control, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._changes = [self.first]
        self._limit_mw = self.first.limit_mw

    def limits(self) -> list[LimitChange]:
        changes, self._changes = self._changes, []
        return changes

    def loads(self) -> list[tuple[int, Load]]:
        told = list(enumerate(self.pending, self._told + 1))
        self._told += len(told)
        self.pending.clear()
        return told

    def set_limit(self, limit_mw: int, since_ns: int) -> None:
        self._limit_mw = limit_mw
        self._changes.append(LimitChange(since_ns, limit_mw, self.locked_mhz("graphics_clock")))

    def locked_mhz(self, control: Control) -> int:
        return self._locked_mhz.get(control, UNLOCKED)

    def lock_clock(self, control: Control, clock_mhz: int, since_ns: int) -> None:
        self._locked_mhz[control] = clock_mhz
        if control == "graphics_clock":
            self._changes.append(LimitChange(since_ns, self._limit_mw, clock_mhz))

    def counter(self) -> None:
        return None

    def save_counter(self, refresh: int, energy_nj: int) -> None:
        """Nobody takes it up: the memory ends with the process."""

    def processes(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        """Nothing is held."""
