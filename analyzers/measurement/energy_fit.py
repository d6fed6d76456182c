"""The dependence of a GPU's power on its events, learned from its counter: energy within a refresh. Pure.

Events cut time into segments, each of a *kind*: the phases of the GPU's sessions (step, gap between steps,
innermost named window) and the power limit in force. The model is Gaussian:

    power of a segment      mean of its kind, and a deviation of its own, constant within it
    change of kind          an energy, lacking or in excess within EDGE_NS after it: late starts, ramps; or,
                            where the counter shows it, before: marks that came late
    power within a segment  white noise on top, at rest of its own: no event says what is done then
    counter at a change     energy until then; the change lies within two stamps, the figure is in whole mJ

What the kinds draw is learned from the past only (`power_model`). The energy at an instant is its
expectation given the refreshes around it, the interval that contains it and one after included; its variance
comes with it. An energy that was given stays: windows that share an edge add up.

A boxcar counter (each refresh adds the mean power of the last ``window_ns``, times the period) is the same
model observed through another row. Its total says nothing of what it did not see. Which of the two a counter
is, it shows itself (`analyzers.measurement.counter_kind`).
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from analyzers.measurement.counter_kind import (
    TOGETHER,
    WIDEST_NS,
    CounterKind,
    CounterKnowledge,
    Transitions,
    Verdict,
)
from analyzers.measurement.cuts import Cuts, Mark, Parts
from analyzers.measurement.fixed_energies import (
    FIT_FAILED,
    MAX_POINTS,
    NEIGHBOURS,
    SHED,
    EnergyPoints,
    Fixed,
    LeftOut,
    Written,
)
from analyzers.measurement.knots import REFRESH_NS, Floats, Ints, Knots, RefreshTimes
from analyzers.measurement.observation import (
    Believed,
    Observation,
    Posterior,
    Stretch,
    boxcar,
    counted_by_rivals,
    integrating,
    solve,
    strayed_j2,
)
from analyzers.measurement.power_model import MEMORY_S, PowerModel, Role
from analyzers.measurement.timeline import Timeline

EVENTS_ARRIVE_NS = 60_000_000
"""All events of an instant have arrived when a frame is this much later: they come every 20 ms."""
WAIT_NS = 160_000_000
"""A window is measured this long after the refresh past its end: by then its events, and one refresh more
of a counter of 100 ms, are there."""
BEFORE, AFTER, BLOCK = 4, 3, 8
"""Refreshes before and after those under way that are taken into account, and refreshes under way at once."""
AGO_NS, AHEAD_NS = 1_500_000_000, 200_000_000
"""The same in time, at the most."""
EDGE_OVER_NS = 2_500_000
"""So long behind a change of kind it is not known how much of it is over: changes are ramps, or late."""
EDGE_DOUBT_S = 0.00015
"""Times the change of power, the deviation of the energy there."""
CROWDED = 1_024
"""Points at which it is worth to forget some."""
RECENT_NS = 5_000_000_000
"""Points kept whatever is asked."""
_NUMERIC = (ArithmeticError, LookupError, ValueError)
"""Failures of linear algebra, and of readings whose times contradict each other."""


class EnergyFit:
    """The model of one GPU. Memory is bounded by MAX_KINDS, MAX_CUTS and MAX_POINTS."""

    def __init__(self, kinds: PowerModel | None = None) -> None:
        self.counter = CounterKnowledge()
        self._kinds = kinds or PowerModel()
        self._cuts = Cuts()
        self._refreshes = RefreshTimes()
        self._transitions = Transitions(self.counter.windows_ns)
        self._fixed_ns: int | None = None
        self._compared_ns = 0
        """Refreshes until then have been compared with what each kind of counter would have counted."""
        self._points = EnergyPoints()
        self._crowded = CROWDED
        self.left_out = LeftOut()
        self.rival: EnergyFit | None = None
        """The same under the other hypothesis, that the counter is a boxcar, while either may be right."""

    @property
    def kind(self) -> CounterKind | None:
        """See `analyzers.measurement.counter_kind.CounterKnowledge`."""
        return self.counter.kind

    @property
    def proven_kind(self) -> CounterKind | None:
        """The kind that later runs may begin with: what only looks as if it integrated is not remembered."""
        return self.kind if self.window_ns or self.counter.bounded else None

    @property
    def window_ns(self) -> int | None:
        """See `analyzers.measurement.counter_kind.CounterKnowledge`."""
        return self.counter.window_ns

    @property
    def sure(self) -> bool:
        """The interval can be stated: the counter's kind is known, or assumed, or does not matter."""
        known = self.kind is not None or self.rival is not None
        return known or self.counter.bounded or self.alike

    @property
    def alike(self) -> bool:
        """Every kind of counter would have shown the same: steps used what each of them says."""
        return self.counter.alike(self._kinds.born)

    def suspect(self, window_ns: int | None) -> None:
        """Say how much of the time the counter may see, until it shows whether it does; None: all."""
        if self.kind is None:
            self.counter, self.rival = CounterKnowledge(suspect_ns=window_ns), None
            self._transitions = Transitions(self.counter.windows_ns)
            if window_ns is not None:
                self.rival = EnergyFit()
                self.rival.counter = CounterKnowledge.of_kind("boxcar", window_ns, checked=False)

    def remember(self, kind: CounterKind, window_ns: int | None) -> None:
        self.counter, self.rival = CounterKnowledge.of_kind(kind, window_ns), None

    @property
    def undecided(self) -> bool:
        """Its kind decides what steps used, and may be known or proven soon."""
        likely = self.rival is not None or (self.kind == "integrating" and not self.counter.bounded)
        return likely and not self.alike

    # ---- what happens ----------------------------------------------------------------------------------

    def mark(self, who: str, t_ns: int, phase: str | None, uncertainty_ns: int = 0) -> None:
        """From ``t_ns`` (+- ``uncertainty_ns``) on, ``who`` is in this phase; None: it is over."""
        self.mark_all(((t_ns, who, phase, uncertainty_ns),))

    def mark_all(self, marks: Sequence[Mark]) -> None:
        self._cuts.mark(marks)
        if self.rival is not None:
            self.rival.mark_all(marks)

    def advance(self, timeline: Timeline, until_ns: int, now_ns: int) -> None:
        """Fix the energy until the refresh past ``until_ns``, if it is there.

        ``now_ns``: frame time; of the last EVENTS_ARRIVE_NS some events may not have arrived yet.
        """
        self._follow(timeline)
        if self.rival is not None:
            self.rival.advance(timeline, until_ns, now_ns)
        knots = timeline.knots()
        if not timeline.follows_events or (self._fixed_ns or 0) >= until_ns:
            return
        if self._cuts.none:
            return  # no events, no shape
        usable = int(np.searchsorted(knots.hi_ns, now_ns - EVENTS_ARRIVE_NS, side="right"))
        close = min(int(np.searchsorted(knots.lo_ns, until_ns)), usable - 1)
        if close < 1:
            return
        knots = self._placed(knots, min(usable - 1, close + AFTER + BLOCK))
        begin = 0 if self._fixed_ns is None else int(np.searchsorted(knots.mid_ns, self._fixed_ns))
        if begin >= close:
            return
        epochs = list(_epochs(knots.epoch[:usable], begin, close))
        self._consume(timeline, int(knots.mid_ns[epochs[-1][1]]))
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                for first, last in epochs:
                    end = min(close, last)
                    for at in range(max(begin, first), end, BLOCK):
                        self._solve(knots, max(first, at - BEFORE), at, min(at + BLOCK, end), last)
                self._compare(knots, epochs[-1][0], close)
        except _NUMERIC:
            self._give_up(int(knots.mid_ns[begin]), int(knots.mid_ns[close]))

    def identify(self, timeline: Timeline, now_ns: int) -> bool:
        """Compare refreshes with every kind of counter, and fix nothing. Return whether its kind is open."""
        self._follow(timeline)
        knots = timeline.knots()
        close = int(knots.hi_ns.searchsorted(now_ns - EVENTS_ARRIVE_NS, side="right")) - 1
        if self.undecided and timeline.follows_events and close > 0:
            if self._cuts.crowded:
                return False
            others = np.flatnonzero(np.diff(knots.epoch[: close + 1]))
            first = int(others[-1]) + 1 if len(others) else 0
            knots = self._placed(knots, close)
            self._consume(timeline, int(knots.mid_ns[close]))
            try:
                self._compare(knots, first, close)
            except _NUMERIC:
                self._give_up(int(knots.mid_ns[first]), int(knots.mid_ns[close]))
        return self.undecided

    def _placed(self, knots: Knots, last: int) -> Knots:
        """Return the knots, with those that matter from now on placed as closely as they are known."""
        compared_ns = knots.hi_ns[max(last - 2 * BLOCK * TOGETHER, 0)]
        since_ns = int(compared_ns if self._fixed_ns is None else min(compared_ns, self._fixed_ns))
        return self._refreshes.placed(knots, since_ns - AGO_NS, last)

    def shed(self, timeline: Timeline, until_ns: int) -> None:
        """Leave what is not fixed yet to straight lines, unless the counter misses a part of the time."""
        since_ns = self._fixed_ns or 0
        if timeline.follows_events and self.counter.bounded and since_ns < until_ns:
            self._consume(timeline, until_ns)
            self.left_out.add(since_ns, until_ns, SHED)
            self._fixed_ns = until_ns

    def _give_up(self, begin_ns: int, end_ns: int) -> None:
        """Leave a stretch to straight lines after a numeric failure, and begin a new model behind it."""
        self.left_out.add(begin_ns, end_ns, FIT_FAILED)
        self._fixed_ns, self._kinds = end_ns, PowerModel()
        self._cuts.begin()
        self.counter = CounterKnowledge() if self.kind is None else self.counter

    def _follow(self, timeline: Timeline) -> None:
        """Take the counter for what it is where that is known: power readings added up, or a filled one.

        A collector fills a counter whose card says that it integrates.
        """
        sensor = timeline.sensor
        if timeline.sampled and self.counter.revisable:
            self.counter, self.rival = CounterKnowledge.of_kind("integrating", None, checked=False), None
        if timeline.estimator == "power":
            if sensor.window_ns is not None and self.counter.lag_ns is None:
                self.counter, self.rival = CounterKnowledge.of_power(sensor.window_ns, sensor.lag_ns), None
        elif self.counter.lag_ns is not None:
            self.suspect(sensor.window_ns)

    def learned(self) -> tuple[PowerModel, EnergyPoints] | None:
        """Return what was learned and fixed; None: nothing was."""
        return None if self._fixed_ns is None else (self._kinds, self._points)

    def _consume(self, timeline: Timeline, until_ns: int) -> None:
        """Cut time at the marks until an instant."""
        self._cuts.consume(timeline.limits_or_absent, until_ns, self._kinds)
        for number in self._kinds.reused:
            self.counter.forget(number)
        self._kinds.reused.clear()

    # ---- what follows ----------------------------------------------------------------------------------

    def _solve(self, knots: Knots, k0: int, begin: int, end: int, last: int) -> None:
        """Fix the energies within refreshes ``begin`` to ``end``, from those between ``k0`` and ``last``."""
        mid_ns, counter = knots.mid_ns, self.counter
        k0 = max(k0, int(mid_ns.searchsorted(mid_ns[begin] - AGO_NS)))
        last = max(min(last, end + AFTER, int(mid_ns.searchsorted(mid_ns[end] + AHEAD_NS))), end)
        stretch = Stretch.of(knots, k0, last)
        self._kinds.begin(stretch.t[-1], stretch.y[-1])
        parts = self._cuts.parts(stretch.base_ns, int(mid_ns[last]), self._kinds.mean_w)
        mean, unsure, spread, noise_w2s = self._kinds.parameters()
        believed = Believed(
            mean=mean,
            unsure=unsure,
            spread=spread,
            noise_w2s=noise_w2s,
            own=spread[parts.kind] + parts.spread,
        )
        old_ns, fresh_ns = self._asked(mid_ns[begin : end + 1], stretch.base_ns)
        point_t = (np.concatenate((old_ns, fresh_ns)) - stretch.base_ns) / 1e9
        power_w, moved_w = self._power_at(mid_ns[k0 : last + 1], mean)
        var_j2 = stretch.var_j2(power_w) + (EDGE_DOUBT_S * moved_w) ** 2
        about = stretch, parts, point_t, noise_w2s[parts.kind], var_j2
        sums = counter.window_ns is None or stretch.skips
        if sums:
            seen = integrating(*about)
        else:
            seen = boxcar(*about, counter, self._cuts.t_ns, self._refreshes.period_s)
        found = solve(seen, parts, believed, point_t, float(stretch.took.mean()))
        if sums and counter.window_ns is not None:
            unseen_s = (REFRESH_NS - counter.window_ns) / 1e9
            found.joint_j2[:] += strayed_j2(parts, mean, point_t, unseen_s)
        energy_uj = stretch.base_uj + found.energy_j * 1e6
        written = Written(t_ns=fresh_ns, energy_uj=energy_uj, joint_j2=found.joint_j2)
        self._points.write(written, knots, int(knots.epoch[end]), tied=counter.window_ns is None)
        self._fixed_ns = int(mid_ns[end])
        inside = slice(begin - k0, end - k0)
        self._learn(stretch, seen, parts, believed, found, inside, sums=sums)
        if counter.looks:
            self._look(stretch, parts, inside)

    def _power_at(self, t_ns: Ints, mean: Floats) -> tuple[Floats, Floats]:
        """Return the power at instants, and its change at a mark just before; W, shape (n,) each."""
        cuts = self._cuts
        segment = cuts.t_ns.searchsorted(t_ns, side="right") - 1
        power_w, before_w = mean[cuts.kind[0, [segment, np.maximum(segment - 1, 0)]]]
        moved_w = np.where(t_ns - cuts.t_ns[segment] < EDGE_OVER_NS, power_w - before_w, 0.0)
        return np.maximum(power_w, 0.1 * self._kinds.mean_w), moved_w

    def _asked(self, mid_ns: Ints, base_ns: int) -> tuple[Ints, Ints]:
        """Return the last instants fixed since ``base_ns``, and those to fix at and between some knots."""
        cuts = self._cuts.t_ns[slice(*self._cuts.t_ns.searchsorted(mid_ns[[0, -1]]))]
        fresh_ns = np.sort(np.concatenate((cuts, mid_ns)))
        old_ns = self._points.t_ns[-NEIGHBOURS:]
        newest_ns = old_ns[-1] if len(old_ns) else fresh_ns[0] - 1
        fresh_ns = fresh_ns[(fresh_ns > newest_ns) & (np.append(fresh_ns[1:], -1) != fresh_ns)]
        return old_ns[old_ns >= base_ns], fresh_ns

    def _learn(
        self,
        stretch: Stretch,
        seen: Observation,
        parts: Parts,
        believed: Believed,
        found: Posterior,
        inside: slice,
        *,
        sums: bool,
    ) -> None:
        """Learn from the refreshes ``inside``, each once; equations (8) to (11).

        ``sums``: they were observed as a counter that integrates shows them.
        """
        kinds, counter, inverse, left = self._kinds, self.counter, found.inverse, found.left
        rows = seen.rows[: seen.count]
        rows_kind = rows @ found.of_part
        taken, taken_kind = (_each(each, inside) if sums else each[inside] for each in (rows, rows_kind))
        doubt_j2 = (seen.var_j2[1:] + seen.var_j2[:-1]) if sums else seen.doubt_j2
        doubt = taken_kind @ believed.noise_w2s + doubt_j2[inside]
        grown, took = stretch.grown[inside], stretch.took[inside]
        doubts_j2 = (taken * believed.own) @ taken.T
        doubts_j2.reshape(-1)[:: len(took) + 1] += doubt
        if sums:  # what is not known of an instant is in the refresh before it and, the other way, behind it
            between = seen.var_j2[1:][inside][:-1]
            doubts_j2.reshape(-1)[1 :: len(took) + 1] -= between
            doubts_j2.reshape(-1)[len(took) :: len(took) + 1] -= between
        kinds.regress(taken_kind, took, grown, doubts_j2)  # (8)
        # Without one of them, the others say of a refresh: left / certain less, give or take 1 / certain. (9)
        certain = inverse.diagonal()[inside]
        told = ~taken_kind[:, kinds.role[: len(believed.mean)] == Role.REST].any(axis=1)
        kinds.tested(left[inside][told] ** 2 / certain[told])
        over = parts.over(stretch.t[inside.start], stretch.t[inside.stop])
        rows_over = rows[:, over]
        gram = rows_over.T @ inverse @ rows_over
        kinds.deviated(parts.kind[over], left @ rows_over, gram, believed.spread)  # (10)
        if sums:
            since = left[::-1].cumsum()[::-1][inside]
            sure = inverse[::-1, ::-1].cumsum(axis=0).cumsum(axis=1).diagonal()[::-1][inside]
            kinds.flickered(taken_kind, since, sure, believed.noise_w2s)  # (11)
        else:  # each figure has noise of its own
            assert counter.window_ns is not None
            sees_s = taken[:, : len(parts.kind) // 2]
            shows = _share(sees_s) * sees_s.sum(axis=1) / (counter.window_ns / 1e9)
            kinds.flickered(shows[:, None] * taken_kind, left[inside], certain, believed.noise_w2s)

    def _look(self, stretch: Stretch, parts: Parts, inside: slice) -> None:
        """Note which phases of the segments that are over a boxcar looked at."""
        half = len(parts.kind) // 2
        over = parts.over(stretch.t[inside.start], stretch.t[inside.stop])[:half]
        work = over & (self._kinds.role[parts.kind[:half]] == Role.WORK)
        fade = float(np.exp(-stretch.took[inside].sum() / MEMORY_S))
        until_ns = stretch.base_ns + round(stretch.t[inside.stop] * 1e9)
        self.counter.look(
            *(parts.begin[:half][work], parts.length[:half][work], stretch.looked(self.counter), fade),
            *(until_ns, inside.stop - inside.start),
        )

    def _compare(self, knots: Knots, first: int, close: int) -> None:
        """Compare the refreshes until ``close`` with what each kind of counter would have counted."""
        mid_ns = knots.mid_ns
        if close - first < TOGETHER or Stretch.of(knots, close - TOGETHER, close).skips:
            return  # sums of many refreshes are alike for every kind
        if self.kind is None or (self.kind == "integrating" and not self.counter.bounded):
            kind = self._cuts.kind[0]
            alike = np.where(self._kinds.role[kind] == Role.REST, self._cuts.kind[0, 0], kind)
            self._transitions.follow(knots, self._cuts.t_ns, alike, close)
            if (verdict := self.counter.tell_by_changes(self._transitions)) is not None:
                self._take(verdict)
                return
        begin = max(first, int(mid_ns.searchsorted(self._compared_ns)), close - BLOCK * TOGETHER)
        if close - begin < TOGETHER or not self.counter.due(int(mid_ns[close])):
            return
        self._compared_ns = int(mid_ns[close])
        took_s, grown_j = (
            np.diff(mid_ns[begin : close + 1]) / 1e9,
            np.diff(knots.energy_uj[begin : close + 1]) / 1e6,
        )
        if self.alike and (knots.doubt_ns[begin : close + 1] > 0).all():
            mean_w = grown_j.sum() / took_s.sum()
            doubt_j = mean_w * knots.doubt_ns[begin : close + 1] / 1e9
            if ((grown_j - mean_w * took_s) ** 2).sum() < 4 * (doubt_j**2).sum():
                return  # power still does not move
        parts = self._cuts.parts(int(mid_ns[begin] - WIDEST_NS), int(mid_ns[close]), self._kinds.mean_w)
        seen = counted_by_rivals(knots, begin, close, parts, self._kinds, self.counter)
        self.counter.compare(seen, self._kinds.born)
        if (verdict := self.counter.tell()) is not None:
            self._take(verdict)

    def _take(self, verdict: Verdict) -> None:
        """Go on with the kind of counter that this one showed itself to be."""
        rival, self.rival = self.rival, None
        learned = None if rival is None or rival.window_ns != self.window_ns else rival.learned()
        if learned is not None:
            self._kinds, self._points = learned
        elif verdict.another or self._fixed_ns is None:
            # Of a job that was not measured yet, these refreshes are learned from once more.
            weight = 0.5 if self._fixed_ns is None else 1.0
            self._kinds.relearn(weight * verdict.normal, weight * verdict.moment)
            if self.counter.bounded:
                self._points = EnergyPoints()  # they had gone apart from what it counted

    # ---- what is known ---------------------------------------------------------------------------------

    def at(self, t_ns: Ints, epoch: Ints) -> Fixed:
        """Return the energies at instants, where they were fixed. ``epoch``: of the counter, at each."""
        return self._points.at(t_ns, epoch, 0.3 * self._kinds.mean_w)

    def variance(self, fixed: Fixed) -> Floats:
        """Return the variance of the energies of windows, J^2, fixed at begins, then ends; shape (2n,)."""
        return self._points.variance(fixed, tied=self.window_ns is None) * self._kinds.calibration

    @property
    def crowded(self) -> bool:
        """There is so much that `forget` is worth its while."""
        return self._points.size > self._crowded

    def forget(self, needed_ns: Iterable[int]) -> None:
        """Forget all energies but the recent ones and those on either side of the instants still needed."""
        if self.rival is not None:
            self.rival.forget(needed_ns := tuple(needed_ns))
        t_ns = self._points.t_ns
        if not len(t_ns):
            return
        keep = t_ns >= t_ns[-1] - RECENT_NS
        needed = np.fromiter(needed_ns, np.int64)
        right = np.searchsorted(t_ns, needed)
        keep[np.minimum(right, len(keep) - 1)] = True
        keep[np.maximum(right - 1, 0)] = True
        self._points.keep(np.flatnonzero(keep))
        self._crowded = min(max(CROWDED, 2 * self._points.size), MAX_POINTS)


def _epochs(epoch: Ints, begin: int, close: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last knot of each epoch of the counter that has one from begin to close."""
    ends = np.append(np.flatnonzero(np.diff(epoch)), len(epoch) - 1).tolist()
    for first, last in pairwise((-1, *ends)):
        if last >= begin and first + 1 <= close:
            yield first + 1, last


def _share(sees_s: Floats) -> npt.NDArray[np.bool_]:
    """Return which refreshes saw mostly what one beside them saw: only these tell noise from deviations.

    ``sees_s``: of each segment; shape (r, s).
    """
    both_s, own_s = np.minimum(sees_s[1:], sees_s[:-1]).sum(axis=1), sees_s.sum(axis=1)
    share = np.zeros(len(own_s), np.bool_)
    share[1:] |= both_s > own_s[1:] / 2
    share[:-1] |= both_s > own_s[:-1] / 2
    return share


def _each(sums: Floats, inside: slice) -> Floats:
    """Return by how much sums grew in each refresh ``inside``; rows are sums since the first knot."""
    taken: Floats = sums[inside].copy()
    earlier = slice(max(inside.start - 1, 0), inside.stop - 1)
    taken[int(inside.start == 0) :] -= sums[earlier]
    return taken
