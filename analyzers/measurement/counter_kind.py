"""The kind of a GPU's counter, identified by what explains its growth; the phases of steps it sees. Pure."""

from collections import deque
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from analyzers.measurement.knots import Floats, Ints, Knots
from analyzers.measurement.power_model import MAX_KINDS

MS = 1_000_000
WINDOWS_NS = tuple(ms * MS for ms in (10, 15, 20, 23, 25, 30, 40, 50, 60))
"""Boxcars that are distinguished (V100 10 ms, H100 PCIe about 23, A100 25: Yang, Adamek, Armour, SC24)."""
BETWEEN_NS = tuple(ms * MS for ms in (11, 12, 13, 17, 27, 33, 36, 45))
"""Others are stated only if they are clearly likelier."""
NEAR = (0.92, 0.94, 0.96, 0.98, 1.02, 1.04, 1.06, 1.08)
"""Once a width is stated, it is also compared with these times itself. One that is a tenth off puts steps of
20 ms off by 2 %."""
WIDEST_NS = round(max(NEAR) * WINDOWS_NS[-1])
"""So far before a refresh, what a boxcar saw of it begins."""
COVERED = 0.8
"""Phase coverage below which a sensor sees the same parts of steps again and again."""
PHASES = 20
"""Parts of a segment that are looked at, or not."""
LEAST_LOOKS, LEAST_SEGMENTS = 10, 6
"""Refreshes, and segments at work, that tell whether the sensor beats with the steps. Two steps of 500 ms,
begun alike in a refresh of 100 ms by chance, were taken for a beat: a quarter of all, half widths 45 %."""
MOST_LOOKS = 512
"""Calls of `CounterKnowledge.look` that are remembered."""
LOOKED_AHEAD_NS = 1_000_000_000
"""A look that was noted this much after a window may have been within it."""
LEAST_CHANGES = 3
"""Fewer single changes of power tell no kind."""
TOGETHER = 10
"""Refreshes that are compared at once."""
ENOUGH = 40
"""Refreshes needed before the kind of a counter is stated."""
SURE = 10.0
"""Logarithm of the likelihood ratio that is enough to tell it."""
UNMODELLED = 4
"""So many refreshes, compared, ask for a unit more: what is unlike the model speaks for a wrong kind as long
as it lasts. On seeds 1 and 2 of clean and noisy steps of 20, 50 and 130 ms that rest at the begin, the end or
the middle it did so by up to 0.2 a refresh (20/10 ms, noisy, 130 ms, at the begin); counters spoke for their
own kind by 0.03 to 2."""
SHORT_S = 0.02
"""Refreshes that take longer than this ask for less, before a counter is stated to integrate: on 100/25 ms,
none of the same loads spoke for it by more than 0.02 a refresh."""
SURER = 2.0
"""Times that, to revise it."""
CLOSER = 5.0
"""The same, to take a width for one that is near."""
UNSHARP = 0.02
"""Standard deviation of a width at least, as a part of it: no sensor forgets all at once."""
CHECK_NS = 8_000_000_000
"""Once it was stated, it is compared this often."""
PROVEN = 30.0
"""The same for hard bounds, which are false on a counter that sees a part of the time."""
CHECKED = 400
"""Refreshes after which a check begins again."""
OWN = np.array(
    (
        (0.0, 0.0, 0.0, 0.0, 0.0, 1.0),
        (0.15, 2e-4, 0.0, 0.0, 0.0, 1.0),
        (0.15, 2e-3, 0.0, 0.0, 0.0, 1.0),
        (0.5, 5e-4, 0.0, 0.0, 0.02, 0.01),
        (0.5, 5e-3, 0.0, 0.0, 0.02, 0.01),
        (0.15, 5e-4, 0.5, 0.0, 0.0, 0.01),
        (0.15, 5e-4, 0.0, 0.5, 0.0, 0.01),
    )
)
"""The scatter of a load, of which each rival takes what suits it: deviations of segments, lateness of
changes in s, deviations of the first and of the last part of each step, and noise within segments in s^0.5,
all times the mean power; and the least that all variances are scaled by. What was learned of the load would
speak for the rival under which it was learned."""
STEP_PARTS, PART_W = 8, 0.6
"""Each step is cut into so many parts, as long as each other. What the first of all steps draw beyond the
mean is not known, and so on: 0, give or take this times the mean power. A GPU that rests at the begin of each
step was taken for one that integrates, and one that rests at their end for a boxcar."""
OPEN = 10.0
"""While it is not stated, neither kind is more than exp(this) times as likely as the other."""

AROUND = 3
"""Refreshes before and after that of a change in which nothing else may change; the outer are compared."""
STEADY, GREAT = 0.05, 0.1
"""They differ by less than this part of the change, which is more than this part of the power."""
ALIKE = 0.2
"""All took as long as their median, give or take this part of it."""
SHOWN = 0.03
"""Standard deviation of the part that is shown."""
MEAN_LATE_S, LATE_S, PROMPT, FAR_S = 0.0005, 0.0015, 0.7, 0.5
"""Power is prompt with this probability: mean and deviation of its lateness. Else it comes within so much."""


class Compared(Struct, frozen=True):
    """Some refreshes, as each of m kinds of counter would have counted them; r refreshes, n kinds of parts.

    Refreshes within one segment share its deviation, so they are not independent. All is multiplied by the
    inverse of the Cholesky factor of that covariance; then they are.
    """

    shares: Floats
    """Shape (o, m, r, `STEP_PARTS` + n); o: `OWN`."""
    grown: Floats
    """Energy that the counter did count; shape (o, m, r)."""
    log_det: Floats
    """Logarithm of the determinant of that covariance; shape (o, m)."""
    steady: Floats
    """Sums of J s, s^2, J^2, and of the J^2 that are not known: power that never moves tells nothing."""
    expected: Floats
    """Mean of each before any was seen, and the inverse of its variance; shape (2, `STEP_PARTS` + n)."""


class Verdict(Struct, frozen=True):
    """The kind of a counter was stated."""

    another: bool
    """It is not the one that was taken for true."""
    normal: Floats
    """Sums of a regression on the kinds, as `PowerModel.relearn` takes them."""
    moment: Floats


class KnownCounter(Struct, frozen=True):
    """The kind of a GPU's counter, as earlier runs found it."""

    driver: str
    """Version, under which it is of this kind."""
    kind: "CounterKind"
    window_ns: int | None
    """Of a boxcar."""


CounterKind = Literal["integrating", "boxcar", "power"]


class Transitions:
    """The log likelihoods of the kinds of a counter, by single changes of power: starts and ends of epochs.

    Power that is steady before and after a change shows in the refresh around it how much of it was counted
    behind the change. A counter that integrates counts in proportion to the time that was left, so it mostly
    shows a part. One that sees the last ``w`` of each period shows all or nothing, but for changes
    within ``w``.

        P(shown | kind) = sum over l of P(l) N(shown; clip((left - l) / (T or w), 0, 1), SHOWN)

    How late power is behind its mark, l, is a mixture: mostly some milliseconds, else anything in `FAR_S`:
    a job that loads data first. So no single change says much for either kind.
    """

    def __init__(self, windows_ns: tuple[int, ...]) -> None:
        self.likely = np.zeros(1 + len(windows_ns))
        """Of one that integrates, then of each boxcar."""
        self.count = 0
        self._windows_s = np.array(windows_ns) / 1e9
        self._since_ns = -(2**62)

    def follow(self, knots: Knots, cut_ns: Ints, kind: Ints, close: int) -> None:
        """Take in the changes whose refreshes are there, each once; knots until ``close``.

        ``cut_ns``: when segments of a ``kind`` begin; shape (c,) each.
        """
        if close <= 2 * AROUND:
            return
        changed = np.flatnonzero(np.diff(kind)) + 1
        t_ns = cut_ns[changed]
        last_ns = int(knots.mid_ns[close - AROUND])
        fresh = np.flatnonzero((t_ns > self._since_ns) & (t_ns <= last_ns))
        for place in fresh.tolist():
            at = int(knots.mid_ns.searchsorted(t_ns[place]))
            if at > AROUND:
                around = slice(at - AROUND - 1, at + AROUND + 1)
                others = np.delete(t_ns, place)
                within = (others > knots.mid_ns[around.start]) & (others <= knots.mid_ns[around.stop - 1])
                if not within.any():
                    self._see(knots, around, int(t_ns[place]))
        self._since_ns = max(self._since_ns, last_ns)

    def _see(self, knots: Knots, around: slice, t_ns: int) -> None:
        """Take in one change, with the refreshes around it: that of the change is in the middle."""
        took_s, grown_j = np.diff(knots.mid_ns[around]) / 1e9, np.diff(knots.energy_uj[around]) / 1e6
        period_s = float(np.median(took_s))
        if np.ptp(knots.epoch[around]) or (np.abs(took_s - period_s) > ALIKE * period_s).any():
            return
        first, second, shown_w, third, fourth = (grown_j / took_s)[[0, 1, AROUND, -2, -1]].tolist()
        before_w, after_w = (first + second) / 2, (third + fourth) / 2
        change_w = after_w - before_w
        unsteady_w = max(abs(first - second), abs(third - fourth))
        if unsteady_w > STEADY * abs(change_w) or abs(change_w) < GREAT * max(before_w, after_w):
            return
        left_s = (int(knots.mid_ns[around][AROUND + 1]) - t_ns) / 1e9
        doubt_s = float(np.hypot(*knots.doubt_ns[around][AROUND : AROUND + 2])) / 1e9
        self.likely += self._log_likely((shown_w - before_w) / change_w, left_s, period_s, doubt_s)
        self.count += 1

    def _log_likely(self, shown: float, left_s: float, period_s: float, doubt_s: float) -> Floats:
        """Return the log likelihood of each kind that ``shown`` of a change was counted; shape (1 + m,)."""
        near_s = MEAN_LATE_S + np.hypot(LATE_S, doubt_s) * np.linspace(-3.0, 3.0, 61)
        weight = np.exp(-(np.linspace(-3.0, 3.0, 61) ** 2) / 2)
        far_s = np.linspace(-FAR_S, FAR_S, 1001)
        late_s = np.concatenate((near_s, far_s))
        weight = np.concatenate((PROMPT * weight / weight.sum(), np.full(1001, (1 - PROMPT) / 1001)))
        sees_s = np.append(period_s, self._windows_s)[:, None]
        part = np.clip((left_s - late_s) / sees_s, 0.0, 1.0)
        likely: Floats = np.log(np.exp(-(((shown - part) / SHOWN) ** 2) / 2) @ weight + 1e-6)
        likely[1:][0.7 * period_s <= self._windows_s] = -np.inf
        return likely


class CounterKnowledge:
    """The knowledge of one GPU's counter.

    ``suspect_ns``: the power sensor of this model may see so much of the time, and so may the counter. It is
    taken for one that integrates even then (the reverse error is the greater one), but nothing is certain.
    """

    def __init__(self, *, suspect_ns: int | None = None) -> None:
        self._suspect_ns = suspect_ns
        self.window_ns: int | None = None
        """Of a boxcar; None: the counter integrates, as far as is known."""
        self.window_doubt_ns = 0.0
        """Standard deviation of ``window_ns``: that much of a change of power at an end of a window may be
        booked on its other side."""
        self.kind: CounterKind | None = None
        """None: not known yet."""
        self.lag_ns: int | None = None
        """Of power readings: a mean is held from this much before its window ends. None: a counter."""
        self.proven = False
        """It has shown what only a counter that integrates shows."""
        self._by_changes = False
        """By `tell_by_changes`."""
        self._telling = True
        """It is worth to compare all refreshes."""
        self._checked = True
        """Its kind may be revised."""
        self._next_check_ns = 0
        self._born = 0
        self._period_s = 0.0
        self._seen_s = np.zeros(PHASES)
        """The share of each phase of recent segments at work that a boxcar saw."""
        self._looks: deque[tuple[int, int, int, float, Floats]] = deque(maxlen=MOST_LOOKS)
        """Of each `look`: until when, refreshes, segments (a long one counts as enough of them), their mean
        length, what it saw of each phase."""
        self._fresh_at, self._alike = 0, False
        self.windows_ns = WINDOWS_NS + BETWEEN_NS
        """Of the boxcars that are compared."""
        self._begin()

    def _begin(self) -> None:
        """Begin to compare: sums over refreshes, one for each rival: what integrates, then `windows_ns`."""
        if self.window_ns is not None:
            nearest = min(WINDOWS_NS, key=lambda far_ns: abs(far_ns - (self.window_ns or 0)))
            far_ns = tuple(each for each in WINDOWS_NS if each != nearest)
            near_ns = tuple(round(part * self.window_ns) for part in NEAR)
            self.windows_ns = (self.window_ns, *near_ns, *far_ns)
        self._compared, self._next_look = 0, TOGETHER
        self._apart, self._leap = 0.0, 0.0
        rivals, size = (len(OWN), 1 + len(self.windows_ns)), STEP_PARTS + MAX_KINDS
        self._normal, self._moment = np.zeros((*rivals, size, size)), np.zeros((*rivals, size))
        self._square, self._log_det = np.zeros(rivals), np.zeros(rivals)
        """Squares of what was counted, and of that nothing explains: kinds forgotten since are taken off."""
        self._steady = np.zeros(4)
        self._expected = np.zeros((2, size))

    @classmethod
    def of_power(cls, window_ns: int, lag_ns: int) -> "CounterKnowledge":
        """Return the counter that power readings are, added up, if each is the mean of ``window_ns``."""
        made = cls.of_kind("power", window_ns, checked=False)
        made.lag_ns = lag_ns
        return made

    @classmethod
    def of_kind(cls, kind: CounterKind, window_ns: int | None, *, checked: bool = True) -> "CounterKnowledge":
        """Return a counter of a kind that is known. ``checked``: it may be revised."""
        made = cls()
        made.kind, made.window_ns, made._telling, made._checked = kind, window_ns, False, checked
        made._begin()
        made.window_doubt_ns = UNSHARP * (window_ns or 0)
        made.proven = kind == "integrating"
        return made

    @property
    def revisable(self) -> bool:
        """Its kind may still turn out to be another."""
        return self._checked

    def due(self, t_ns: int) -> bool:
        """Return whether refreshes are to be compared: all until it is stated, some to check that."""
        if self._telling:
            return True
        if not self._checked or t_ns < self._next_check_ns:
            return False
        self._next_check_ns = t_ns + CHECK_NS
        return True

    def period_s(self, took_s: Floats) -> float:
        """Return how long a refresh takes. ``took_s``: the last ones; shape (r,)."""
        self._period_s = self._period_s or float(took_s[0])
        self._period_s += 0.5 * (float(np.median(took_s)) - self._period_s)
        return self._period_s

    def compare(self, seen: Compared, born: int) -> None:
        """Take in some refreshes. ``born``: kinds there have been so far."""
        if born != self._born:
            self._born, self._fresh_at = born, self._compared
        if not (count := seen.grown.shape[-1]):
            return
        n, turned = seen.shares.shape[-1], np.swapaxes(seen.shares, -1, -2)
        self._compared += count
        self._normal[..., :n, :n] += turned @ seen.shares
        self._moment[..., :n] += (turned @ seen.grown[..., None])[..., 0]
        self._square += (seen.grown**2).sum(axis=-1)
        self._log_det += seen.log_det
        self._steady += seen.steady
        self._expected[:, :n] = seen.expected
        if self._suspect_ns and self.kind is None:
            joint_j, square_s2, square_j2, doubt_j2 = self._steady.tolist()
            enough = self._compared - self._fresh_at >= ENOUGH
            self._alike = enough and square_j2 - joint_j**2 / square_s2 < 2 * doubt_j2

    def forget(self, number: int) -> None:
        """Keep what a kind explains, but not the kind: another will have its number."""
        number += STEP_PARTS
        row, moment = self._normal[..., number, :].copy(), self._moment[..., number].copy()
        known = row[..., number] > 0
        part = np.where(known, 1 / np.where(known, row[..., number], 1.0), 0.0)
        self._square -= part * moment**2
        self._moment -= (part * moment)[..., None] * row
        self._normal -= part[..., None, None] * row[..., :, None] * row[..., None, :]
        self._normal[..., number, :], self._normal[..., number] = 0.0, 0.0
        self._moment[..., number] = 0.0

    def alike(self, born: int) -> bool:
        """Return whether every kind of counter would have shown what this one did, so that its kind does not
        matter.

        ``born``: kinds of segments and changes so far; about one it has not seen nothing is known.
        """
        return self._alike and born == self._born and self._covered() >= COVERED

    @property
    def _fits(self) -> npt.NDArray[np.bool_]:
        return np.array([True, *(0.7 * self._period_s > np.array(self.windows_ns) / 1e9)])

    def _likely(self, *, by_expected: bool) -> Floats:
        """Return the log likelihood of `OWN` and each rival; a boxcar as wide as the period has none.

        ``by_expected``: a rival that explains the counter by means of kinds that are not expected, such as a
        gap that draws as much as a step, is less likely.
        """
        ridge = 1e-9 * np.eye(len(self._expected[0])) * (1 + self._normal[0, 0].trace())
        left = self._left(self._normal + ridge, self._moment, self._square)
        # What no rival explains makes all refreshes less certain; none is more certain than its instants.
        scale = np.maximum(left / self._compared, OWN[:, -1:])
        if by_expected:
            mean, precision = self._expected
            normal = self._normal / scale[..., None, None] + np.diag(np.where(precision > 0, precision, 1.0))
            moment = self._moment / scale[..., None] + precision * mean
            unlike = self._left(normal, moment, self._square / scale + precision @ mean**2)
        else:
            unlike = left / scale
        likely: Floats = -(self._compared * np.log(scale) + unlike + self._log_det) / 2
        return np.where(self._fits, likely, -np.inf)

    @staticmethod
    def _left(normal: Floats, moment: Floats, square: Floats) -> Floats:
        """Return the sum of squares that a regression leaves unexplained."""
        means = np.linalg.solve(normal, moment[..., None])[..., 0]
        left: Floats = square - (moment * means).sum(axis=-1)
        return left

    @property
    def boxcar_share(self) -> float:
        """The probability that it is a boxcar, while its kind is not stated."""
        if self._compared < TOGETHER:
            return 0.5
        likely = self._likely(by_expected=True).max(axis=0)
        return float(1 / (1 + np.exp(np.clip(likely[0] - likely[1:].max(), -OPEN, OPEN))))

    def tell(self) -> Verdict | None:
        """Tell the counter's kind, or revise it, if that is possible by now."""
        if self._compared < self._next_look or self._alike:
            return None
        self._next_look = self._compared + max(TOGETHER, self._compared // 8)
        each = self._likely(by_expected=True)
        likely = each.max(axis=0)
        best = int(np.argmax(likely))
        if self.window_ns is None and best:
            listed = 1 + self._nearest(likely[1 : 1 + len(WINDOWS_NS)])
            best = best if likely[best] - likely[listed] > CLOSER + self._unmodelled(listed) else listed
        apart = float(likely[best] - (likely[1:].max() if best == 0 else likely[0]))
        was = 0 if self.window_ns is None else 1 + self.windows_ns.index(self.window_ns)
        lasting = self._lasting(float(likely[0] - likely[1:].max()))
        if self.kind is None or bool(best) != bool(was):
            sure = SURE if self._telling else SURER * SURE
            unmodelled = self._compared / UNMODELLED
            if best == 0:  # what is within steps shows more to short refreshes
                unmodelled *= min(SHORT_S / self._period_s, 1.0)
            told = apart > sure + unmodelled if best else apart > 2 * sure + unmodelled and lasting > SURE
            told &= self._compared >= (2 * ENOUGH if best else ENOUGH)
        else:  # of another width
            sure = SURE + self._unmodelled(was) if self.window_ns in WINDOWS_NS else CLOSER
            told = best != was and likely[best] - likely[was] > sure and self._compared >= ENOUGH
        windows_ns = np.array(self.windows_ns)
        verdict = self._become(best, int(np.argmax(each[:, best]))) if told else None
        if self.window_ns is not None:
            weight = np.exp(likely[1:] - likely[1:].max())
            off_ns = float(np.sqrt(weight @ (windows_ns - self.window_ns) ** 2 / weight.sum()))
            self.window_doubt_ns = max(off_ns, UNSHARP * self.window_ns)
        if self._telling:
            self.proven = best == 0 and (self._by_changes or (lasting > SURE and self._shown() > PROVEN))
        self.proven &= self.kind == "integrating"
        if self.kind is not None and self._compared >= CHECKED:
            self._telling = False
            self._begin()
        return verdict

    def _unmodelled(self, known: int) -> float:
        """Return how much the edges of a load may speak against a width that is right, and published or not.

        By a quarter of a unit a refresh (mixed edges, 50 ms, 20/10 ms, seeds 62000 and 91000; with 1/8 in
        place of 1/2, 10 ms became 11.6), and by 0.3 against 20 ms where a width of 18 ms was right.
        """
        published = self.windows_ns[known - 1] == self._suspect_ns
        return self._compared / (2 if published else UNMODELLED)

    def tell_by_changes(self, seen: Transitions) -> Verdict | None:
        """Tell the counter's kind, or prove it, by single changes of power, if that is possible by now.

        They say little of a width: the suspected one is taken for it.
        """
        if self.proven or self.kind == "boxcar" or seen.count < LEAST_CHANGES or self._suspect_ns is None:
            return None
        best = 1 + self._nearest(seen.likely[1:])
        apart = float(seen.likely[0] - seen.likely[1:].max())
        if apart > PROVEN:
            self.proven = self._by_changes = True
        if self.kind is not None or abs(apart) < SURE:
            return None
        self._alike = False
        return self._become(0 if apart > 0 else best, 1)

    def _nearest(self, likely: Floats) -> int:
        """Return which of `windows_ns` is likeliest: the suspected one, unless another is clearly so."""
        best = int(np.argmax(likely))
        if self._suspect_ns in self.windows_ns:
            suspected = self.windows_ns.index(self._suspect_ns)
            return suspected if likely[best] - likely[suspected] < SURE else best
        return best

    def _become(self, best: int, own: int) -> Verdict:
        """Take the counter for a rival. ``own``: the scatter under which its means are taken."""
        window_ns = self.windows_ns[best - 1] if best else None
        normal, moment = self._normal[own, best], self._moment[own, best]
        steps, kinds = slice(STEP_PARTS), slice(STEP_PARTS, None)
        explained = normal[steps, steps] + np.diag(self._expected[1, steps])
        part = np.linalg.solve(explained, normal[steps, kinds]).T
        normal, moment = (
            normal[kinds, kinds] - part @ normal[steps, kinds],
            moment[kinds] - part @ moment[steps],
        )
        verdict = Verdict(window_ns != self.window_ns, normal, moment)
        if verdict.another:
            self._seen_s[:] = 0.0
        self.kind, self.window_ns = "boxcar" if best else "integrating", window_ns
        self.window_doubt_ns = UNSHARP * (window_ns or 0)
        if best and verdict.another:
            self._begin()
        return verdict

    def _lasting(self, apart: float) -> float:
        """Return how much likelier it is that it integrates without what spoke most for it between two looks.

        A single ramp that took longer than others says e^51 (a counter of 20/10 ms, steps of 500 ms, mixed
        edges, seed 63001): it had hard bounds.
        """
        self._apart, self._leap = apart, max(self._leap, apart - self._apart)
        return apart - self._leap

    def _shown(self) -> float:
        """Return how much likelier it is, whatever was expected, that it integrates than any boxcar; log."""
        likely = self._likely(by_expected=False).max(axis=0)
        return float(likely[0] - likely[1:].max())

    def look(
        self,
        begin_s: Floats,
        length_s: Floats,
        refresh_s: Floats,
        fade: float = 1.0,
        until_ns: int = 0,
        refreshes: int = 0,
    ) -> None:
        """Note which phases of segments at work a boxcar (the narrowest, while nothing is known) looked at.

        Segments of shape (s,), ends of looks of shape (r,). ``fade``: of earlier looks. ``refreshes``: new
        ones.
        """
        window_s = (self.window_ns or WINDOWS_NS[0]) / 1e9
        edges = begin_s[:, None] + length_s[:, None] * np.linspace(0.0, 1.0, PHASES + 1)
        until = np.clip(edges[..., None] - (refresh_s - window_s), 0.0, window_s).sum(axis=2)
        self._seen_s *= fade
        seen_each_s, segments = np.diff(until, axis=1), len(length_s)
        if len(refresh_s) > 1:  # a segment of many refreshes is seen all over, also where they are forgotten
            often = length_s > LEAST_LOOKS * float(np.diff(refresh_s).mean())
            seen_each_s[often] = window_s
            segments += LEAST_SEGMENTS * int(often.sum())
        seen_s = seen_each_s.sum(axis=0)
        self._seen_s += seen_s
        mean_s = float(length_s.mean()) if len(length_s) else 0.0
        self._looks.append((until_ns, refreshes, segments, mean_s, seen_s))

    def beats(self, begin_ns: int, end_ns: int) -> bool | None:
        """Return whether the sensor looked at the same phases of steps again and again, all through a window;
        None: it has not looked often enough to tell.

        Of a window with less than `LEAST_LOOKS` refreshes or `LEAST_SEGMENTS`, those before it count, too. It
        beats if the phases seen are `COVERED` of those that looks at random would have seen, or less.
        """
        if self.window_ns is None:
            return False
        seen_s, looks, segments, lengths_s = np.zeros(PHASES), 0, 0, []
        for until_ns, refreshes, ended, length_s, phases_s in reversed(self._looks):
            if until_ns <= begin_ns and looks >= LEAST_LOOKS and segments >= LEAST_SEGMENTS:
                break
            if until_ns - LOOKED_AHEAD_NS <= end_ns and length_s > 0:
                seen_s += phases_s
                looks += refreshes
                segments += ended
                lengths_s.append(length_s)
        if looks < LEAST_LOOKS or segments < LEAST_SEGMENTS:
            return None
        chance = min(self.window_ns / 1e9 / float(np.mean(lengths_s)) + 1 / PHASES, 1.0)
        expected = 1 - (1 - chance) ** looks
        return float(np.mean(seen_s > 0.0)) < COVERED * expected

    @property
    def bounded(self) -> bool:
        """It counts all that is used, as it has shown or as is published: there are hard bounds."""
        return self.proven or (self.kind != "boxcar" and not self._suspect_ns)

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
        return self.window_ns is not None or (self._suspect_ns is not None and self.kind is None)
