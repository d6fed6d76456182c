"""Zeus's monitors and power limit optimizer, on the services of zeus-stream.

A script that uses Zeus 0.16 changes its imports alone, from ``zeus`` to ``zeus_stream.zeus``:

    from zeus_stream.zeus.monitor import ZeusMonitor
    from zeus_stream.zeus.optimizer.power_limit import GlobalPowerLimitOptimizer, ZeusCost

Signatures are those of Zeus. docs/coming-from/zeus.md lists what differs.
"""

from zeus_stream.zeus.monitor import Measurement, PowerMonitor, TemperatureMonitor, ZeusMonitor
from zeus_stream.zeus.optimizer.power_limit import (
    Energy,
    GlobalPowerLimitOptimizer,
    MaxSlowdownConstraint,
    OptimumSelector,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
)
from zeus_stream.zeus.replaced import add_modules

__all__ = [
    "Energy",
    "GlobalPowerLimitOptimizer",
    "MaxSlowdownConstraint",
    "Measurement",
    "OptimumSelector",
    "PowerLimitMeasurement",
    "PowerMonitor",
    "TemperatureMonitor",
    "Time",
    "ZeusCost",
    "ZeusMonitor",
]

add_modules()
