"""The kind of a GPU's counter, identified by what explains its growth; the phases of steps it sees. Pure."""

from collections import deque
from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from analyzers.measurement.knots import Floats
from analyzers.measurement.power_model import MAX_KINDS
from analyzers.results.rows import GpuRow

WINDOWS_NS = (10_000_000, 15_000_000, 20_000_000, 23_000_000, 25_000_000, 30_000_000, 50_000_000)
"""Boxcars that are distinguished (V100 10 ms, H100 PCIe about 23, A100 25: Yang, Adamek, Armour, SC24)."""
WINDOWS_S = np.array(WINDOWS_NS) / 1e9
COVERED = 0.8
"""Phase coverage below which a sensor sees the same parts of steps again and again."""
PHASES = 20
"""Parts of a segment that are looked at, or not."""
LEAST_LOOKS = 10
"""Refreshes that tell whether the sensor beats with the steps."""
MOST_LOOKS = 512
"""Calls of `Counter.look` that are remembered."""
LOOKED_AHEAD_NS = 1_000_000_000
"""A look that was noted this much after a window may have been within it."""
TOGETHER = 10
"""Refreshes that are compared at once."""
ENOUGH = 40
"""Refreshes needed before the kind of a counter is stated."""
SURE = 10.0
"""Logarithm of the likelihood ratio that is enough to tell it."""
SURER = 2.0
"""Times that, to revise it."""
CHECK_NS = 8_000_000_000
"""Once it was stated, it is compared this often."""
CHECKED = 400
"""Refreshes after which a check begins again."""
NARROW = 1.2
"""A boxcar's width is revised for one that leaves this much less unexplained."""
OPEN = 5.0
"""While it is not stated, neither kind is more than exp(this) times as likely as the other."""


class Verdict(Struct, frozen=True):
    """The kind of a counter was stated."""

    another: bool
    """It is not the one that was taken for true."""
    normal: Floats
    """Sums of a regression on the kinds, as `analyzers.measurement.power_model.Kinds.relearn` takes them."""
    moment: Floats


class KnownCounter(Struct, frozen=True):
    """The kind of a GPU's counter, as earlier runs found it."""

    driver: str
    """Version, under which it is of this kind."""
    kind: "CounterKind"
    window_ns: int | None
    """Of a boxcar: one of `WINDOWS_NS`."""


def known_counters(gpus: Iterable[GpuRow]) -> dict[str, KnownCounter]:
    """Return the kinds of counters that are known, by GPU."""
    found: dict[str, KnownCounter] = {}
    for row in gpus:
        if row.counter_kind == "integrating":
            found[row.gpu] = KnownCounter(row.driver, "integrating", None)
        elif row.counter_kind == "boxcar" and row.sensor_window_ms is not None:
            window_ns = round(row.sensor_window_ms * 1e6)
            if window_ns in WINDOWS_NS:
                found[row.gpu] = KnownCounter(row.driver, "boxcar", window_ns)
    return found


CounterKind = Literal["integrating", "boxcar", "power"]


class Counter:
    """The knowledge of one GPU's counter.

    Args:
        suspect: the power sensor of this model sees a part of the time, and so may the counter. It is taken
            for one that integrates even then (the reverse error is the greater one), but nothing is certain.
    """

    def __init__(self, *, suspect: bool = False) -> None:
        self._suspect = suspect
        self.window_ns: int | None = None
        """Of a boxcar; None: the counter integrates, as far as is known."""
        self.kind: CounterKind | None = None
        """None: not known yet."""
        self.lag_ns: int | None = None
        """Of power readings: a mean is held from this much before its window ends. None: a counter."""
        self._telling = True
        """It is worth to compare all refreshes."""
        self._checked = True
        """Its kind may be revised."""
        self._next_check_ns = 0
        self._born = 0
        self._period_s = 0.0
        self._seen_s = np.zeros(PHASES)
        """The share of each phase of recent segments at work that a boxcar saw."""
        self._looks: deque[tuple[int, int, float, Floats]] = deque(maxlen=MOST_LOOKS)
        """Of each `look`: until when, refreshes, mean length of the segments, what it saw of each phase."""
        self._fresh_at, self._alike = 0, False
        self._begin()

    def _begin(self) -> None:
        """Begin to compare: sums over refreshes, one for each rival: what integrates, then WINDOWS_NS."""
        self._compared, self._next_look = 0, ENOUGH
        self._normal = np.zeros((1 + len(WINDOWS_NS), MAX_KINDS, MAX_KINDS))
        self._moment = np.zeros((1 + len(WINDOWS_NS), MAX_KINDS))
        self._settled = np.zeros(1 + len(WINDOWS_NS))
        """Squares that kinds forgotten since explain."""
        self._square = self._doubt = 0.0
        self._steady = np.zeros(2)

    @classmethod
    def of_power(cls, window_ns: int, lag_ns: int) -> "Counter":
        """Return the counter that power readings are, added up, if each is the mean of ``window_ns``."""
        made = cls.of_kind("power", window_ns, checked=False)
        made.lag_ns = lag_ns
        return made

    @classmethod
    def of_kind(cls, kind: CounterKind, window_ns: int | None, *, checked: bool = True) -> "Counter":
        """Return a counter of a kind that is known. ``checked``: it may be revised."""
        made = cls()
        made.kind, made.window_ns, made._telling, made._checked = kind, window_ns, False, checked
        return made

    def due(self, t_ns: int) -> bool:
        """Return whether refreshes are to be compared: all until it is stated, some to check that."""
        if self._telling:
            return True
        if not self._checked or t_ns < self._next_check_ns:
            return False
        self._next_check_ns = t_ns + CHECK_NS
        return True

    def compare(self, shares: Floats, grown_j: Floats, took_s: Floats, doubt_s: Floats, born: int) -> None:
        """Take in some refreshes.

        Args:
            shares: what each rival would have counted of each kind in each; shape (1 + windows, r, n).
            grown_j: what the counter did count; shape (r,).
            took_s: shape (r,).
            doubt_s: standard deviation of ``took_s``, by what is not known of its instants; shape (r,).
            born: kinds there have been so far.
        """
        if born != self._born:
            self._born, self._fresh_at = born, self._compared
        if not len(took_s):
            return
        self._period_s = self._period_s or float(took_s[0])
        self._period_s += 0.5 * (float(np.median(took_s)) - self._period_s)
        # Not where refreshes were missed, or seen late.
        regular = (np.abs(took_s / self._period_s - 1) < 0.1) & (doubt_s < 0.05 * self._period_s)
        shares, grown_j, took_s = shares[:, regular], grown_j[regular], took_s[regular]
        n = shares.shape[2]
        turned = shares.transpose(0, 2, 1)
        self._compared += len(grown_j)
        self._normal[:, :n, :n] += turned @ shares
        self._moment[:, :n] += turned @ grown_j
        self._square += float(grown_j @ grown_j)
        self._steady += grown_j @ took_s, took_s @ took_s
        self._doubt += float(((doubt_s[regular] * grown_j / took_s) ** 2).sum())
        if self._suspect and self.kind is None:
            enough = self._compared - self._fresh_at >= ENOUGH
            self._alike = bool(enough and self._left().max(where=self._fits, initial=0.0) < 2 * self._doubt)

    def forget(self, number: int) -> None:
        """Keep what a kind explains, but not the kind: another will have its number."""
        known = self._normal[:, number, number] > 0
        row, moment = self._normal[:, number].copy(), self._moment[:, number].copy()
        part = np.where(known, 1 / np.where(known, row[:, number], 1.0), 0.0)
        self._settled += part * moment**2
        self._moment -= part[:, None] * row * moment[:, None]
        self._normal -= part[:, None, None] * row[:, :, None] * row[:, None, :]
        self._normal[:, number], self._normal[:, :, number], self._moment[:, number] = 0.0, 0.0, 0.0

    def alike(self, born: int) -> bool:
        """Return whether every kind of counter would have shown what this one did: then its kind is not
        known, and does not matter.

        Args:
            born: kinds of segments and changes there have been; about one it has not seen nothing is known.
        """
        return self._alike and born == self._born and self._covered() >= COVERED

    @property
    def _fits(self) -> npt.NDArray[np.bool_]:
        return np.array([True, *(0.7 * self._period_s > WINDOWS_S)])

    def _left(self) -> Floats:
        """Return what each rival leaves unexplained, J^2."""
        ridge = 1e-9 * np.eye(MAX_KINDS) * (1 + self._normal[0].trace())
        means = np.linalg.solve(self._normal + ridge, self._moment[..., None])[..., 0]
        left: Floats = np.maximum(self._square - self._settled - (self._moment * means).sum(axis=1), 0.0)
        return left

    def _rivals(self) -> Floats:
        """Return what each rival leaves unexplained, J^2; infinite for a boxcar as wide as the period."""
        unexplained: Floats = np.where(self._fits, self._left() + self._doubt, np.inf)
        return unexplained

    @property
    def boxcar_share(self) -> float:
        """The probability that it is a boxcar, while its kind is not stated."""
        if self._compared < TOGETHER:
            return 0.5
        left = self._rivals()
        likelier = self._compared / 2 * float(np.log(left[0] / left[1:].min()))
        return float(1 / (1 + np.exp(-np.clip(likelier, -OPEN, OPEN))))

    def tell(self) -> Verdict | None:
        """Tell the counter's kind, or revise it, if that is possible by now."""
        if self._compared < self._next_look:
            return None
        self._next_look = self._compared + max(TOGETHER, self._compared // 8)
        left = self._rivals()
        best = int(np.argmin(left))
        if self.kind is not None and not self._telling:
            verdict = self._revised(left, best)
        else:
            verdict = self._first(left, best) if self._apart(left, best, SURE) else None
        if self.kind is not None and not self._telling and (verdict or self._compared >= CHECKED):
            self._begin()
        return verdict

    def _apart(self, left: Floats, best: int, sure: float) -> bool:
        """Return whether one kind explains the growth so much better that it is the kind."""
        against = left[1:].min() if best == 0 else left[0]
        joint, square = self._steady
        steady = self._square - joint**2 / square + self._doubt
        # To take an integrating counter for a boxcar would give up its bounds.
        apart, least = (1.1, ENOUGH) if best == 0 else (1.5, 2 * ENOUGH)
        likely = self._compared / 2 * np.log(against / left[best]) > sure
        if not likely or against < apart * left[best] or steady < 3 * left[best] or self._compared < least:
            return False
        # Else all explain it about as well as its instants are known: steps in time with refreshes.
        return bool(against >= 3 * self._doubt)

    def _first(self, left: Floats, best: int) -> Verdict:
        # Widths close to each other are compared a little longer.
        near = np.sort(left[1:])[:2]
        self._telling = bool(best and self._compared <= 5 * ENOUGH and near[1] < NARROW * near[0])
        return self._became(left, best)

    def _revised(self, left: Floats, best: int) -> Verdict | None:
        """Return another verdict than the one that is being checked, if there is reason for it."""
        was = 0 if self.window_ns is None else 1 + WINDOWS_NS.index(self.window_ns)
        if bool(best) == bool(was):
            same = best == was or left[was] < NARROW * left[best] or self._compared < 2 * ENOUGH
            return None if same else self._became(left, best)
        return self._became(left, best) if self._apart(left, best, SURER * SURE) else None

    def _became(self, left: Floats, best: int) -> Verdict:
        window_ns = WINDOWS_NS[best - 1] if best else None
        another = window_ns != self.window_ns
        self.kind, self.window_ns = "boxcar" if best else "integrating", window_ns
        if another:
            self._seen_s[:] = 0.0
        each = left[best] / self._compared
        return Verdict(another, self._normal[best] / each, self._moment[best] / each)

    def look(
        self,
        begin_s: Floats,
        length_s: Floats,
        refresh_s: Floats,
        fade: float = 1.0,
        until_ns: int = 0,
        refreshes: int = 0,
    ) -> None:
        """Note which phases of segments at work a boxcar (the narrowest, while nothing is known) looked at,
        at refreshes; the earlier looks fade.

        Args:
            begin_s: of each segment; ``length_s``: how long it is; shape (s,).
            refresh_s: when each look of the sensor was over; shape (r,).
            fade: of the looks before.
            until_ns: instant until which these were.
            refreshes: that are new since the call before.
        """
        window_s = (self.window_ns or WINDOWS_NS[0]) / 1e9
        edges = begin_s[:, None] + length_s[:, None] * np.linspace(0.0, 1.0, PHASES + 1)
        until = np.clip(edges[..., None] - (refresh_s - window_s), 0.0, window_s).sum(axis=2)
        self._seen_s *= fade
        seen_s = np.diff(until, axis=1).sum(axis=0)
        self._seen_s += seen_s
        self._looks.append((until_ns, refreshes, float(length_s.mean()) if len(length_s) else 0.0, seen_s))

    def beats(self, begin_ns: int, end_ns: int) -> bool | None:
        """Return whether the sensor looked at the same phases of steps again and again, all through a window;
        None: it has not looked often enough to tell.

        Of a window with less than `LEAST_LOOKS` refreshes, those before it count, too. It beats if the phases
        seen are `COVERED` of those that looks at random would have seen, or less.
        """
        seen_s, looks, lengths_s = np.zeros(PHASES), 0, []
        for until_ns, refreshes, length_s, phases_s in reversed(self._looks):
            if until_ns <= begin_ns and looks >= LEAST_LOOKS:
                break
            if until_ns - LOOKED_AHEAD_NS <= end_ns and length_s > 0:
                seen_s += phases_s
                looks += refreshes
                lengths_s.append(length_s)
        if looks < LEAST_LOOKS or not lengths_s:
            return None
        window_s = (self.window_ns or WINDOWS_NS[0]) / 1e9
        chance = min(window_s / float(np.mean(lengths_s)) + 1 / PHASES, 1.0)
        expected = 1 - (1 - chance) ** looks
        return float(np.mean(seen_s > 0.0)) < COVERED * expected

    @property
    def bounded(self) -> bool:
        """It counts all that is used, as far as is known: there are hard bounds."""
        return self.kind == "integrating" or (self.kind is None and not self._suspect)

    @property
    def phase_coverage(self) -> float | None:
        """Return the share of the phases of steps and windows that the sensor has seen recently.

        A phase counts once it got a tenth of the looks it would have if they were spread evenly. None: the
        counter is not known well enough, or has not looked at ten windows' worth of them yet.
        """
        if self.kind is None or self.kind == "integrating":
            return None if self.kind is None else 1.0
        if self.window_ns is None or self._seen_s.sum() < 10 * self.window_ns / 1e9:
            return None
        return self._covered()

    def _covered(self) -> float:
        return float(np.mean(self._seen_s > 0.1 * self._seen_s.sum() / PHASES))

    @property
    def looks(self) -> bool:
        """The phases that it saw matter."""
        return self.window_ns is not None or (self._suspect and self.kind is None)
