"""The instants of refreshes, from reads that bound them loosely. Pure.

A read may take as long as 20 ms, as on an H100, whose driver asks the GPU's firmware: then two reads bound a
refresh to 7 ms at best, and cost as much. But a driver refreshes by a timer: all bounds together tell more.

    refresh n came within ``off`` of  instant + n x period     each bound cuts off what these two may be
    CHECKS close bounds have agreed   bounds shrink to where the grid has the refresh
    one disagrees                     ``off`` doubles, and the grid begins again

An H100 (driver 580) kept to a grid of 100.0022 ms within 1 ms over 80 s, as closely as reads could tell.
"""

import math
from itertools import pairwise

CHECKS = 30
FORGIVEN = 10_000
"""Refreshes that agree after which ``off`` is halved again."""
TRIES = 4 * CHECKS
"""Refreshes that are bounded closely to confirm the grid, however slow reads are."""
OFF = 100
"""Refreshes may miss the grid by this part of a period, before one has missed it by more."""
CLOSE, MOST = 3, 5
"""Parts of a period: bounds within the first confirm the grid; the grid's own within the second are news."""
HIDES = 1.5
"""While the grid leaves much open, refreshes may stray by a part of that more than ``off``, and no read shows
it. So bounds are wider by this part of it on both sides. Of refreshes that stray by 2 or 3 ms from a grid of
100 ms, read in 3 ms each, 3 to 23 % had wrong bounds without it, 0.2 % with 2, and none of 7,990 with 1.5."""
FIRST = 10
"""The period as it was seen first is off by at most this part of it."""
FADES = 1 / 2_000
"""By this part what may be grows at each refresh: clocks drift."""

CORNERS = 8
"""Of the area, at most: each refresh cuts off some, and makes others. 8, 12 and 24 bound refreshes alike, in
28, 40 and 70 us of processor time each; without an end it was 7 ms after five minutes."""

Corner = tuple[float, float]
"""An instant of a refresh, ns after the origin, and a period, ns."""


class RefreshGrid:
    """The grid of one device's refreshes: all instants and periods that agree with what was seen."""

    def __init__(self) -> None:
        self._off_ns = self._least_off_ns = 0
        self._corners: list[Corner] = []
        """Of the convex area of the last refresh's instant and the period; empty: nothing was seen."""
        self._origin_ns = self._tries = self._checks = self._agreed = 0

    @property
    def doubtful(self) -> bool:
        """Tell whether it is worth reads that confirm it."""
        return 0 < self._tries < TRIES and self._checks < CHECKS

    @property
    def believed(self) -> bool:
        """Tell whether bounds are narrowed by it."""
        if self._checks < CHECKS:
            return False
        soonest_ns, latest_ns = _instants(self._corners)
        return MOST * (latest_ns - soonest_ns + 2 * self._off_ns) <= self._corners[0][1]

    @property
    def _lost(self) -> bool:
        """Refreshes miss any grid by too much."""
        return 2 * MOST * self._off_ns > self._corners[0][1]

    @property
    def open_ns(self) -> int:
        """Distance of the bounds of the refresh after the last one, ns; 0: they are no news."""
        if not self._checks or self._lost:
            return 0
        soonest_ns, latest_ns = _instants(_later(self._corners, 1))
        return round(latest_ns - soonest_ns) + 2 * self._off_ns

    def coming_ns(self, after_ns: int) -> tuple[int, int] | None:
        """Return the bounds of the first refresh after an instant; None: there is no grid."""
        if not self._corners or self._lost:
            return None
        latest_ns = _instants(self._corners)[1]
        passed = max(1, math.ceil((after_ns - self._origin_ns - latest_ns) / self._corners[0][1]))
        return self._bounds(*_instants(_later(self._corners, passed)))

    def _bounds(self, soonest_ns: float, latest_ns: float) -> tuple[int, int]:
        """Return the bounds of a refresh by those of the grid."""
        lo_ns, hi_ns = math.floor(soonest_ns - self._off_ns), math.ceil(latest_ns + self._off_ns)
        return self._origin_ns + lo_ns, self._origin_ns + hi_ns

    def narrow(self, lo_ns: int, hi_ns: int, before_ns: int, period_ns: int) -> tuple[int, int]:
        """Return the bounds of the refresh that a read shows, by reads and by the grid.

        The read began at ``before_ns`` and ended at ``hi_ns``; the last one that showed the figure before
        began at ``lo_ns``. ``period_ns``: of refreshes, about.
        """
        self._tries += 1
        if not self._corners:
            self._off_ns = self._least_off_ns = period_ns // OFF
            self._begin(lo_ns, hi_ns, period_ns)
            return lo_ns, hi_ns
        first_ns = lo_ns - self._off_ns - self._origin_ns
        began_ns = before_ns - self._off_ns - self._origin_ns
        last_ns = hi_ns + self._off_ns - self._origin_ns
        far = (first_ns - _instants(self._corners)[1]) / max(period for _, period in self._corners)
        seen = _later(self._corners, max(1, math.floor(far)))
        while _instants(seen)[1] < first_ns or _instants(_later(seen, 1))[1] <= began_ns:
            seen = _later(seen, 1)
        following = _later(seen, 1)
        if _instants(following)[0] <= last_ns:  # that one may have come before the read ended
            soonest_ns, latest_ns = _instants(seen)[0], _instants(following)[1]
            if not self.believed and hi_ns - lo_ns < latest_ns - soonest_ns - period_ns:
                self._begin(lo_ns, hi_ns, period_ns)
        else:
            seen = _later(_cut(following, began_ns, above=True), -1)  # that one came after the read had begun
            seen = _cut(_cut(seen, first_ns, above=True), last_ns, above=False)
            if not seen:
                if self.believed:  # as where the driver was loaded again
                    self._tries = 1
                self._off_ns = min(2 * self._off_ns, period_ns)
                self._begin(lo_ns, hi_ns, period_ns)
                return lo_ns, hi_ns
            self._take(seen, close=CLOSE * (hi_ns - lo_ns) <= period_ns)
            soonest_ns, latest_ns = _instants(self._corners)
        if not self.believed:
            return lo_ns, hi_ns
        hidden_ns = (latest_ns - soonest_ns) / HIDES
        least_ns, most_ns = self._bounds(soonest_ns - hidden_ns, latest_ns + hidden_ns)
        return max(lo_ns, least_ns), min(hi_ns, most_ns)

    def _begin(self, lo_ns: int, hi_ns: int, period_ns: int) -> None:
        self._origin_ns, self._checks, self._agreed = lo_ns, 0, 0
        instants = -self._off_ns, hi_ns - lo_ns + self._off_ns
        short, long = period_ns * (1 - 1 / FIRST), period_ns * (1 + 1 / FIRST)
        self._corners = [(instants[0], short), (instants[1], short), (instants[1], long), (instants[0], long)]

    def _take(self, seen: list[Corner], *, close: bool) -> None:
        """Go on from a refresh. ``close``: its bounds were."""
        self._checks += close
        self._agreed += 1
        if self._agreed % FORGIVEN == 0:
            self._off_ns = max(self._off_ns // 2, self._least_off_ns)
        seen = _without_blunt(seen)
        count = len(seen)
        instant, period = sum(each[0] for each in seen) / count, sum(each[1] for each in seen) / count
        grown = ((a + FADES * (a - instant), p + FADES * (p - period)) for a, p in seen)
        moved_ns = round(instant)
        self._origin_ns += moved_ns
        self._corners = [(a - moved_ns, p) for a, p in grown]


def _later(corners: list[Corner], passed: int) -> list[Corner]:
    """Return the corners of the refresh so many later."""
    return [(instant + passed * period, period) for instant, period in corners]


def _instants(corners: list[Corner]) -> tuple[float, float]:
    """Return the soonest and the latest instant."""
    return min(corners)[0], max(corners)[0]


def _without_blunt(corners: list[Corner]) -> list[Corner]:
    """Return an area of at most CORNERS: those go that take the least of it with them.

    That is less than what it grows by at each refresh.
    """
    while len(corners) > CORNERS:
        sizes = [
            abs((b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1]))
            for a, b, c in zip(corners[-1:] + corners[:-1], corners, corners[1:] + corners[:1], strict=True)
        ]
        bluntest = sizes.index(min(sizes))
        corners = corners[:bluntest] + corners[bluntest + 1 :]
    return corners


def _cut(corners: list[Corner], instant_ns: float, *, above: bool) -> list[Corner]:
    """Return what is left of an area whose instants are above, or below, an instant; empty: nothing."""
    kept: list[Corner] = []
    for (a, p), (b, q) in pairwise([*corners, *corners[:1]]):
        inside, next_inside = (each == instant_ns or (each > instant_ns) == above for each in (a, b))
        if inside:
            kept.append((a, p))
        if inside != next_inside:
            kept.append((instant_ns, p + (q - p) * (instant_ns - a) / (b - a)))
    return kept
