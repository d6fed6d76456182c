"""The window of a sensor and its lag, from its refreshes under a square load. Pure.

A figure that appears at a refresh is the mean of what was drawn in the window before it, some lag ago. Under
a load that is on or off, that is a straight line in the share of the window in which it was on. So of all
windows and lags, those are right for which a line explains the figures best (least squares). An even load has
some windows that look like the right one: `zeus_stream.bench.square_load` makes an uneven one.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

from msgspec import Struct

SHARES = 20
"""Windows and lags are tried in steps of this part of the period; lags up to twice the period."""
LEAST_FIT = 0.9
"""Share of the variance that the line explains, below which nothing is known."""
LEAST_MIXED = 10
"""Refreshes with a change of the load within their period, of which fewer tell nothing."""


class SensorWindow(Struct, frozen=True):
    window_ms: float
    lag_ms: float
    """From the end of the window to the refresh."""
    fit: float
    """Share of the variance of the figures that this explains."""


Figure = tuple[int, float]
"""When it appeared, ns, and mean power since the figure before, or of the window, in any unit."""


def find_window(
    figures: Sequence[Figure], marks_ns: Sequence[tuple[int, int]], period_ns: int
) -> SensorWindow | None:
    """Return window and lag by figures of a sensor and begins and ends of work. None: they do not tell."""
    on_ns = _time_on(marks_ns)
    begin_ns, end_ns = marks_ns[0][0] + 3 * period_ns, marks_ns[-1][1]
    known = [(t_ns, figure) for t_ns, figure in figures if begin_ns < t_ns < end_ns]
    shares = [(on_ns(t_ns) - on_ns(t_ns - period_ns)) / period_ns for t_ns, _ in known]
    if sum(0.02 < share < 0.98 for share in shares) < LEAST_MIXED:
        return None
    values = [figure for _, figure in known]
    found = max(
        (
            SensorWindow(window_ns / 1e6, lag_ns / 1e6, _fit(shares, values))
            for window_ns, lag_ns in _candidates(period_ns)
            for shares in [
                [(on_ns(t - lag_ns) - on_ns(t - lag_ns - window_ns)) / window_ns for t, _ in known]
            ]
        ),
        key=lambda each: each.fit,
    )
    return found if found.fit >= LEAST_FIT else None


def _candidates(period_ns: int) -> Iterator[tuple[int, int]]:
    for window in range(1, SHARES + 1):
        for lag in range(2 * SHARES):
            yield period_ns * window // SHARES, period_ns * lag // SHARES


def _time_on(marks_ns: Sequence[tuple[int, int]]) -> Callable[[int], int]:
    """Return the function that gives how long the load was on until an instant, ns."""
    begins_ns = [begin_ns for begin_ns, _ in marks_ns]
    before_ns = [0, *accumulate(end_ns - begin_ns for begin_ns, end_ns in marks_ns)]

    def on_ns(t_ns: int) -> int:
        place = bisect_right(begins_ns, t_ns)
        if place == 0:
            return 0
        begin_ns, end_ns = marks_ns[place - 1]
        return before_ns[place - 1] + min(t_ns, end_ns) - begin_ns

    return on_ns


def _fit(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the share of the variance of y that a straight line in x explains; 0 for one that falls."""
    count = len(x)
    mean_x, mean_y = sum(x) / count, sum(y) / count
    xy = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    xx, yy = sum((a - mean_x) ** 2 for a in x), sum((b - mean_y) ** 2 for b in y)
    return xy * xy / (xx * yy) if xy > 0 and xx > 0 and yy > 0 else 0.0


def powers(shown: Sequence[tuple[int, int]], *, counter: bool) -> list[Figure]:
    """Return the figures of refreshes: when each appeared, ns, and its value; of a counter, its slope."""
    if not counter:
        return [(t_ns, float(value)) for t_ns, value in shown]
    return [(t, (value - was) / max(t - before, 1)) for (before, was), (t, value) in pairwise(shown)]
