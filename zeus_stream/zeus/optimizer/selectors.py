"""Selectors of a power limit from measurements, with Zeus's names. Pure.

Each has the text by which the analyzer knows the same selector: the analyzer chooses, this package asks.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from msgspec import Struct


class PowerLimitMeasurement(Struct, frozen=True):
    """One power limit, measured.

    Attributes:
        power_limit: W.
        energy: J of ``profile_steps`` steps, of all GPUs of the job.
        time: s of those steps, of the slowest rank.

    Raises:
        ValueError: one of them is not above 0.

    Example:
        >>> PowerLimitMeasurement(power_limit=200, energy=153.2, time=0.852)
        PowerLimitMeasurement(power_limit=200, energy=153.2, time=0.852)
    """

    power_limit: int
    energy: float
    time: float

    def __post_init__(self) -> None:
        if not (self.power_limit > 0 and self.energy > 0 and self.time > 0):
            raise ValueError(f"{self}: power limit, energy and time are above 0.")


class OptimumSelector(ABC):
    """A way to choose a power limit.

    Example:
        >>> Energy().select([PowerLimitMeasurement(250, 90.0, 0.5), PowerLimitMeasurement(200, 80.0, 0.6)])
        200
    """

    text = ""
    """The selector's name for the analyzer. Empty: the analyzer has none like it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._arguments())})"

    def _arguments(self) -> Iterable[tuple[str, object]]:
        return ((name, value) for name, value in vars(self).items() if name != "text")

    @abstractmethod
    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        """Return the power limit to use, W. Ties go to the higher limit.

        Args:
            measurements: of all limits, at least one.
        """


class Energy(OptimumSelector):
    """The limit with the least energy.

    Example:
        >>> GlobalPowerLimitOptimizer(monitor, Energy())
    """

    text = "energy"

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        return min(measurements, key=lambda each: (each.energy, -each.power_limit)).power_limit


class Time(OptimumSelector):
    """The limit with the least time.

    Example:
        >>> GlobalPowerLimitOptimizer(monitor, Time())
    """

    text = "time"

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        return min(measurements, key=lambda each: (each.time, -each.power_limit)).power_limit


class ZeusCost(OptimumSelector):
    """The limit with the least eta * energy + (1 - eta) * MAXPOWER * time.

    Args:
        eta_knob: from 0, time only, to 1, energy only.
        world_size: GPUs of the job: MAXPOWER is the highest limit times this. The analyzer knows the number
            of GPUs; this one counts where a profile is read from a file.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> GlobalPowerLimitOptimizer(monitor, ZeusCost(eta_knob=0.5))
    """

    def __init__(self, eta_knob: float, world_size: int = 1) -> None:
        if not 0 <= eta_knob <= 1:
            raise ValueError("eta_knob must be between 0 and 1, inclusive both sides.")
        if world_size < 1:
            raise ValueError("world_size must be greater than or equal to 1.")
        self.eta_knob = eta_knob
        self.world_size = world_size
        self.text = f"cost:{eta_knob:g}"

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        most_w = self.world_size * max(each.power_limit for each in measurements)

        def cost_j(each: PowerLimitMeasurement) -> float:
            return self.eta_knob * each.energy + (1 - self.eta_knob) * most_w * each.time

        return min(measurements, key=lambda each: (cost_j(each), -each.power_limit)).power_limit


class MaxSlowdownConstraint(OptimumSelector):
    """The lowest limit at which steps take at most ``factor`` times as long as at the highest.

    Args:
        factor: from 1.

    Raises:
        ValueError: ``factor`` is below 1.

    Example:
        >>> GlobalPowerLimitOptimizer(monitor, MaxSlowdownConstraint(factor=1.1))
    """

    def __init__(self, factor: float) -> None:
        if factor < 1:
            raise ValueError(f"max_slowdown_factor must be greater than or equal to 1.0. Got {factor}.")
        self.factor = factor
        self.text = f"slowdown:{factor:g}"

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> int:
        most_s = self.factor * max(measurements, key=lambda each: each.power_limit).time
        return min(each.power_limit for each in measurements if each.time <= most_s)
