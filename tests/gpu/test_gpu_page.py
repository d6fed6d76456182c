"""The kind of a counter on a sensor card, from its reads under the square loads of `make gpu`."""

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.gpu import SQUARES_MS
from collectors.device import Sample
from collectors.devices.cards.sensor_card import CardRefreshes, Read, make_card
from tests.gpu.square_loads import drawn_mj
from tests.messages import DESCRIPTION
from zeus_stream.bench.square_load import square_marks

MS = 1_000_000
S = 1000 * MS
READS_S = 20


def marks_of(square_ms: float) -> list[tuple[int, int]]:
    """Return when a square load of `READS_S` begins and ends to work."""
    return [(S + begin_ns, S + end_ns) for begin_ns, end_ns in square_marks(square_ms, READS_S)]


def reads_of(period_ms: int, window_ms: int, marks_ns: Sequence[tuple[int, int]]) -> list[Read]:
    """Return the reads, 1 ms apart, of a counter that sees the last part of each period."""
    refreshes_ns = S + (np.arange(1, READS_S * 1000 // period_ms) * period_ms + period_ms // 3) * MS
    seen_mj = drawn_mj(marks_ns, refreshes_ns) - drawn_mj(marks_ns, refreshes_ns - window_ms * MS)
    shown_mj = np.concatenate(([0], np.cumsum(seen_mj * period_ms / window_ms))).astype(int)
    at_ns = np.arange(0, READS_S * S, MS) + S
    energies_mj = shown_mj[np.searchsorted(refreshes_ns, at_ns, side="right")].tolist()
    samples = [Sample(energy_mj, None, None, None) for energy_mj in energies_mj]
    return [Read(t, t + MS // 10, sample) for t, sample in zip(at_ns.tolist(), samples, strict=True)]


def counter_of(period_ms: int, window_ms: int, marks_ns: Sequence[tuple[int, int]]) -> CardRefreshes:
    """Return what the card of such a counter says of it."""
    card = make_card(DESCRIPTION, reads_of(period_ms, window_ms, marks_ns), marks_ns=marks_ns)
    assert card.counter is not None
    return card.counter


@pytest.mark.parametrize(
    ("period_ms", "window_ms", "square_ms"),
    [
        *((100, 100, square_ms) for square_ms in SQUARES_MS),
        *((100, 25, square_ms) for square_ms in (50, 10)),
        *((101, 25, 25), (20, 10, 370), (20, 20, 12)),
    ],
)
def test_each_square_load_tells_what_a_counter_sees(period_ms: int, window_ms: int, square_ms: int) -> None:
    counter = counter_of(period_ms, window_ms, marks_of(square_ms))
    assert counter.window_ms == pytest.approx(window_ms, abs=1.1)
    assert counter.lag_ms == pytest.approx(0, abs=0.1)
