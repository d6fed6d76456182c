"""A GPU's clock on the host's, by bounds. Pure.

An event in a GPU's queue has a stamp of the GPU's clock. It completed between two instants of the host's
clock: after it was recorded or last seen incomplete, and before it was seen complete. With

    host = gpu + offset + drift * gpu

each event cuts what (offset, drift) can be. What is left is a convex polygon of a few corners, however many
events there were. Where an event lies on the host's clock follows from the corners, as bounds that hold.
"""

from dataclasses import dataclass

MAX_DRIFT = 500e-6
"""Of one clock against the other. Crystals differ by tens of 1e-6; NTP turns the host's by at most this."""
SPAN_NS = 20_000_000_000
"""The drift is taken as constant for so long, and for half as long at least."""
SLACK_NS = 2_000
"""By which a bound may be wrong: 0.5 us resolution of the GPU's stamps, rounding, and a drift that wanders.
The drift is wrong by 1 us for each 0.4e-6 that it changes by within SPAN_NS."""

SAME_NS = 0.01
"""Corners that differ by less, at any time within SPAN_NS, are one."""

Corner = tuple[float, float]
"""Offset in ns, drift."""


@dataclass(slots=True)
class _Fit:
    """Sums over the events since ``gpu_ns``. Offsets count from the first event, so that floats hold them."""

    gpu_ns: int
    host_ns: int
    corners: list[Corner]

    @classmethod
    def starting(cls, gpu_ns: int, low_ns: int, high_ns: int) -> "_Fit":
        low, high = float(-SLACK_NS), float(high_ns - low_ns + SLACK_NS)
        corners = [(low, -MAX_DRIFT), (high, -MAX_DRIFT), (high, MAX_DRIFT), (low, MAX_DRIFT)]
        return cls(gpu_ns, low_ns, corners)

    def cut(self, gpu_ns: int, low_ns: int, high_ns: int) -> bool:
        """Take in an event. Returns False if no line agrees with this one and those before."""
        since, zero = gpu_ns - self.gpu_ns, self.host_ns + gpu_ns - self.gpu_ns
        self.corners = _below(self.corners, since, 1, high_ns - zero + SLACK_NS)
        self.corners = _below(self.corners, since, -1, zero - low_ns + SLACK_NS)
        return bool(self.corners)

    def bounds_ns(self, gpu_ns: int) -> tuple[int, int]:
        since = gpu_ns - self.gpu_ns
        offsets = [offset + drift * since for offset, drift in self.corners]
        zero = self.host_ns + since
        return zero + round(min(offsets)), zero + round(max(offsets))


class DeviceClock:
    """One GPU's clock on one host's. Events go in in the order of the queue."""

    def __init__(self) -> None:
        self._fit: _Fit | None = None
        self._next: _Fit | None = None
        """Takes over when `_fit` is SPAN_NS old."""
        self._latest_ns = 0
        self.restarts = 0
        """How often no line agreed with all events: a clock was set, or its drift changed at once."""

    def observe(self, gpu_ns: int, low_ns: int, high_ns: int) -> None:
        """Take in an event at ``gpu_ns`` of the GPU's clock, between two instants of the host's."""
        fit, follower = self._fit, self._next
        if fit is None or follower is None or gpu_ns - self._latest_ns > SPAN_NS:
            self._fit = self._next = _Fit.starting(gpu_ns, low_ns, high_ns)
        elif not (fit.cut(gpu_ns, low_ns, high_ns) and follower.cut(gpu_ns, low_ns, high_ns)):
            self.restarts += 1
            self._fit = self._next = _Fit.starting(gpu_ns, low_ns, high_ns)
        elif gpu_ns - follower.gpu_ns >= SPAN_NS // 2:
            self._fit, self._next = follower, _Fit.starting(gpu_ns, low_ns, high_ns)
        self._latest_ns = gpu_ns

    def place(self, gpu_ns: int, low_ns: int, high_ns: int) -> tuple[int, int]:
        """Return the bounds, ns of the host's clock, of an event whose own are ``low_ns`` and ``high_ns``."""
        if self._fit is None or gpu_ns < self._fit.gpu_ns:
            return low_ns, high_ns
        low, high = self._fit.bounds_ns(gpu_ns)
        low, high = max(low, low_ns), min(high, high_ns)
        return (low, high) if low <= high else (low_ns, high_ns)


def _below(corners: list[Corner], since: int, sign: int, bound: float) -> list[Corner]:
    """Return the part of a convex polygon where ``sign * (offset + drift * since) <= bound``."""
    over = [sign * (offset + drift * since) - bound for offset, drift in corners]
    if max(over, default=0) <= 0:
        return corners
    kept: list[Corner] = []
    for (here, over_here), (there, over_there) in zip(
        zip(corners, over, strict=True), zip(corners[1:] + corners[:1], over[1:] + over[:1], strict=True),
        strict=True,
    ):  # fmt: skip
        if over_here <= 0:
            kept.append(here)
        if (over_here <= 0) != (over_there <= 0):
            part = over_here / (over_here - over_there)
            kept.append((here[0] + part * (there[0] - here[0]), here[1] + part * (there[1] - here[1])))
    # Lines through one corner make it again and again.
    return [here for here, there in zip(kept, kept[1:] + kept[:1], strict=True) if not _same(here, there)]


def _same(here: Corner, there: Corner) -> bool:
    return abs(here[0] - there[0]) < SAME_NS and abs(here[1] - there[1]) < SAME_NS / SPAN_NS
