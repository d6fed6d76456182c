"""The figures of `make gpu`: what a counter shows itself to be, from its reads under a square load."""

import numpy as np
import pytest

from benchmarks.gpu import OFF_MW, ON_MW, kind_of
from collectors.device import Sample
from collectors.devices.cards.sensor_card import Read

MS = 1_000_000
S = 1000 * MS


def reads_of(period_ms: int, window_ms: int, half_ms: int) -> list[Read]:
    """Return the reads, 1 ms apart, of a counter that sees the last part of each period."""
    on_ns = np.arange(20 * S // MS) // half_ms % 2 == 0
    drawn_mj = np.where(on_ns, ON_MW, OFF_MW) / 1000
    refreshes = np.arange(period_ms, len(drawn_mj), period_ms) + period_ms // 3
    seen_mj = [
        drawn_mj[max(at - window_ms, 0) : at].sum() * period_ms / window_ms for at in refreshes.tolist()
    ]
    shown_mj = np.concatenate(([0], np.cumsum(seen_mj))).astype(int)
    at_ns = np.arange(0, 20 * S, MS) + S
    energies_mj = shown_mj[np.searchsorted(refreshes * MS + S, at_ns, side="right")].tolist()
    samples = [Sample(energy_mj, None, None, None) for energy_mj in energies_mj]
    return [Read(t, t + MS // 10, sample) for t, sample in zip(at_ns.tolist(), samples, strict=True)]


@pytest.mark.parametrize(
    ("period_ms", "window_ms", "said"),
    [
        (100, 100, "all, proven"),
        (100, 25, "25 ms of each refresh"),
        (20, 10, "10 ms of each refresh"),
    ],
)
def test_a_square_load_out_of_step_tells_what_a_counter_sees(
    period_ms: int, window_ms: int, said: str
) -> None:
    half_ms = 185
    marks_ns = [(S + turn * 2 * half_ms * MS, S + (2 * turn + 1) * half_ms * MS) for turn in range(54)]
    assert kind_of(reads_of(period_ms, window_ms, half_ms), marks_ns) == said
