"""Simulated GPUs as a collector sees them: devices made of arithmetic, with a driver's habits and faults.

`simulated_spec` tells how to write them, `virtual_gpu` is the arithmetic, and
`zeus_stream.simulated_gpu.shared_memory` is where they meet those who train on them.
"""

import hashlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from collectors.control import spell_change, words
from collectors.device import Description, DeviceMemory, Sample, check_clock, check_limit
from collectors.devices.simulated_spec import Fault, Spec, parse
from collectors.devices.virtual_gpu import Kind, Refreshes, VirtualCounter, VirtualGpu, unit
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import (
    LostError,
    PermissionMissingError,
    RefusedError,
    RetryError,
)
from zeus_stream.paths import places
from zeus_stream.protocol.fields import UNLOCKED, Control
from zeus_stream.simulated_gpu.shared_memory import (
    Board,
    LimitChange,
    Load,
    host_of_boards,
    name_host_of_boards,
)

CLOCK_STEP_MHZ = 15
"""Between two graphics clocks that can be locked."""
MEMORY_CLOCKS_MHZ = (877, 405)
"""Those that can be locked, whatever the model."""
DRIVER_BYTES, USED = 300 << 20, 0.6
"""Memory that a driver keeps, and the share of all memory that a process takes, as trainings fill it."""
OFF_NS = 600_000_000_000
"""A GPU that nobody ran for this long was off: the time is not counted."""


class Surroundings(Protocol):
    """Where a simulated GPU learns what it has to do: a `shared_memory.Board`, or loads of a test."""

    def limits(self) -> list[LimitChange]:
        """Return changes of the limit since the last call; at first, all that are known, at least one."""

    def loads(self) -> list[tuple[int, Load]]:
        """Return numbered loads (1, 2, ...) since the last call; the newest comes again if renewed."""

    def set_limit(self, limit_mw: int, since_ns: int) -> None:
        """Put a limit in force."""

    def locked_mhz(self, control: Control) -> int:
        """Return at what a clock is locked, MHz, or UNLOCKED."""

    def lock_clock(self, control: Control, clock_mhz: int, since_ns: int) -> None:
        """Lock a clock, MHz, or unlock it (UNLOCKED)."""

    def counter(self) -> tuple[int, int] | None:
        """Return the counter as saved last (index of its refresh, nJ)."""

    def save_counter(self, refresh: int, energy_nj: int) -> None:
        """Keep the counter."""

    def processes(self) -> tuple[int, ...]:
        """Return the pids of those who load the GPU."""

    def close(self) -> None:
        """Let go."""


class SimulatedDevice:
    """One simulated GPU (a `collectors.device.Device`). For one thread at a time."""

    def __init__(
        self,
        spec: Spec,
        index: int,
        surroundings: Surroundings,
        now: Callable[[], int] = monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
        opened_ns: int | None = None,
        host: str = "",
    ) -> None:
        """``sleep`` takes seconds; faults count from ``opened_ns`` (now, if None); ``host`` has the GPU."""
        self.gpu = spec.uuid(index, host)
        self._spec, self._index, self._surroundings = spec, index, surroundings
        self._now, self._sleep = now, sleep
        self._opened_ns = now() if opened_ns is None else opened_ns
        self._resets = [fault for fault in spec.faults if fault.kind == "reset"]
        first, *later = surroundings.limits()
        seed = int.from_bytes(hashlib.sha256(spec.uuid(index, "").encode()).digest()[:8])
        self._draw = VirtualGpu(spec.model, spec.noise, seed, first)
        for change in later:
            self._draw.learn_limit(change)
        period_ns = _ns(spec.period_ms)
        phase_ns = int(unit(seed, -1) * period_ns) if spec.phase_ms is None else _ns(spec.phase_ms)
        self._refreshes = Refreshes(period_ns, phase_ns, _ns(spec.jitter_ms), seed)
        self._window_ns = _ns(spec.window_ms)
        slowest_mhz, fastest_mhz = spec.model.idle_clock_mhz, spec.model.max_clock_mhz
        self._clocks_mhz: dict[Control, tuple[int, ...]] = {
            "graphics_clock": tuple(range(fastest_mhz, slowest_mhz - 1, -CLOCK_STEP_MHZ)),
            "memory_clock": MEMORY_CLOCKS_MHZ,
        }
        self._counter = VirtualCounter(self._draw, self._refreshes, spec.kind, self._window_ns, self._start())
        self._last: Sample | None = None
        """As of the newest refresh that was read: a driver says the same until the next."""
        self._next_ns = 0
        """When that is."""
        self.closed = False

    def describe(self) -> Description:
        self._answer("be described")
        model = self._spec.model
        return Description(
            gpu=self.gpu,
            index=self._index,
            name=model.name,
            driver="simulated" if self._spec.kind is Kind.INTEGRATING else "simulated, boxcar",
            counts_energy=not self._spec.power_only,
            min_limit_mw=model.min_limit_mw,
            max_limit_mw=model.max_limit_mw,
            default_limit_mw=model.default_limit_mw,
            graphics_clocks_mhz=self._clocks_mhz["graphics_clock"],
            memory_clocks_mhz=self._clocks_mhz["memory_clock"],
        )

    def sample(self) -> Sample:
        if self.closed or self._spec.faults:
            self._answer("be read")
        now_ns = self._now()
        if self._last is None or now_ns >= self._next_ns or self._resets:
            self._learn()
            self._last = self._last if now_ns < self._next_ns else None
        elif changes := self._surroundings.limits():  # they show at once, loads at the next refresh
            self._take_in(changes)
        if self._last is None:
            self._last = self._sample(now_ns)
        return self._last

    def _sample(self, now_ns: int) -> Sample:
        model = self._spec.model
        refresh, energy_pj = self._counter.read_pj(now_ns)
        end_ns = self._refreshes.at_ns(refresh)
        self._next_ns = self._refreshes.at_ns(refresh + 1)
        self._surroundings.save_counter(refresh, energy_pj // 1000)
        begin_ns = end_ns - self._window_ns
        limit = self._draw.limit
        limit_mw = limit.limit_mw
        if (steady := self._draw.steady(begin_ns, now_ns + 1)) is not None:  # as nearly always
            power_mw, load = steady
            busy = float(load is not None)
        else:
            power_mw = self._draw.energy_pj(begin_ns, end_ns) // self._window_ns
            busy = self._draw.busy_ns(begin_ns, end_ns) / self._window_ns
            load = self._draw.load_at(now_ns)
        clock_mhz = model.idle_clock_mhz
        if load:
            clock_mhz = model.workloads[load.workload].clock_mhz(limit_mw, limit.locked_mhz)
        return Sample(
            energy_mj=None if self._spec.power_only else energy_pj // 10**9,
            power_mw=power_mw,
            limit_mw=limit_mw,
            requested_mw=limit_mw,
            clock_mhz=clock_mhz,
            temperature_c=30 + 45 * power_mw // model.max_limit_mw,
            utilization_pct=round(100 * busy),
        )

    def read_control(self, control: Control) -> int | None:
        """Return the power limit, mW; None for a clock."""
        self._answer(f"read its {words(control)}")
        if control != "power_limit":
            return None
        self._learn()
        return self._draw.limit.limit_mw

    def set_control(self, control: Control, value: int) -> None:
        what = spell_change(control, value)
        self._answer(what)
        model = self._spec.model
        if control == "power_limit":
            check_limit(self.gpu, value, model.min_limit_mw, model.max_limit_mw)
        elif value != UNLOCKED:
            check_clock(self.gpu, control, value, self._clocks_mhz[control])
        self._permit(what)
        if self._spec.set_ms:
            self._sleep(self._spec.set_ms / 1000)
        if control == "power_limit":
            self._surroundings.set_limit(value, self._now())
        else:
            self._surroundings.lock_clock(control, value, self._now())

    def locked_mhz(self, control: Control) -> int:
        """Return at what a clock is locked, MHz, or UNLOCKED: what no driver reports."""
        return self._surroundings.locked_mhz(control)

    def processes(self) -> tuple[int, ...] | None:
        self._answer("name its processes")
        return self._surroundings.processes()

    def memory(self) -> DeviceMemory:
        self._answer("name its memory")
        total_bytes, pids = self._spec.model.memory_gib << 30, self._surroundings.processes()
        of = dict.fromkeys(pids, int(USED * total_bytes))
        return DeviceMemory(DRIVER_BYTES + sum(of.values()), total_bytes, of)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._surroundings.close()

    def energy_mj(self, t0_ns: int, t1_ns: int) -> float:
        """Return the true energy of a past interval, mJ, exact to 1 pJ. RefusedError: too far back."""
        self._learn()
        if t0_ns < self._draw.known_since_ns:
            raise RefusedError(
                f"{self.gpu}: could not tell the energy since {t0_ns} ns: nothing is known before"
                f" {self._draw.known_since_ns} ns. Ask for a later interval."
            )
        return self._draw.energy_pj(t0_ns, t1_ns) / 10**9

    @property
    def loads_lost(self) -> int:
        """Loads that were overwritten on the board before they were read here."""
        return self._draw.loads_lost

    @property
    def lost(self) -> bool:
        """It fell off the bus, or was closed."""
        return self.closed or self._faulty("lost")

    def _start(self) -> tuple[int, int]:
        refresh, (saved, energy_nj) = (
            self._refreshes.last(self._now()),
            self._surroundings.counter() or (0, 0),
        )
        resumed = 0 <= refresh - saved <= OFF_NS // self._refreshes.period_ns
        return (saved if resumed else refresh, energy_nj * 1000)

    def _learn(self) -> None:
        """Take in what happened around since the last call."""
        if changes := self._surroundings.limits():
            self._take_in(changes)
        for number, load in self._surroundings.loads():
            self._counter.rewind(self._draw.learn_load(number, load))
            self._last = None
        for fault in self._resets[:] if self._resets else ():
            if self._begin_ns(fault) <= self._now():
                self._counter.reset(self._begin_ns(fault))
                self._resets.remove(fault)
                self._last = None

    def _take_in(self, changes: list[LimitChange]) -> None:
        for change in changes:
            self._counter.rewind(self._draw.learn_limit(change))
            self._last = None

    def _begin_ns(self, fault: Fault) -> int:
        return self._opened_ns + _ns(fault.begin_s * 1000)

    def _faulty(self, kind: str) -> bool:
        return self._left_s(kind) > 0

    def _left_s(self, kind: str) -> float:
        """Return how long a fault of this kind lasts yet, s; 0 if there is none now."""
        if not self._spec.faults:
            return 0.0
        since_s = (self._now() - self._opened_ns) / 1e9
        faults = (fault for fault in self._spec.faults if fault.kind == kind)
        return max((each.end_s - since_s for each in faults if each.begin_s <= since_s), default=0.0)

    def _answer(self, what: str) -> None:
        if (hangs_s := self._left_s("hang")) > 0:
            self._sleep(hangs_s)
        if self.lost:
            raise LostError(
                f"{self.gpu}: could not {what}: the GPU is lost. It is taken up again when it returns."
            )
        if self._faulty("timeout"):
            raise RetryError(f"{self.gpu}: could not {what}: Timeout. It is asked again at the next turn.")

    def _permit(self, what: str) -> None:
        if self._faulty("permission"):
            raise PermissionMissingError(
                f"{self.gpu}: could not {what}: Insufficient Permissions."
                " Run the collector as root or with CAP_SYS_ADMIN."
            )


class SimulatedBus:
    """Simulated GPUs of one host (a `collectors.device.Bus`)."""

    def __init__(
        self,
        specs: Sequence[Spec],
        surroundings: Callable[[str, Spec], Surroundings],
        now: Callable[[], int] = monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
        host: str = "",
    ) -> None:
        """``surroundings`` makes those of a GPU (UUID) when it is opened. ``host`` has the GPUs."""
        self._specs, self._surroundings, self._now, self._sleep = tuple(specs), surroundings, now, sleep
        self._host = host
        self._opened_ns = now()
        self._devices: dict[int, SimulatedDevice] = {}

    @classmethod
    def parse(cls, text: str, directory: Path | None = None, host: str | None = None) -> "SimulatedBus":
        """Return the bus that ``text`` describes. Raises SettingsError, which says what may be written.

        ``directory``: of the boards, default this user's. ``host`` of the GPUs, default that of the boards.
        """
        folder, specs = directory or places(os.environ).run, parse(text)
        known = host_of_boards(folder)
        named = host or known or socket.gethostname()
        places_of = {spec.uuid(index, named): index for index, spec in enumerate(specs)}

        def board(gpu: str, spec: Spec) -> Board:
            limit_mw, now_ns = spec.model.default_limit_mw, monotonic_ns()
            made = Board(folder, gpu, spec.key, limit_mw, now_ns, spec.slower, places_of[gpu])
            if named != known:
                name_host_of_boards(folder, named)
            return made

        return cls(specs, board, host=named)

    def discover(self) -> tuple[SimulatedDevice, ...]:
        """Return the GPUs that are not lost; each stays the same object until it is closed."""
        for index, spec in enumerate(self._specs):
            if index not in self._devices or self._devices[index].closed:
                self._devices[index] = SimulatedDevice(
                    spec,
                    index,
                    self._surroundings(spec.uuid(index, self._host), spec),
                    self._now,
                    self._sleep,
                    self._opened_ns,
                    self._host,
                )
        return tuple(device for _, device in sorted(self._devices.items()) if not device.lost)

    def close(self) -> None:
        for device in self._devices.values():
            device.close()


def _ns(ms: float) -> int:
    return round(ms * 1e6)
