"""How power follows the events of a GPU, learned from its counter: energy within a refresh. Pure.

Events cut time into segments, each of a *kind*: the phases of the GPU's sessions (step, gap between steps,
innermost named window) and the power limit in force. The model is Gaussian:

    power of a segment      mean of its kind, and a deviation of its own, constant within it
    change of kind          an energy, lacking or in excess within EDGE_NS after it: late starts, ramps; or,
                            where the counter shows it, before: marks that came late
    power within a segment  white noise on top, at rest of its own: what is done then nobody told
    counter at a change     energy until then; the change lies within two stamps, the figure is in whole mJ

What the kinds draw is learned from the past only (`power_model`). The energy at an instant is its
expectation given the refreshes around it, the interval that contains it and one after included; its variance
comes with it. An energy that was given stays: windows that share an edge add up.

A boxcar counter (each refresh adds the mean power of the last ``window_ns``, times the period) is the same
model observed through another row. Its total says nothing of what it did not see. Which of the two a counter
is, it shows itself (`analyzers.measurement.counter_kind`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analyzers.measurement.counter_kind import TOGETHER, WINDOWS_NS, WINDOWS_S, Counter, CounterKind
from analyzers.measurement.fixed_energies import MAX_POINTS, NEIGHBOURS, Points
from analyzers.measurement.knots import Knots
from analyzers.measurement.power_model import MEMORY_S, Floats, Ints, Kinds, Role, State
from analyzers.measurement.timeline import Timeline

HEARD_NS = 60_000_000
"""Events of an instant have been heard when a frame is this much later: they come every 20 ms."""
WAIT_NS = 160_000_000
"""A window is measured this long after the refresh past its end: by then its events, and one refresh more
of a counter of 100 ms, are there."""
EDGE_NS = 2_000_000
"""A change of kind is over."""
BELIEVED = 1.5
"""Standard deviations from which on a change's energy begins to say on which side of its mark it lies."""
BRIEF_NS = 200_000
"""What lasts less is left out: a step that begins as soon as the last has ended follows it without a gap."""
BEFORE, AFTER, BLOCK = 4, 3, 8
"""Refreshes before and after those under way that are taken into account, and refreshes under way at once."""
AGO_NS, AHEAD_NS = 1_500_000_000, 200_000_000
"""The same in time, at the most."""
MAX_CUTS = 4_096
MAX_LEFT_OUT = 16
"""Stretches remembered that were not fitted; the oldest go."""
FIT_FAILED = "the energy fit failed: by the counter alone"
SHED = "the analyzer was behind: by the counter alone"
CROWDED = 1_024
"""Points at which it is worth to forget some."""
RECENT_NS = 5_000_000_000
"""Points kept whatever is asked."""
QUANTUM_J = 1e-3


class _Mark(NamedTuple):
    t_ns: int
    order: int
    who: str
    phase: str | None
    uncertainty_ns: int


class Fixed(NamedTuple):
    """Energies at instants; shape (n,) each."""

    known: npt.NDArray[np.bool_]
    energy_uj: Ints
    var: Floats
    """J^2."""
    point: Ints
    """The point at the instant, or the last before it."""


@dataclass(slots=True)
class _Parts:
    """Segments and changes of kind within a stretch; shape (c,) each. Seconds from its beginning."""

    begin: Floats
    length: Floats
    scale: Floats
    """What x counts: 1 for segments (J per W), 1/length for changes (J per J)."""
    kind: Ints
    spread: Floats
    """Variance, beside that of the kind."""

    def until(self, t: Floats) -> Floats:
        """Return what each part had counted by instants; shape (t, c)."""
        shares: Floats = np.minimum(np.maximum(t[:, None] - self.begin, 0.0), self.length) * self.scale
        return shares


def _early(
    before: Ints, after: Ints, change_j: Floats, change_j2: Floats, mean: Floats, unsure: Floats
) -> Floats:
    """Return which part of the energy of changes of kind came before their marks, 0 to 1; shape (c,).

    Where power rises and more was used than the marks let expect, it rose before: the mark came late.
    Likewise where it falls and less was used. Else power came late, or in a ramp, behind the mark.

    Args:
        before: kinds of the segments before and (``after``) after the changes; shape (c,).
        change_j: energies of the changes, expected; ``change_j2``: their variances, J^2.
        mean: power of each kind; ``unsure``: its covariance.
    """
    rise_w = mean[after] - mean[before]
    rise_w2 = unsure[after, after] + unsure[before, before] - 2 * unsure[after, before]
    early = (change_j * rise_w > 0) & (rise_w**2 > rise_w2)
    believed = 1 - BELIEVED**2 * change_j2 / np.maximum(change_j**2, QUANTUM_J**2)
    return np.where(early, np.maximum(believed, 0.0), 0.0)


class Shape:
    """What has been learned of one GPU. Memory is bounded by MAX_KINDS, MAX_CUTS and MAX_POINTS."""

    def __init__(self, kinds: Kinds | None = None) -> None:
        self.counter = Counter()
        self._kinds = kinds or Kinds()
        self._order = 0
        self._marks: list[_Mark] = []
        self._state: dict[str, str] = {}
        self._limit_mw: int | None = None
        self._cut_ns = np.full(1, -(2**60), np.int64)
        self._cut_kind = np.zeros((2, 1), np.int64)
        """Kind of the segment that begins, and of the change."""
        self._cut_spread_s = np.zeros(1)
        self._fixed_ns: int | None = None
        self._compared_ns = 0
        """Refreshes until then have been compared with what each kind of counter would have counted."""
        self._points = Points()
        self._crowded = CROWDED
        self._left_out: list[tuple[int, int, str]] = []

    @property
    def kind(self) -> CounterKind | None:
        """See `analyzers.measurement.counter_kind.Counter`."""
        return self.counter.kind

    @property
    def window_ns(self) -> int | None:
        """See `analyzers.measurement.counter_kind.Counter`."""
        return self.counter.window_ns

    @property
    def phase_coverage(self) -> float | None:
        """See `analyzers.measurement.counter_kind.Counter`."""
        return self.counter.phase_coverage

    @property
    def sure(self) -> bool:
        """The interval can be told: the counter's kind is known, or does not matter."""
        return self.kind is not None or self.counter.bounded or self.counter.alike(self._kinds.born)

    def beats(self, begin_ns: int, end_ns: int) -> bool | None:
        """See `analyzers.measurement.counter_kind.Counter`. A counter that sees all never does."""
        return False if self.window_ns is None else self.counter.beats(begin_ns, end_ns)

    def suspect(self, *, blind: bool) -> None:
        """Say whether the counter may see a part of the time only, until it shows whether it does."""
        if self.kind is None:
            self.counter = Counter(suspect=blind)

    # ---- what happens ----------------------------------------------------------------------------------

    def mark(self, who: str, t_ns: int, phase: str | None, uncertainty_ns: int = 0) -> None:
        """From ``t_ns`` (+- ``uncertainty_ns``) on, ``who`` is in this phase; None: it is over."""
        self._order += 1
        self._marks.append(_Mark(t_ns, self._order, who, phase, uncertainty_ns))
        if len(self._marks) > MAX_CUTS:
            del self._marks[: MAX_CUTS // 2]  # nothing was measured for long

    def advance(self, timeline: Timeline, until_ns: int, now_ns: int) -> None:
        """Fix the energy until the refresh past ``until_ns``, if it is there.

        Args:
            now_ns: frame time; of the last HEARD_NS not all events may have been heard.
        """
        self._follow(timeline)
        knots = timeline.knots()
        if not timeline.follows_events or (self._fixed_ns or 0) >= until_ns:
            return
        if len(self._cut_ns) == 1 and not self._marks:
            return  # no events, no shape
        usable = int(np.searchsorted(knots.hi_ns, now_ns - HEARD_NS, side="right"))
        close = min(int(np.searchsorted(knots.lo_ns, until_ns)), usable - 1)
        if close < 1:
            return
        begin = 0 if self._fixed_ns is None else int(np.searchsorted(knots.mid_ns, self._fixed_ns))
        others = np.flatnonzero(np.diff(knots.epoch[:usable]))
        first = int(others[others < close][-1]) + 1 if (others < close).any() else 0
        last = int(others[others >= close][0]) if (others >= close).any() else usable - 1
        begin = max(begin, first)
        if begin >= close:
            return
        self._consume(timeline, int(knots.mid_ns[last]))
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                for at in range(begin, close, BLOCK):
                    self._solve(knots, max(first, at - BEFORE), at, min(at + BLOCK, close), last)
                if self.counter.telling:
                    self._compare(knots, first, close)
        except np.linalg.LinAlgError:
            self._give_up(int(knots.mid_ns[begin]), int(knots.mid_ns[close]))

    def shed(self, timeline: Timeline, until_ns: int) -> None:
        """Leave what is not fixed yet to straight lines: there is no time for it.

        Of a counter that misses a part of the time they mean nothing: that is never left out.
        """
        begin_ns = self._fixed_ns or 0
        if not timeline.follows_events or not self.counter.bounded or begin_ns >= until_ns:
            return
        self._consume(timeline, until_ns)
        self._leave_out(begin_ns, until_ns, SHED)

    def left_out(self, begin_ns: int, end_ns: int) -> str | None:
        """Return why energies between two instants were not fitted, if that is known and was so of late."""
        return next(
            (why for since_ns, until_ns, why in self._left_out if begin_ns < until_ns and end_ns > since_ns),
            None,
        )

    def _leave_out(self, begin_ns: int, end_ns: int, why: str) -> None:
        self._left_out = [*self._left_out[1 - MAX_LEFT_OUT :], (begin_ns, end_ns, why)]
        self._fixed_ns = end_ns

    def _give_up(self, begin_ns: int, end_ns: int) -> None:
        """Leave a stretch to straight lines after a numeric failure, and begin a new model behind it."""
        self._leave_out(begin_ns, end_ns, FIT_FAILED)
        self._kinds = Kinds()
        self._cut_ns, self._cut_kind = self._cut_ns[:1] * 0 - 2**60, np.zeros((2, 1), np.int64)
        self._cut_spread_s = np.zeros(1)
        self.counter = Counter() if self.kind is None else self.counter

    def _follow(self, timeline: Timeline) -> None:
        """Take the counter for what it is where that is known of the sensor: power readings, added up."""
        sensor = timeline.sensor
        if timeline.estimator == "power":
            if sensor.window_ns is not None and self.counter.lag_ns is None:
                self.counter = Counter.of_power(sensor.window_ns, sensor.lag_ns)
        elif self.counter.lag_ns is not None:
            self.counter = Counter(suspect=sensor.blind)

    def _consume(self, timeline: Timeline, until_ns: int) -> None:
        """Turn marks into cuts."""
        due = sorted(mark for mark in self._marks if mark.t_ns <= until_ns)
        if not due:
            return
        self._marks = [mark for mark in self._marks if mark.t_ns > until_ns]
        stamps = [mark.t_ns for mark in due]
        limits = timeline.limits_mw(stamps, stamps)
        newest_ns = int(self._cut_ns[-1])
        fresh: list[tuple[int, int, int, int]] = []
        state, brief = self._now(), False
        following_ns = [*stamps[1:], stamps[-1] + BRIEF_NS]
        for mark, limit_mw, next_ns in zip(due, limits, following_ns, strict=True):
            if mark.phase is None:
                self._state.pop(mark.who, None)
            else:
                self._state[mark.who] = mark.phase
            self._limit_mw = self._limit_mw if limit_mw is None else limit_mw
            became = self._now()
            if became == state and not brief:
                continue
            brief = next_ns - mark.t_ns < BRIEF_NS
            if brief:
                continue
            t_ns = max(mark.t_ns, newest_ns)
            kind, edge = self._kinds.number((became,), t_ns), self._kinds.number((state, became), t_ns)
            fresh.append((t_ns, kind, edge, mark.uncertainty_ns))
            state, newest_ns = became, t_ns
        for number in self._kinds.reused:
            self.counter.forget(number)
        self._kinds.reused.clear()
        if fresh:
            t, kind_of, edge_of, spread = np.array(fresh, np.int64).T
            keep = slice(-MAX_CUTS, None)
            self._cut_ns = np.concatenate((self._cut_ns, t))[keep]
            self._cut_kind = np.concatenate((self._cut_kind, (kind_of, edge_of)), axis=1)[:, keep]
            self._cut_spread_s = np.concatenate((self._cut_spread_s, spread / 1e9))[keep]

    def _now(self) -> State:
        return (str(self._limit_mw), *sorted(self._state.values()))

    # ---- what follows ----------------------------------------------------------------------------------

    def _parts(self, begin_ns: int, end_ns: int) -> _Parts:
        first = max(int(self._cut_ns.searchsorted(begin_ns, side="right")) - 1, 0)
        count = max(int(self._cut_ns.searchsorted(end_ns)) - first, 1)
        t = np.maximum((self._cut_ns[first : first + count + 1] - begin_ns) / 1e9, -10.0)
        length = np.full(2 * count, EDGE_NS / 1e9)
        length[:count] = np.inf
        length[: len(t) - 1] = t[1:] - t[:-1]
        scale = np.ones(2 * count)
        scale[count:] = 1e9 / EDGE_NS
        spread = np.zeros(2 * count)
        spread[count:] = (self._cut_spread_s[first : first + count] * self._kinds.mean_w) ** 2
        t = t[:count]
        return _Parts(
            np.concatenate((t, t)),
            length,
            scale,
            self._cut_kind[:, first : first + count].ravel(),
            spread,
        )

    def _solve(self, knots: Knots, k0: int, begin: int, end: int, last: int) -> None:
        """Fix the energies within refreshes ``begin`` to ``end``, from those between ``k0`` and ``last``."""
        mid_ns, kinds, counter = knots.mid_ns, self._kinds, self.counter
        k0 = max(k0, int(mid_ns.searchsorted(mid_ns[begin] - AGO_NS)))
        last = max(min(last, end + AFTER, int(mid_ns.searchsorted(mid_ns[end] + AHEAD_NS))), end)
        stretch = slice(k0, last + 1)
        base_ns, base_uj = int(mid_ns[k0]), int(knots.energy_uj[k0])
        t = (mid_ns[stretch] - base_ns) / 1e9
        y = (knots.energy_uj[stretch] - base_uj) / 1e6
        kinds.begin(t[-1], y[-1])
        parts = self._parts(base_ns, int(mid_ns[last]))
        mean, unsure, spread, noise_w2s = kinds.parameters()
        own, flickers_w2s = spread[parts.kind] + parts.spread, noise_w2s[parts.kind]
        of_part = np.eye(len(mean))[parts.kind]

        cuts = self._cut_ns[slice(*self._cut_ns.searchsorted(mid_ns[[begin, end]]))]
        fresh_ns = np.sort(np.concatenate((cuts, mid_ns[begin : end + 1])))
        old_ns = self._points.t_ns[-NEIGHBOURS:]
        newest_ns = old_ns[-1] if len(old_ns) else fresh_ns[0] - 1
        fresh_ns = fresh_ns[(fresh_ns > newest_ns) & (np.append(fresh_ns[1:], -1) != fresh_ns)]
        old_ns = old_ns[old_ns >= base_ns]
        point_t = (np.concatenate((old_ns, fresh_ns)) - base_ns) / 1e9

        # what was observed: rows of the energies of the parts, its value, its noise; then the points
        segment = self._cut_ns.searchsorted(mid_ns[stretch], side="right") - 1
        power_w = np.maximum(mean[self._cut_kind[0, segment]], 0.1 * kinds.mean_w)
        doubt_s = (knots.hi_ns[stretch] - knots.lo_ns[stretch]) / 1e9 / 12**0.5
        var = (doubt_s * power_w) ** 2 + QUANTUM_J**2 / 12
        count, took, grown = len(t) - 1, t[1:] - t[:-1], y[1:] - y[:-1]
        if counter.window_ns is None:
            instants = np.concatenate((t, point_t))
            counted = parts.until(instants)
            rows = counted[1:] - counted[0]
            wandered = rows @ flickers_w2s
            common = np.minimum.outer(wandered, wandered) + float(var[0])
            seen_j, doubt_j2 = y[1:], var[1:]
        else:
            window_s = counter.window_ns / 1e9
            looked_t = t[1:] if counter.lag_ns is None else t[:-1] + counter.lag_ns / 1e9
            sees = (
                took / window_s if counter.lag_ns is not None else np.full(count, np.median(took) / window_s)
            )
            counted = parts.until(np.concatenate((looked_t, looked_t - window_s, point_t)))
            counted -= parts.until(t[:1])
            rows = np.concatenate(
                (sees[:, None] * (counted[:count] - counted[count : 2 * count]), counted[2 * count :])
            )
            wandered = counted @ flickers_w2s
            upto, since, wandered = np.split(wandered, (count, 2 * count))
            common = np.zeros((len(rows), len(rows)))
            common[:count, count:] = sees[:, None] * np.clip(
                wandered - since[:, None], 0.0, (upto - since)[:, None]
            )
            common[count:, :count] = common[:count, count:].T
            common[count:, count:] = np.minimum.outer(wandered, wandered)
            # When it looked matters only where it may have looked across a change: the figure is a mean.
            looked_ns = base_ns + np.rint(looked_t * 1e9).astype(np.int64)
            open_ns = (knots.hi_ns[stretch] - knots.lo_ns[stretch])[1:]
            until_cut = self._cut_ns.searchsorted(looked_ns + open_ns)
            across = until_cut > self._cut_ns.searchsorted(looked_ns - counter.window_ns - open_ns)
            var[1:] = np.where(across, var[1:], QUANTUM_J**2)
            seen_j, doubt_j2 = grown, sees**2 * (upto - since + var[1:])
        rows_kind = rows @ of_part
        joint = common + (rows * own) @ rows.T + rows_kind @ unsure @ rows_kind.T
        observed = joint[:count, :count].copy()
        observed.reshape(-1)[:: count + 1] += doubt_j2
        inverse = np.linalg.inv(observed)
        left = inverse @ (seen_j - rows_kind[:count] @ mean)

        # which part of each change of kind came before its mark
        half = len(own) // 2
        # Where several changes fall into one refresh, the counter does not tell them apart.
        alone = np.flatnonzero(parts.length[1:half] + parts.length[: half - 1] > took.mean()) + 1
        alone = alone[parts.begin[alone] >= 0]
        strays_j2 = np.zeros(len(point_t))
        if len(alone):
            changes, since_t = parts.kind[half + alone], parts.begin[alone]
            shared = rows_kind[:count] @ unsure[:, changes] + rows[:count, half + alone] * own[half + alone]
            change_j = mean[changes] + left @ shared
            change_j2 = (
                own[half + alone] + unsure[changes, changes] - (shared * (inverse @ shared)).sum(axis=0)
            )
            early = _early(parts.kind[alone - 1], parts.kind[alone], change_j, change_j2, mean, unsure)
            if early.any():
                past = point_t[:, None] >= since_t
                rows[count:, half + alone] += past * early * (1 - rows[count:, half + alone])
                rows_kind = rows @ of_part
                joint = common + (rows * own) @ rows.T + rows_kind @ unsure @ rows_kind.T
                strays_j2 = (point_t[:, None] == since_t) @ (early * (1 - early) * (change_j**2 + change_j2))

        cross = joint[count:, :count]
        energy_j = rows_kind[count:] @ mean + cross @ left
        if not np.isfinite(energy_j).all():
            raise np.linalg.LinAlgError("the energies are not finite")
        joint = joint[count:, count:] - cross @ inverse @ cross.T
        joint.reshape(-1)[:: len(joint) + 1] += strays_j2
        self._fix(knots, fresh_ns, base_uj + energy_j * 1e6, joint, int(knots.epoch[end]))
        self._fixed_ns = int(mid_ns[end])

        # what was learned
        inside = slice(begin - k0, end - k0)
        rows, rows_kind = rows[:count], rows_kind[:count]
        if counter.window_ns is None:
            taken, taken_kind = rows[inside].copy(), rows_kind[inside].copy()
            earlier = slice(max(inside.start - 1, 0), inside.stop - 1)
            from_first = int(inside.start == 0)
            taken[from_first:] -= rows[earlier]
            taken_kind[from_first:] -= rows_kind[earlier]
            doubt = taken_kind @ noise_w2s + (var[1:] + var[:-1])[inside]
        else:
            taken, taken_kind = rows[inside], rows_kind[inside]
            doubt = taken_kind @ noise_w2s + doubt_j2[inside]
        kinds.regress(taken_kind, took[inside], grown[inside], taken**2 @ own + doubt)
        # Without one of them, the others say of a refresh: left / certain less, give or take 1 / certain.
        certain = inverse.diagonal()[inside]
        told = ~taken_kind[:, kinds.role[: len(mean)] == Role.REST].any(axis=1)
        kinds.tested(left[inside][told] ** 2 / certain[told])
        ends = parts.begin + parts.length
        over = (ends > t[inside.start]) & (ends <= t[inside.stop])
        rows_over = rows[:, over]
        kinds.deviated(parts.kind[over], left @ rows_over, rows_over.T @ inverse @ rows_over, spread)
        if counter.window_ns is None:
            since = left[::-1].cumsum()[::-1][inside]
            sure = inverse[::-1, ::-1].cumsum(axis=0).cumsum(axis=1).diagonal()[::-1][inside]
            kinds.flickered(taken_kind, since, sure, noise_w2s)
        if counter.looks:
            work = over[: len(over) // 2] & (kinds.role[parts.kind[: len(over) // 2]] == Role.WORK)
            fade = float(np.exp(-took[inside].sum() / MEMORY_S))
            looked_t = t[1:] if counter.lag_ns is None else t[:-1] + counter.lag_ns / 1e9
            counter.look(
                *(parts.begin[: len(work)][work], parts.length[: len(work)][work], looked_t, fade),
                *(int(mid_ns[end]), end - begin),
            )

    def _compare(self, knots: Knots, first: int, close: int) -> None:
        """Compare the refreshes until ``close`` with what each kind of counter would have counted."""
        mid_ns = knots.mid_ns
        begin = max(first, int(mid_ns.searchsorted(self._compared_ns)), close - BLOCK * TOGETHER)
        if close - begin < TOGETHER:
            return
        self._compared_ns = int(mid_ns[close])
        stretch = slice(begin, close + 1)
        t = (mid_ns[stretch] - mid_ns[begin]) / 1e9
        took = t[1:] - t[:-1]
        parts = self._parts(int(mid_ns[begin] - WINDOWS_NS[-1]), int(mid_ns[close]))
        t += WINDOWS_NS[-1] / 1e9
        kinds = np.eye(len(self._kinds))[parts.kind]
        until = parts.until(t) @ kinds
        earlier = parts.until((t[1:] - WINDOWS_S[:, None]).ravel()) @ kinds
        shares = np.empty((1 + len(WINDOWS_S), len(took), kinds.shape[1]))
        shares[0] = until[1:] - until[:-1]
        shares[1:] = until[1:] - earlier.reshape(len(WINDOWS_S), len(took), -1)
        shares[1:] *= took[:, None] / WINDOWS_S[:, None, None]
        # What a GPU does at rest nobody told: what refreshes without work should count nobody knows.
        told = (shares[:, :, self._kinds.role[: kinds.shape[1]] != Role.REST] > 0.0).any(axis=(0, 2))
        seen_s2 = ((knots.hi_ns[stretch] - knots.lo_ns[stretch]) / 1e9) ** 2 / 12
        grown_j = np.diff(knots.energy_uj[stretch]) / 1e6
        doubt_s = (seen_s2[1:] + seen_s2[:-1]) ** 0.5
        self.counter.compare(shares[:, told], grown_j[told], took[told], doubt_s[told], self._kinds.born)
        if (learned := self.counter.tell()) is not None:
            self._kinds.relearn(*learned)
            if self.counter.bounded:
                self._points = Points()  # they had gone apart from what it counted

    def _fix(self, knots: Knots, t_ns: Ints, energy_uj: Floats, joint: Floats, epoch: int) -> None:
        """Keep the energies of the last instants of some.

        Args:
            t_ns: those to keep; shape (n,).
            energy_uj: of m instants, the last n of them ``t_ns``.
            joint: covariance of their errors, J^2; shape (m, m).
        """
        known, n, m = self._points, len(t_ns), len(energy_uj)
        if not n:
            return
        var = np.maximum(np.diagonal(joint), 0.0)
        anchored = bool(known.size) and known.epoch[-1] == epoch
        if self.window_ns is not None:
            # Nothing ties this counter's figure to the energy: it goes on from the last instant.
            at = m - n - 1
            if anchored and at >= 0:
                energy_uj = energy_uj + (known.energy_uj[-1] - energy_uj[at])
                grown = np.maximum(var + var[at] - 2 * joint[at], 0.0)
                before = known.var[known.size - 1 - at :]
                total = np.concatenate((before, known.var[-1] + grown[at + 1 :]))
            else:
                total = var
            joint = (total[:, None] + total - (var[:, None] + var - 2 * joint)) / 2
            var = total
        fresh_uj = np.rint(energy_uj[m - n :]).astype(np.int64)
        if self.window_ns is None:
            earlier = knots.hi_ns.searchsorted(t_ns, side="right") - 1
            later = knots.lo_ns.searchsorted(t_ns)
            most = knots.energy_uj[np.minimum(later, len(knots.lo_ns) - 1)]
            fresh_uj = np.minimum(np.maximum(fresh_uj, knots.energy_uj[np.maximum(earlier, 0)]), most)
        if anchored:
            fresh_uj = np.maximum(fresh_uj, known.energy_uj[-1])
        fresh_uj = np.maximum.accumulate(fresh_uj)
        column = np.arange(m - n, m)[:, None] - 1 - np.arange(NEIGHBOURS)
        cov = np.where(column >= 0, joint[np.arange(m - n, m)[:, None], np.maximum(column, 0)], 0.0)
        known.add(np.stack((t_ns, fresh_uj, np.full(n, epoch))), var[m - n :], cov.astype(np.float32))

    # ---- what is known ---------------------------------------------------------------------------------

    def at(self, t_ns: Ints, epoch: Ints) -> Fixed:
        """Return the energies at instants, where they were fixed. ``epoch``: of the counter, at each."""
        points = self._points
        if points.size < 2:
            nothing = np.zeros(len(t_ns), np.int64)
            return Fixed(np.zeros(len(t_ns), np.bool_), nothing, np.zeros(len(t_ns)), nothing)
        left = np.clip(np.searchsorted(points.t_ns, t_ns, side="right") - 1, 0, points.size - 1)
        exact = points.t_ns[left] == t_ns
        right = np.where(exact, left, np.minimum(left + 1, points.size - 1))
        known = (points.t_ns[left] <= t_ns) & (t_ns <= points.t_ns[right])
        known &= (points.epoch[left] == epoch) & (points.epoch[right] == epoch)
        to_left, to_right = t_ns - points.t_ns[left], points.t_ns[right] - t_ns
        part = to_left / np.maximum(to_left + to_right, 1)
        grown = np.rint(part * (points.energy_uj[right] - points.energy_uj[left])).astype(np.int64)
        strayed_j = 0.3 * self._kinds.mean_w * np.minimum(to_left, to_right) / 1e9
        var = points.var[left] + part * (points.var[right] - points.var[left]) + strayed_j**2
        return Fixed(known, points.energy_uj[left] + grown, var, left)

    def variance(self, fixed: Fixed) -> Floats:
        """Return the variance of the energies of windows, J^2.

        Args:
            fixed: at their begins, then at their ends; shape (2n,).
        """
        count = len(fixed.point) // 2
        begin, end = fixed.point[:count], fixed.point[count:]
        near = (end > begin) & (end - begin <= NEIGHBOURS)
        shared = np.zeros(count) if self.window_ns is None else fixed.var[:count].copy()
        if near.any():
            shared[near] = self._points.cov[end[near], end[near] - begin[near] - 1]
        variance: Floats = np.maximum(fixed.var[:count] + fixed.var[count:] - 2 * shared, 0.0)
        return variance * self._kinds.calibration

    @property
    def crowded(self) -> bool:
        """There is so much that `forget` is worth its while."""
        return self._points.size > self._crowded

    def forget(self, needed_ns: Iterable[int]) -> None:
        """Forget all energies but those of late and those on either side of the instants still needed."""
        t_ns = self._points.t_ns
        keep = t_ns >= t_ns[-1] - RECENT_NS
        needed = np.fromiter(needed_ns, np.int64)
        right = np.searchsorted(t_ns, needed)
        keep[np.minimum(right, len(keep) - 1)] = True
        keep[np.maximum(right - 1, 0)] = True
        self._points.keep(np.flatnonzero(keep))
        self._crowded = min(max(CROWDED, 2 * self._points.size), MAX_POINTS)
