"""The driver's own timestamps of refreshes, and by how much they narrow the bounds that reads give. Pure.

A field's timestamp may be the instant of its refresh, or anything else: NVML does not say. So it is believed
as far as reads have confirmed it:

    CHECKS refreshes, bounded closely by two reads, had their timestamps between these
        both were within the widest of these bounds, so no timestamp was off by more
    every later refresh            its bounds shrink to that much about its timestamp
    a timestamp within a read      it may be that of the call, and confirms nothing
    a timestamp out of its bounds  none is believed any more, until the device is found again
"""

CHECKS = 30
TRIES = 4 * CHECKS
"""Refreshes that are bounded closely to confirm timestamps, however slow reads are."""
CLOSE_NS, CLOSE_READS = 2_000_000, 5
"""Bounds are close if they are within the first, or within so many reads where those are slow."""
STEP_NS = 100_000
"""The wall clock, by which timestamps are, may move by this from read to read. More is a step of it."""


class RefreshStamps:
    """The timestamps of one device."""

    def __init__(self) -> None:
        self._tries = self._checks = 0
        self._widest_ns = 0
        self._wrong = False
        self._wall_ns: int | None = None

    @property
    def believed(self) -> bool:
        """Tell whether bounds are narrowed by them."""
        return self._checks >= CHECKS and not self._wrong

    @property
    def doubtful(self) -> bool:
        """Tell whether they are worth reads that confirm them."""
        return 0 < self._tries < TRIES and not self._wrong and not self.believed

    def on_monotonic(self, stamp_us: int, wall_ns: int) -> int | None:
        """Return a timestamp on CLOCK_MONOTONIC, ns; None: the wall clock was stepped since the last read.

        ``stamp_us``: us since 1970. ``wall_ns``: what the wall clock shows above the monotonic one.
        """
        before_ns, self._wall_ns = self._wall_ns, wall_ns
        if before_ns is None or abs(wall_ns - before_ns) > STEP_NS:
            return None
        return stamp_us * 1000 - wall_ns

    def narrow(self, lo_ns: int, hi_ns: int, stamp_ns: int, took_ns: int = 0) -> tuple[int, int]:
        """Return the bounds of a refresh, by reads and by its timestamp. ``took_ns``: of a read."""
        self._tries += 1
        if not lo_ns - STEP_NS <= stamp_ns <= hi_ns + STEP_NS:
            self._wrong = True
        between = lo_ns + took_ns + STEP_NS < stamp_ns < hi_ns - took_ns - STEP_NS
        if between and hi_ns - lo_ns <= max(CLOSE_NS, CLOSE_READS * took_ns):
            self._checks += 1
            self._widest_ns = max(self._widest_ns, hi_ns - lo_ns)
        if not self.believed:
            return lo_ns, hi_ns
        off_ns = self._widest_ns + STEP_NS
        return max(lo_ns, stamp_ns - off_ns), min(hi_ns, stamp_ns + off_ns)
