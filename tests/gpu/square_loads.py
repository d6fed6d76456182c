"""Square loads of a GPU that stands in for a real one, with its counter."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.gpu.stand_in import StandIn
from zeus_stream.bench.square_load import square_marks
from zeus_stream.clock import monotonic_ns

ON_MW, OFF_MW, PERIOD_NS, JITTER_NS = 230_000, 60_000, 100_000_000, 300_000


def show_square(path: Path, period_ms: int, seconds: float) -> list[tuple[int, int]]:
    """Let a stand-in's GPU show a square load from now on. Return when work begins and ends."""
    host = StandIn(path)
    since_ns, marks_ns = monotonic_ns(), list(square_marks(period_ms, seconds))
    rng, count = np.random.default_rng(period_ms), round(seconds * 1e9) // PERIOD_NS
    at_ns = np.arange(count) * PERIOD_NS + rng.integers(-JITTER_NS, JITTER_NS, count) + PERIOD_NS // 3
    energy_mj = drawn_mj(marks_ns, at_ns).astype(np.int64)
    power_mw = np.diff(energy_mj, prepend=0) * 10**9 // np.diff(at_ns, prepend=-1)
    host.record(0, [(0, 0, OFF_MW), *zip(at_ns.tolist(), energy_mj.tolist(), power_mw.tolist(), strict=True)])
    host.gpus[0].played_ns = since_ns
    return [(since_ns + begin_ns, since_ns + end_ns) for begin_ns, end_ns in marks_ns]


def drawn_mj(marks_ns: Sequence[tuple[int, int]], t_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return what a GPU has drawn by each instant, mJ, that draws ON_MW while it works, and else OFF_MW."""
    edges_ns = np.array(marks_ns).ravel()
    worked_ns = np.concatenate(([0], np.cumsum(np.diff(edges_ns) * (np.arange(1, len(edges_ns)) % 2))))
    on_ns: npt.NDArray[np.float64] = np.interp(t_ns, edges_ns, worked_ns)
    return (on_ns * (ON_MW - OFF_MW) + t_ns * OFF_MW) / 1e9
