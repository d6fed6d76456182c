"""`PowerMonitor`: the power of GPUs over time, from the readings of the collector."""

import math
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Literal

from zeus_stream.zeus.monitor.readings import PowerReading, ReadingsSince, closest

MARGIN_S = 2.0
"""Readings before and after an interval that are looked at for its edges."""


class PowerDomain(Enum):
    """A kind of power reading."""

    DEVICE_INSTANT = "device_instant"
    DEVICE_AVERAGE = "device_average"
    MEMORY_AVERAGE = "memory_average"


Domain = PowerDomain | Literal["device_instant", "device_average", "memory_average"]


class PowerMonitor:
    """The power of GPUs over time.

    No process is started: the collector samples already, closely to each refresh of the sensor.

    Args:
        gpu_indices: GPUs by index, as CUDA counts. None: all.
        update_period: accepted and not used: the collector finds the period of each GPU.
        max_samples_per_gpu: samples to return at most. None: all.
        power_domains: ``device_instant`` is the one that is sampled.

    Raises:
        ValueError: no GPU is named, or a domain that is not sampled.

    Example:
        >>> monitor = PowerMonitor(gpu_indices=[0])
        >>> begin = time.time()
        >>> train()
        >>> monitor.get_energy(begin, time.time())
        {0: 8124.0}
    """

    def __init__(
        self,
        gpu_indices: list[int] | None = None,
        update_period: float | None = None,
        max_samples_per_gpu: int | None = None,
        power_domains: Sequence[Domain] | None = None,
    ) -> None:
        if power_domains is not None and not power_domains:
            raise ValueError("`power_domains` must be either `None` or non-empty")
        self.measurement_domains = [PowerDomain.DEVICE_INSTANT]
        for domain in power_domains or ():
            self._check(domain)
        self.update_period = update_period
        self._readings = ReadingsSince(gpu_indices, max_samples_per_gpu)
        self.gpu_indices = list(self._readings.gpus.indices)

    def __repr__(self) -> str:
        return f"<PowerMonitor of GPUs {self.gpu_indices}>"

    def stop(self) -> None:
        """Do nothing: the collector goes on for others."""

    def get_power_timeline(
        self,
        power_domain: Domain,
        gpu_index: int | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> dict[int, list[tuple[float, float]]]:
        """Return (wall time in s, W) of each GPU since this monitor began, in order.

        Args:
            power_domain: ``device_instant``.
            gpu_index: of one GPU. None: all.
            start_time: wall time, s since 1970. None: the begin of this monitor.
            end_time: wall time, s since 1970. None: now.

        Raises:
            ValueError: the domain is not sampled.
        """
        self._check(power_domain)
        return {
            index: [
                (reading.t, reading.power_w)
                for reading in self._readings.of(index, start_time, end_time)
                if reading.power_w is not None
            ]
            for index in (self.gpu_indices if gpu_index is None else [gpu_index])
        }

    def get_all_power_timelines(
        self, gpu_index: int | None = None, start_time: float | None = None, end_time: float | None = None
    ) -> dict[str, dict[int, list[tuple[float, float]]]]:
        """Return the timelines by the name of their domain.

        Args:
            gpu_index: of one GPU. None: all.
            start_time: wall time, s since 1970. None: the begin of this monitor.
            end_time: wall time, s since 1970. None: now.
        """
        return {
            domain.value: self.get_power_timeline(domain, gpu_index, start_time, end_time)
            for domain in self.measurement_domains
        }

    def get_energy(self, start_time: float, end_time: float) -> dict[int, float] | None:
        """Return the joules of each GPU between two instants, or None without readings.

        The energy counter is interpolated at both instants. A GPU without one is integrated from its power.
        NaN: the instants are outside the readings.

        Args:
            start_time: wall time, s since 1970.
            end_time: wall time, s since 1970.
        """
        found: dict[int, float] = {}
        for index in self.gpu_indices:
            self._readings.wait_for(index, end_time)
            readings = self._readings.of(index, start_time - MARGIN_S, end_time + MARGIN_S)
            found[index] = energy_between(readings, start_time, end_time)
        return found or None

    def get_power(self, time: float | None = None) -> dict[int, float] | None:
        """Return the power of each GPU, W. None: a GPU has none yet.

        Args:
            time: wall time, s since 1970: the reading closest to it. None: the last one.
        """
        return closest(self.get_power_timeline(PowerDomain.DEVICE_INSTANT), time)

    def _check(self, domain: Domain) -> None:
        if PowerDomain(domain) not in self.measurement_domains:
            raise ValueError(
                f"Power domain {PowerDomain(domain).value} is not being monitored."
                f" Monitored domains: {[each.value for each in self.measurement_domains]}"
            )


def energy_between(readings: Sequence[PowerReading], start_s: float, end_s: float) -> float:
    """Return the joules between two instants of wall time. NaN: they are outside the readings. Pure."""
    counter = [(reading.t, reading.energy_j) for reading in readings if reading.energy_j is not None]
    if counter:
        return _at(counter, end_s) - _at(counter, start_s)
    power = [(reading.t, reading.power_w) for reading in readings if reading.power_w is not None]
    if len(power) < 2 or not power[0][0] <= start_s <= end_s <= power[-1][0]:
        return math.nan
    inner = [sample for sample in power if start_s < sample[0] < end_s]
    line = [(start_s, _at(power, start_s)), *inner, (end_s, _at(power, end_s))]
    pairs = pairwise(line)
    return sum((later - t) * (low + high) / 2 for (t, low), (later, high) in pairs)


def _at(samples: Sequence[tuple[float, float]], t: float) -> float:
    """Return a value between two samples, interpolated. NaN: outside them."""
    for (before, low), (after, high) in pairwise(samples):
        if before <= t <= after and after > before:
            return low + (high - low) * (t - before) / (after - before)
    return math.nan
