"""Monitors of energy, power and temperature, with Zeus's names."""

from zeus_stream.zeus.monitor.energy import Measurement, ZeusMonitor
from zeus_stream.zeus.monitor.power import PowerMonitor
from zeus_stream.zeus.monitor.temperature import TemperatureMonitor

__all__ = ["Measurement", "PowerMonitor", "TemperatureMonitor", "ZeusMonitor"]
