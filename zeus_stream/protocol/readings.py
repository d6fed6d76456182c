"""Readings of devices, in bulk: fixed-width rows."""

from enum import IntEnum
from typing import Annotated

from msgspec import Meta, Struct

from zeus_stream.protocol.fields import Gpus


class Seen(IntEnum):
    """The change that a reading saw at ``t_hi_ns``."""

    FIRST = 0
    """First read since start or return: the counter's value, but not when it changed to it."""
    CHANGED = 1
    """The counter changed to this value between ``t_lo_ns`` and ``t_hi_ns``."""
    UNCHANGED = 2
    """Heartbeat: the counter was still at this value, read between the two stamps."""
    RESET = 3
    """The counter fell: a new counter epoch. The difference to the last value means nothing."""
    POWER = 4
    """A device without counter: power, read between the two stamps."""
    RESTED = 5
    """The counter, or the power of a device without one, changed as above. Nobody used the device, so no read
    was due between the two stamps."""
    SAMPLED = 6
    """Between refreshes of a counter, by its driver's samples of power. The device had drawn so much in the
    middle of the two stamps, give or take `SAMPLED_WITHIN` standard deviations to each."""


SAMPLED_WITHIN = 2.0


READING_FIELDS = (
    ("t_lo_ns", "<i8"),
    ("t_hi_ns", "<i8"),
    ("energy_mj", "<i8"),
    ("power_mw", "<i4"),
    ("limit_mw", "<i4"),
    ("requested_mw", "<i4"),
    ("clock_mhz", "<i4"),
    ("temperature_c", "<i2"),
    ("utilization_pct", "<i2"),
    ("gpu", "<u2"),
    ("seen", "<u2"),
)
"""Columns of one row of `Readings.rows`, in order, as NumPy spells types. ``gpu`` indexes `Readings.gpus`."""
READING_STRUCT = "<qqqiiiihhHH"
"""The same row for `struct`."""
READING_BYTES = 48
ABSENT = -1
"""In a row of `Readings`: the device does not say. (Nowhere else: elsewhere it is None.)"""


class Readings(Struct, frozen=True):
    """Readings of one host's devices, in bulk. ``rows`` is READING_BYTES a reading, oldest first per GPU.

    Without rows it is a sign of life: these devices are at rest, and no reading of them is overdue.
    """

    gpus: Gpus
    rows: Annotated[bytes, Meta(max_length=READING_BYTES * 10_000)]
