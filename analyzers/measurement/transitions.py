"""Evidence of a counter's kind at single changes of power: the start of a run, the end of an epoch. Pure.

Power that is steady before and after a change shows in the refresh around it how much of it was counted
behind the change. A counter that integrates counts in proportion to the time that was left, so it mostly shows a
part. One that sees the last ``w`` of each period shows all or nothing, unless the change fell within ``w``.

    P(shown | kind) = sum over l of P(l) N(shown; clip((left - l) / (T or w), 0, 1), NOISE)

How late power is behind its mark, l, is a mixture: mostly some milliseconds, else anything within `FAR_S`: a job
that loads data first. So no single change says much for either kind.
"""

import numpy as np

from analyzers.measurement.cuts import Cuts
from analyzers.measurement.knots import Floats, Knots

AROUND = 3
"""Refreshes before and after that of a change in which nothing else may change; the two outer ones are compared."""
STEADY, LEAST = 0.05, 0.1
"""They differ by less than this part of the change, which is more than this part of the power."""
REGULAR = 0.2
"""All took as long as their median, give or take this part of it."""
NOISE = 0.03
"""Standard deviation of the part that is shown."""
LATE_S, LATELY_S, PROMPT, FAR_S = 0.0005, 0.0015, 0.7, 0.5
"""Power is prompt with this probability: mean and deviation of its lateness. Else it comes within so much."""


class Transitions:
    """The log likelihoods of the kinds of a counter, by the changes that were seen."""

    def __init__(self, windows_ns: tuple[int, ...]) -> None:
        self.likely = np.zeros(1 + len(windows_ns))
        """Of one that integrates, then of each boxcar."""
        self.count = 0
        self._windows_s = np.array(windows_ns) / 1e9
        self._since_ns = -(2**62)

    def follow(self, knots: Knots, cuts: Cuts, close: int) -> None:
        """Take in the changes of kind whose refreshes are there, each once; knots until ``close``."""
        if close <= 2 * AROUND:
            return
        changed = np.flatnonzero(np.diff(cuts.kind[0])) + 1
        t_ns = cuts.t_ns[changed]
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
        if np.ptp(knots.epoch[around]) or (np.abs(took_s - period_s) > REGULAR * period_s).any():
            return
        first, second, shown_w, third, fourth = (grown_j / took_s)[[0, 1, AROUND, -2, -1]].tolist()
        before_w, after_w = (first + second) / 2, (third + fourth) / 2
        change_w = after_w - before_w
        unsteady_w = max(abs(first - second), abs(third - fourth))
        if unsteady_w > STEADY * abs(change_w) or abs(change_w) < LEAST * max(before_w, after_w):
            return
        left_s = (int(knots.mid_ns[around][AROUND + 1]) - t_ns) / 1e9
        doubt_s = float(np.hypot(*knots.doubt_ns[around][AROUND : AROUND + 2])) / 1e9
        self.likely += self._log_likely((shown_w - before_w) / change_w, left_s, period_s, doubt_s)
        self.count += 1

    def _log_likely(self, shown: float, left_s: float, period_s: float, doubt_s: float) -> Floats:
        """Return the log likelihood of each kind that ``shown`` of a change was counted; shape (1 + m,)."""
        near_s = LATE_S + np.hypot(LATELY_S, doubt_s) * np.linspace(-3.0, 3.0, 61)
        weight = np.exp(-(np.linspace(-3.0, 3.0, 61) ** 2) / 2)
        far_s = np.linspace(-FAR_S, FAR_S, 1001)
        late_s = np.concatenate((near_s, far_s))
        weight = np.concatenate((PROMPT * weight / weight.sum(), np.full(1001, (1 - PROMPT) / 1001)))
        sees_s = np.append(period_s, self._windows_s)[:, None]
        part = np.clip((left_s - late_s) / sees_s, 0.0, 1.0)
        likely: Floats = np.log(np.exp(-(((shown - part) / NOISE) ** 2) / 2) @ weight + 1e-6)
        likely[1:][0.7 * period_s <= self._windows_s] = -np.inf
        return likely
