"""Readings as rows of a NumPy array, and which of them can be. Pure."""

import numpy as np

from zeus_stream.protocol.readings import ABSENT, READING_BYTES, READING_FIELDS, Readings, Seen

READING = np.dtype(list(READING_FIELDS))
"""One row of `Readings.rows`."""
SEEN = tuple(seen.name.lower() for seen in Seen)
MOST_NS = 2**62
MOST_MJ = 2**53
"""In uJ that still is an int64."""
MOST_MW = 100_000_000
_POWERS = ("power_mw", "limit_mw", "requested_mw")


def well_formed(body: Readings) -> bool:
    """Return whether the bytes are whole rows of GPUs in the list, with kinds and figures that can be."""
    if len(body.rows) % READING_BYTES:
        return False
    rows = np.frombuffer(body.rows, READING)
    return not rows.size or bool(
        rows["gpu"].max() < len(body.gpus)
        and rows["seen"].max() < len(SEEN)
        and rows["t_lo_ns"].min() >= -MOST_NS
        and (rows["t_lo_ns"] <= rows["t_hi_ns"]).all()
        and rows["t_hi_ns"].max() <= MOST_NS
        and rows["energy_mj"].min() >= ABSENT
        and rows["energy_mj"].max() <= MOST_MJ
        and min(rows[name].min() for name in _POWERS) >= ABSENT
        and max(rows[name].max() for name in _POWERS) <= MOST_MW
    )
