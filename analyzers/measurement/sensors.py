"""Published facts on power sensors: their lag by the name of the GPU, and the gain of one. Pure.

A reading of power is a mean over the sensor's window, shown from a refresh until the next. It says what was
drawn *before* the refresh; held from there on, as if it were news of the future, it comes too late by half
the period and half the window. Where both are the same, the readings moved back by that are exact means,
one after the other.

Source: Yang, Adamek and Armour, SC24; that the lag of GA10x is 100 ms was seen again on the recorded
RTX 3090 of benchmarks/windows/meter.py: its readings are the means of the 100 ms before each refresh.
"""

import re

from msgspec import Struct

_WINDOWS_MS = (
    # name, refreshed every, mean over
    (r"V100|P100", 20, 10),
    (r"A100", 101, 25),
    (r"H100", 100, 23),
    (r"RTX (30|40|A)\d{2,3}|RTX 4000|RTX [56]000 Ada|\bA(2|10|16|40)\b|\bL(4|20|40S?)\b", 100, 100),
)


class Sensor(Struct, frozen=True):
    """The way in which a GPU's power readings are made."""

    lag_ns: int = 0
    """By how much they come late; 0 where it is not known."""
    sees_all: bool = False
    """Each is a mean of all the time since the one before: added up, they are a counter."""
    window_ns: int | None = None
    """Each is known to be a mean of this much time, which is less. A counter of such readings would be blind
    too."""

    @property
    def blind(self) -> bool:
        """The sensor is known to see a part of the time only."""
        return self.window_ns is not None


def sensor(name: str) -> Sensor:
    """Return what is known of the sensor of a GPU of this name."""
    for pattern, period_ms, window_ms in _WINDOWS_MS:
        if re.search(pattern, name):
            whole = window_ms == period_ms
            return Sensor((period_ms + window_ms) * 500_000, whole, None if whole else window_ms * 1_000_000)
    return Sensor()


_COUNTS_ALL = r"H100 80GB HBM3|NVIDIA H200$"
"""Counters that were seen to count all of the time, under square loads: docs/measurements/h100.md. The power
readings of the same GPUs see 25 to 30 ms of each 100."""
UNKNOWN_WINDOW_NS = 25_000_000
"""Of a GPU of NVIDIA whose sensor is not published, for the hypothesis that it sees a part of the time."""


def suspected_ns(name: str) -> int | None:
    """Return how much of each period a counter may see, by the name of the GPU; None: all of it."""
    known = sensor(name)
    if known.sees_all or re.search(_COUNTS_ALL, name) or not re.match("NVIDIA|Tesla|Quadro", name):
        return None
    return known.window_ns or UNKNOWN_WINDOW_NS


class Gain(Struct, frozen=True):
    """The calibration of one GPU."""

    gain: float
    gain_error: float
    """Half of its 95 % interval."""
    offset_w: float
    """0 unless it is significant."""
    source: str
    """The meter's record, or where it is published."""
    at: str
    """When it was fitted, UTC; empty: it was not."""

    @property
    def calibrated(self) -> bool:
        """It was fitted against a meter."""
        return bool(self.at)

    @property
    def words(self) -> str:
        """The word for it in the ``quality`` of windows."""
        return f"gain {self.gain:.3f}" + (f", offset {self.offset_w:+.1f} W" if self.offset_w else "")


PRIOR = Gain(
    gain=0.985,
    gain_error=0.065,
    offset_w=0.0,
    source="published measurements of other cards: +-5 % (Yang, Adamek, Armour, SC24), and 5 to 7 % low",
    at="",
)
"""Of NVIDIA's sensors, before a card is calibrated. It is assumed: 0.92 to 1.05 holds both figures."""
PRIOR_OFFSET_W = 3.0
"""Standard deviation of the offset that a short record cannot tell from a gain. It is assumed."""
EXACT = Gain(gain=1.0, gain_error=0.0, offset_w=0.0, source="a simulated sensor shows what is drawn", at="")


def prior(gpu: str, driver: str) -> Gain | None:
    """Return what is known of the gain of a sensor that was not calibrated; None: nothing is published."""
    if driver.startswith("simulated"):
        return EXACT
    return PRIOR if gpu.startswith("GPU-") and driver[:1].isdigit() else None
