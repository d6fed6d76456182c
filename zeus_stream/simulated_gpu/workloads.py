"""The power and speed of published workloads under a power limit, for simulated GPUs.

The figures in ``workloads.json`` were fitted once (commit a3a9c532) to measurements on real V100, A40,
P100 and RTX 6000 GPUs. Their source, licence and residuals stand beside them. Nobody published such a
table of the A100 and the H100: these models have nameplate limits and the V100's workloads, scaled.
The model has two halves.

Draw: the workload would like `uncapped_mw`; the limit allows `gain` times itself; the smaller of the two
wins, softly (an average over an epoch is rounder than an instant), and nothing falls below `floor_mw`,
which a limit cannot reach::

    excess(limit) = wish * (1 + (wish / (gain * limit - floor)) ** sharpness) ** (-1 / sharpness)
    power(limit) = floor + excess(limit)          wish = uncapped - floor

Time: a GPU slows with the draw it is left. While voltage can still fall with the clock, time grows about
as the cube root of the draw (`slope`). Below `knee_mw` voltage is at its floor and only the clock is left,
so that time grows steeper by `steepness`::

    time(power) ~ power ** -slope * (1 + (knee / power) ** 12) ** (steepness / 12)

Clock: a limit lowers the clock, so a clock and a limit that take the same time draw the same. A part
of the time, `clock_share`, is inversely proportional to the clock; memory and transfers are the rest::

    time(clock) / time(highest clock) = clock_share * highest / clock + 1 - clock_share

Nobody published time and power by clock of these workloads. `clock_share` is fitted to a shape: the clocks of
the least energy-delay product of other workloads on V100, A100 and H100. The other models have the V100's.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from zeus_stream.protocol.fields import UNLOCKED

_KNEE_SHARPNESS = 12.0
"""How suddenly the steep part begins; one value serves all fits."""


class Workload(Struct, frozen=True, kw_only=True):
    """One training job on one GPU model. All powers are of one GPU."""

    top_limit_mw: int
    """The limit that `slowdown` is relative to: the highest of the GPU model."""
    uncapped_mw: float
    floor_mw: float
    gain: float
    sharpness: float
    slope: float
    steepness: float
    knee_mw: float
    epoch_s: float
    """Duration of one epoch at `top_limit_mw`, as fitted."""
    slower: float = 1.0
    """Times as long at every limit: a GPU that is worse than the one measured."""
    top_clock_mhz: int = 1
    """Graphics clock at `top_limit_mw`."""
    clock_share: float = 1.0
    """Part of the time at the highest clock that is inversely proportional to the clock."""

    def power_mw(self, limit_mw: int, locked_mhz: int = UNLOCKED) -> int:
        """Return the mean draw under a limit and a locked clock, of which the lower counts."""
        limited_mw = self._limited_mw(limit_mw)
        if locked_mhz == UNLOCKED:
            return limited_mw
        wanted = self._stretch(locked_mhz)
        if wanted <= self._relative(limited_mw):
            return limited_mw
        low_mw, high_mw = 1.0, float(limited_mw)
        for _ in range(40):
            middle_mw = (low_mw + high_mw) / 2
            low_mw, high_mw = (
                (middle_mw, high_mw) if self._relative(middle_mw) > wanted else (low_mw, middle_mw)
            )
        return round(high_mw)

    def clock_mhz(self, limit_mw: int, locked_mhz: int = UNLOCKED) -> int:
        """Return the graphics clock while it works."""
        limited = max(self._relative(self._limited_mw(limit_mw)), 1.0)
        clock_mhz = round(self.top_clock_mhz * self.clock_share / (limited - 1 + self.clock_share))
        return clock_mhz if locked_mhz == UNLOCKED else min(clock_mhz, locked_mhz)

    def _limited_mw(self, limit_mw: int) -> int:
        room_mw = max(self.gain * limit_mw - self.floor_mw, 1.0)
        wish_mw = self.uncapped_mw - self.floor_mw
        rounding: float = (1 + (wish_mw / room_mw) ** self.sharpness) ** (-1 / self.sharpness)
        return round(self.floor_mw + wish_mw * rounding)

    def slowdown(self, limit_mw: int, locked_mhz: int = UNLOCKED) -> float:
        """Return the time of work relative to `top_limit_mw` on a GPU that is not `slower`."""
        relative = self._relative(self._limited_mw(limit_mw))
        if locked_mhz != UNLOCKED:
            relative = max(relative, self._stretch(locked_mhz))
        return self.slower * relative

    def _stretch(self, clock_mhz: int) -> float:
        """Return the time at a clock relative to the highest."""
        return self.clock_share * self.top_clock_mhz / clock_mhz + 1 - self.clock_share

    def _relative(self, power_mw: float) -> float:
        """Return the time at a draw relative to that at `top_limit_mw`."""
        return self._time(power_mw) / self._time(self._limited_mw(self.top_limit_mw))

    def _time(self, power_mw: float) -> float:
        knee = (1 + (self.knee_mw / power_mw) ** _KNEE_SHARPNESS) ** (self.steepness / _KNEE_SHARPNESS)
        return float(power_mw**-self.slope * knee)


class Model(Struct, frozen=True, kw_only=True):
    """A GPU model: what a device of it says of itself, and the workloads measured on it."""

    name: str
    min_limit_mw: int
    max_limit_mw: int
    default_limit_mw: int
    idle_mw: int
    """Draw of a GPU that is held open and does nothing."""
    period_ms: float
    """Refresh period of power and energy counter."""
    window_ms: float
    """Span at the end of each period over which the power reading is averaged."""
    idle_clock_mhz: int
    max_clock_mhz: int
    memory_gib: int
    workloads: Mapping[str, Workload]
    source: str
    """Where its figures come from, and whether they were measured on it."""
    clock_share: float
    """Of every workload."""
    clock_source: str
    """Where `clock_share` comes from, and how far it is off."""

    def slowed(self, factor: float) -> "Model":
        """Return a GPU of this model that takes ``factor`` times as long for everything."""
        workloads = {name: replace(known, slower=factor) for name, known in self.workloads.items()}
        return replace(self, workloads=workloads)


def load() -> dict[str, Model]:
    """Return the GPU models that ship with the package, by short name (``v100``)."""
    shipped = json.loads(Path(__file__).with_name("workloads.json").read_text(encoding="utf-8"))
    return {key: _model(entry) for key, entry in shipped["models"].items()}


def _model(entry: dict[str, Any]) -> Model:
    workloads = {
        name: Workload(
            top_limit_mw=entry["max_limit_mw"],
            top_clock_mhz=entry["max_clock_mhz"],
            clock_share=entry["clock_share"],
            **fitted["parameters"],
        )
        for name, fitted in entry["workloads"].items()
    }
    return Model(**{**entry, "workloads": workloads})
