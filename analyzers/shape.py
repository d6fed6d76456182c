"""How power follows the events of a GPU, learned from its counter: energy within a refresh. Pure.

Events cut time into segments, each of a *kind*: the phases of the GPU's sessions (step, gap between steps,
innermost named window) and the power limit in force. The model is Gaussian:

    power of a segment      mean of its kind, and a deviation of its own, constant within it
    change of kind          an energy, lacking or in excess within EDGE_NS after it: late starts, ramps
    power within a segment  white noise on top
    counter at a change     energy until then; the change lies within two stamps, the figure is in whole mJ

Means come from a regression of the counter's steps on the time each had of each kind, deviations from their
share that the counter explains (MacKay, Neural Computation 4, 1992, 3: sum of squares over effective number),
both over the last 20 s or so and over the past only. The energy at an instant is its expectation given the
refreshes around it, the interval that contains it and one after included; its variance comes with it. An
energy that was given stays: windows that share an edge add up.

A boxcar counter (each refresh adds the mean power of the last ``window_ns``, times the period) is the same
model observed through another row. Its total says nothing of what it did not see.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from analyzers.timeline import Knots, Timeline

HEARD_NS = 60_000_000
"""Events of an instant have been heard when a frame is this much later: they come every 20 ms."""
WAIT_NS = 160_000_000
"""A window is measured this long after the refresh past its end: by then its events, and one refresh more
of a counter of 100 ms, are there."""
MEMORY_S = 20.0
"""What is learned fades with this time constant."""
EDGE_NS = 2_000_000
BEFORE, AFTER, BLOCK = 4, 3, 8
"""Refreshes before and after those under way that are taken into account, and refreshes under way at once."""
AGO_NS, AHEAD_NS = 1_500_000_000, 200_000_000
"""The same in time, at the most."""
MAX_KINDS = 24
"""Of segments and changes together; the one seen longest ago goes."""
MAX_CUTS = 4_096
MAX_POINTS = 8_192
CROWDED = 1_024
"""Points at which it is worth to forget some."""
RECENT_NS = 5_000_000_000
"""Points kept whatever is asked."""
WINDOWS_NS = (10_000_000, 15_000_000, 20_000_000, 23_000_000, 25_000_000, 30_000_000, 50_000_000)
"""Boxcars that are told apart (V100 10 ms, H100 PCIe about 23, A100 25: Yang, Adamek, Armour, SC24)."""
PHASES = 20
"""Parts of a segment that are looked at, or not."""
ENOUGH = 40
"""Refreshes from which on the kind of a counter may be told."""
SURE = 10.0
"""Logarithm of the likelihood ratio that is enough to tell it."""
NEIGHBOURS = 16
"""Points before each whose covariance with it is kept; farther ones have none."""
QUANTUM_J = 1e-3
LATE_S = 0.0015
"""Power comes this much late at a change of kind, until it is known better."""
GAP_SPREAD = 0.1
"""A gap draws as much as the GPU at rest, give or take this part of its mean power, likewise."""
PSEUDO = 1.0
"""Deviations of each kind are known as if so many had been seen."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
CounterKind = Literal["integrating", "boxcar", "power"]
State = tuple[str, ...]
"""The power limit, then the phases of all who are there."""


class _Role(IntEnum):
    """What a kind is."""

    WORK = 0
    GAP = 1
    REST = 2
    CHANGE = 3


class _Points:
    """Instants whose energy has been fixed, oldest first."""

    def __init__(self) -> None:
        self.size = 0
        self._ns = np.empty((3, 0), np.int64)
        """Instant, energy (uJ), epoch."""
        self._var = np.empty(0)
        """J^2, of the energy at the instant."""
        self._cov = np.empty((0, NEIGHBOURS), np.float32)
        """J^2; column j: with the point j + 1 before it."""

    @property
    def t_ns(self) -> Ints:
        return self._ns[0, : self.size]

    @property
    def energy_uj(self) -> Ints:
        return self._ns[1, : self.size]

    @property
    def epoch(self) -> Ints:
        return self._ns[2, : self.size]

    @property
    def var(self) -> Floats:
        return self._var[: self.size]

    @property
    def cov(self) -> npt.NDArray[np.float32]:
        return self._cov[: self.size]

    def add(self, ns: Ints, var: Floats, cov: npt.NDArray[np.float32]) -> None:
        """Append points; of more than MAX_POINTS the older half goes."""
        if self.size + len(var) > MAX_POINTS:
            self.keep(np.arange(self.size // 2, self.size))
        size = self.size + len(var)
        if size > len(self._var):
            room = max(2 * len(self._var), size, 64)
            self._ns = np.ascontiguousarray(_roomy(self._ns.T, room).T)
            self._var, self._cov = _roomy(self._var, room), _roomy(self._cov, room)
        self._ns[:, self.size : size], self._var[self.size : size], self._cov[self.size : size] = ns, var, cov
        self.size = size

    def keep(self, chosen: Ints) -> None:
        """Forget the others. With it goes what is known of the covariance with them."""
        column = np.arange(len(chosen))[:, None] - 1 - np.arange(NEIGHBOURS)
        same = chosen[:, None] - 1 - np.arange(NEIGHBOURS) == chosen[np.maximum(column, 0)]
        self._cov = np.where(same & (column >= 0), self._cov[chosen], np.float32(0))
        self._ns, self._var, self.size = self._ns[:, chosen], self._var[chosen], len(chosen)


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
        shares: Floats = np.clip(t[:, None] - self.begin, 0.0, self.length) * self.scale
        return shares


class Shape:
    """What has been learned of one GPU. Memory is bounded by MAX_KINDS, MAX_CUTS and MAX_POINTS."""

    def __init__(self) -> None:
        self.window_ns: int | None = None
        """Of a boxcar; None: the counter integrates, as far as is known."""
        self.kind: CounterKind | None = None
        """None: not known yet."""
        self._order = 0
        self._marks: list[_Mark] = []
        self._state: dict[str, str] = {}
        self._limit_mw: int | None = None
        self._cut_ns = np.full(1, -(2**60), np.int64)
        self._cut_kind = np.zeros((2, 1), np.int64)
        """Kind of the segment that begins, and of the change."""
        self._cut_spread_s = np.zeros(1)
        self._kinds: dict[tuple[State, ...], int] = {(("None",),): 0}
        self._used_ns = np.zeros(MAX_KINDS, np.int64)
        self._role = np.full(MAX_KINDS, _Role.REST, np.int64)
        self._fixed_ns: int | None = None
        # learned, all fading with MEMORY_S
        self._sums = np.zeros(2)
        """Seconds and joules."""
        self._normal = np.zeros((MAX_KINDS, MAX_KINDS))
        self._moment = np.zeros(MAX_KINDS)
        self._squares = np.zeros(MAX_KINDS + 1)
        """Of explained deviations, and (last) of explained noise over its variance at 1 W^2 s."""
        self._effective = np.zeros(MAX_KINDS + 1)
        self._points = _Points()
        self._crowded = CROWDED
        self._seen_s = np.zeros(PHASES)
        """What a boxcar saw of each phase of the segments at work."""
        # until the kind is known: what remains unexplained by each
        self._telling = True
        self._period_s = 0.0
        self._compared, self._next_look = 0, ENOUGH
        self._rival_normal = np.zeros((1 + len(WINDOWS_NS), MAX_KINDS, MAX_KINDS))
        self._rival_moment = np.zeros((1 + len(WINDOWS_NS), MAX_KINDS))
        self._rival_square = self._rival_doubt = 0.0
        self._rival_steady = np.zeros(2)

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
        knots = timeline.knots()
        if not timeline.sees_all or (self._fixed_ns or 0) >= until_ns:
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
        for at in range(begin, close, BLOCK):
            self._solve(knots, max(first, at - BEFORE), at, min(at + BLOCK, close), last)

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
        state = self._now()
        for mark, limit_mw in zip(due, limits, strict=True):
            if mark.phase is None:
                self._state.pop(mark.who, None)
            else:
                self._state[mark.who] = mark.phase
            self._limit_mw = self._limit_mw if limit_mw is None else limit_mw
            became = self._now()
            if became == state:
                continue
            t_ns = max(mark.t_ns, newest_ns)
            kind, edge = self._kind((became,), t_ns), self._kind((state, became), t_ns)
            fresh.append((t_ns, kind, edge, mark.uncertainty_ns))
            state, newest_ns = became, t_ns
        if fresh:
            t, kind_of, edge_of, spread = np.array(fresh, np.int64).T
            keep = slice(-MAX_CUTS, None)
            self._cut_ns = np.concatenate((self._cut_ns, t))[keep]
            self._cut_kind = np.concatenate((self._cut_kind, (kind_of, edge_of)), axis=1)[:, keep]
            self._cut_spread_s = np.concatenate((self._cut_spread_s, spread / 1e9))[keep]

    def _now(self) -> State:
        return (str(self._limit_mw), *sorted(self._state.values()))

    def _kind(self, states: tuple[State, ...], t_ns: int) -> int:
        """Return the number of a kind of segment (one state) or change (two)."""
        number = self._kinds.get(states)
        if number is None:
            number = len(self._kinds)
            if number >= MAX_KINDS:
                oldest = min(self._kinds, key=lambda known: int(self._used_ns[self._kinds[known]]))
                number = self._kinds.pop(oldest)
                self._normal[number], self._normal[:, number], self._moment[number] = 0.0, 0.0, 0.0
                self._squares[number], self._effective[number] = 0.0, 0.0
            self._kinds[states] = number
            self._role[number] = _role(states)
        self._used_ns[number] = t_ns
        return number

    # ---- what follows ----------------------------------------------------------------------------------

    def _parts(self, begin_ns: int, end_ns: int) -> _Parts:
        first = max(int(np.searchsorted(self._cut_ns, begin_ns, side="right")) - 1, 0)
        last = int(np.searchsorted(self._cut_ns, end_ns))
        t = np.maximum((self._cut_ns[first : last + 1] - begin_ns) / 1e9, -10.0)
        count = max(last - first, 1)
        ends = np.append(t[1:], np.inf)[:count]
        t, kinds = t[:count], self._cut_kind[:, first : first + count]
        width = np.full(count, EDGE_NS / 1e9)
        moved_j = self._cut_spread_s[first : first + count] * self._mean_w
        return _Parts(
            np.concatenate((t, t)),
            np.concatenate((ends - t, width)),
            np.concatenate((np.ones(count), 1 / width)),
            kinds.ravel(),
            np.concatenate((np.zeros(count), moved_j**2)),
        )

    @property
    def _mean_w(self) -> float:
        return max(float(self._sums[1] / self._sums[0]), 1.0) if self._sums[0] else 100.0

    def _expected(self, mean_w: float) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of each kind before any of it was seen.

        A gap is taken to draw about what the GPU draws at rest, until it is known better.
        """
        mean = np.where(self._role == _Role.CHANGE, 0.0, mean_w)
        width = np.where(self._role == _Role.CHANGE, LATE_S, 0.6) * mean_w
        rest = np.flatnonzero(self._role == _Role.REST)
        weight = self._normal[rest, rest].sum()
        if weight > 0:
            gap = self._role == _Role.GAP
            mean[gap] = min(float(self._moment[rest].sum() / weight), mean_w)
            width[gap] = GAP_SPREAD * mean_w
        return mean, width

    def _solve(self, knots: Knots, k0: int, begin: int, end: int, last: int) -> None:
        """Fix the energies within refreshes ``begin`` to ``end``, from those between ``k0`` and ``last``."""
        mid_ns = knots.mid_ns
        k0 = max(k0, int(np.searchsorted(mid_ns, mid_ns[begin] - AGO_NS)))
        last = max(min(last, end + AFTER, int(np.searchsorted(mid_ns, mid_ns[end] + AHEAD_NS))), end)
        stretch = slice(k0, last + 1)
        base_ns, base_uj = int(mid_ns[k0]), int(knots.energy_uj[k0])
        t = (mid_ns[stretch] - base_ns) / 1e9
        y = (knots.energy_uj[stretch] - base_uj) / 1e6
        if not self._sums[0]:
            self._sums += t[-1], y[-1]
        parts = self._parts(base_ns, int(mid_ns[last]))
        mean, unsure, spread = self._parameters()
        own, noise_w2s = spread[parts.kind] + parts.spread, float(spread[-1])
        here, which = np.unique(parts.kind, return_inverse=True)
        of_part = np.zeros((len(which), len(here)))
        of_part[np.arange(len(which)), which] = 1.0
        unsure = unsure[np.ix_(here, here)]

        cuts = self._cut_ns[slice(*np.searchsorted(self._cut_ns, mid_ns[[begin, end]]))]
        fresh_ns = np.union1d(cuts, mid_ns[begin : end + 1])
        old_ns = self._points.t_ns[-NEIGHBOURS:]
        if len(old_ns):
            fresh_ns = fresh_ns[fresh_ns > old_ns[-1]]
            old_ns = old_ns[old_ns >= base_ns]
        point_t = (np.concatenate((old_ns, fresh_ns)) - base_ns) / 1e9
        start = parts.until(np.zeros(1))
        at_knots, at_points = parts.until(t) - start, parts.until(point_t) - start

        # what was observed: rows of the energies of the parts, its value, its noise
        segment = np.searchsorted(self._cut_ns, mid_ns[stretch], side="right") - 1
        power_w = np.maximum(mean[self._cut_kind[0, segment]], 0.1 * self._mean_w)
        doubt_s = (knots.hi_ns[stretch] - knots.lo_ns[stretch]) / 1e9 / 12**0.5
        var = (doubt_s * power_w) ** 2 + QUANTUM_J**2 / 12
        if self.window_ns is None:
            rows, seen_j, base_var = at_knots[1:], y[1:], float(var[0])
            noise = base_var + noise_w2s * np.minimum.outer(t[1:], t[1:]) + np.diag(var[1:])
            noise_cross = base_var + noise_w2s * np.minimum.outer(point_t, t[1:])
        else:
            window_s = self.window_ns / 1e9
            sees = float(np.median(np.diff(t))) / window_s
            rows = sees * (at_knots[1:] - (parts.until(t[1:] - window_s) - start))
            seen_j, base_var = np.diff(y), 0.0
            noise = np.diag(sees**2 * (noise_w2s * window_s + var[1:]))
            overlap_s = np.clip(point_t[:, None] - (t[1:] - window_s), 0.0, window_s)
            noise_cross = noise_w2s * sees * overlap_s
        rows_kind, points_kind = rows @ of_part, at_points @ of_part
        inverse = np.linalg.inv((rows * own) @ rows.T + rows_kind @ unsure @ rows_kind.T + noise)
        cross = (at_points * own) @ rows.T + points_kind @ unsure @ rows_kind.T + noise_cross
        left = inverse @ (seen_j - rows @ mean[parts.kind])
        energy_j = at_points @ mean[parts.kind] + cross @ left
        joint = (at_points * own) @ at_points.T + points_kind @ unsure @ points_kind.T + base_var
        joint += noise_w2s * np.minimum.outer(point_t, point_t) - cross @ inverse @ cross.T
        self._fix(knots, fresh_ns, base_uj + energy_j * 1e6, joint, int(knots.epoch[end]))
        self._fixed_ns = int(mid_ns[end])

        # what was learned
        inside = slice(begin - k0, end - k0)
        took = np.diff(t)[inside]
        fade = float(np.exp(-took.sum() / MEMORY_S))
        grown = np.diff(y)[inside]
        taken = np.diff(rows, axis=0, prepend=0.0) if self.window_ns is None else rows
        taken = taken[inside]
        doubt = taken**2 @ own + noise_w2s * took + (var[1:] + var[:-1])[inside]
        if self.window_ns is not None:
            doubt += (sees**2 * (noise_w2s * window_s + var[1:]))[inside]
        shares = taken @ of_part
        weighted = shares / doubt[:, None]
        self._normal *= fade
        self._moment *= fade
        self._normal[np.ix_(here, here)] += weighted.T @ shares
        self._moment[here] += weighted.T @ grown
        self._sums = fade * self._sums + (took.sum(), grown.sum())
        ends = parts.begin + parts.length
        over = (ends > t[inside.start]) & (ends <= t[inside.stop])
        rows_over, kind = rows[:, over], parts.kind[over]
        explained = own[over] * (rows_over.T @ left)
        effective = own[over] * np.einsum("ij,ij->j", rows_over, inverse @ rows_over)
        self._squares *= fade
        self._effective *= fade
        self._squares[:-1] += np.bincount(kind, explained**2, MAX_KINDS)
        self._effective[:-1] += np.bincount(kind, effective, MAX_KINDS)
        if self.window_ns is None:
            since = np.triu(np.ones_like(inverse))
            noises = noise_w2s * took * (since @ left)[inside]
            share = noise_w2s * took * np.einsum("ij,ij->i", since @ inverse, since)[inside]
            self._squares[-1] += (noises**2 / took).sum()
            self._effective[-1] += share.sum()
        else:
            self._seen_s *= fade
            edge = over[: len(over) // 2] & (self._role[parts.kind[: len(over) // 2]] == _Role.WORK)
            self._look(parts.begin[: len(edge)][edge], parts.length[: len(edge)][edge], t[1:])
        if self._telling:
            earlier = [parts.until(t[inside] + took - window_ns / 1e9) for window_ns in WINDOWS_NS]
            ends_at = at_knots[inside.start + 1 : inside.stop + 1] + start
            tried = [at_knots[inside.start + 1 : inside.stop + 1] - at_knots[inside]]
            tried += [
                (ends_at - before) * (took / (window_ns / 1e9))[:, None]
                for window_ns, before in zip(WINDOWS_NS, earlier, strict=True)
            ]
            doubt_j2 = float((var[1:] + var[:-1])[inside].sum())
            self._tell_apart(here, [rows @ of_part for rows in tried], grown, took, doubt_j2)

    def _look(self, begin: Floats, length: Floats, refresh: Floats) -> None:
        """Note which phases of segments the sensor has looked at. Seconds."""
        assert self.window_ns is not None
        window_s = self.window_ns / 1e9
        edges = begin[:, None] + length[:, None] * np.linspace(0.0, 1.0, PHASES + 1)
        until = np.clip(edges[..., None] - (refresh - window_s), 0.0, window_s).sum(axis=2)
        self._seen_s += np.diff(until, axis=1).sum(axis=0)

    def _parameters(self) -> tuple[Floats, Floats, Floats]:
        """Return the mean of each kind, its covariance, and the variance in each and (last) of the noise."""
        mean_w = self._mean_w
        centre, width = self._expected(mean_w)
        precision = 1 / width**2
        unsure = np.linalg.inv(self._normal + np.diag(precision)).astype(np.float64, copy=False)
        mean = unsure @ (self._moment + precision * centre)
        swing = np.where(self._role == _Role.CHANGE, 0.3 * LATE_S, 0.05) * mean_w
        swing = np.where(self._role == _Role.CHANGE, swing, np.maximum(0.05 * mean, 0.2 * swing))
        guess = np.append(swing**2, (0.002 * mean_w) ** 2)
        return mean, unsure, (self._squares + PSEUDO * guess) / (self._effective + PSEUDO)

    def _tell_apart(
        self, here: Ints, tried: list[Floats], grown: Floats, took: Floats, doubt_j2: float
    ) -> None:
        """Learn which counter it is: the one whose growth the kinds explain best.

        Args:
            here: kinds there are in some refreshes; shape (k,).
            tried: what each counter would have counted of each in each refresh; shape (n, k).
            grown: what it did count, J; shape (n,).
            took: s.
            doubt_j2: variance of ``grown``, summed, by what is not known of its instants.
        """
        self._period_s = self._period_s or float(took[0])
        self._period_s += 0.1 * (float(np.median(took)) - self._period_s)
        regular = np.abs(took / self._period_s - 1) < 0.1  # not where refreshes were missed
        grown, took = grown[regular], took[regular]
        self._compared += len(grown)
        for i, shares in enumerate(rows[regular] for rows in tried):
            self._rival_normal[i][np.ix_(here, here)] += shares.T @ shares
            self._rival_moment[i][here] += shares.T @ grown
        self._rival_square += float(grown @ grown)
        self._rival_steady += grown @ took, took @ took
        self._rival_doubt += doubt_j2
        if self._compared < self._next_look:
            return
        self._next_look = self._compared + 10
        ridge = 1e-9 * np.eye(MAX_KINDS) * (1 + self._rival_normal[0].trace())
        means = [
            np.linalg.solve(normal + ridge, moment)
            for normal, moment in zip(self._rival_normal, self._rival_moment, strict=True)
        ]
        left = self._rival_square - np.array([m @ n for m, n in zip(self._rival_moment, means, strict=True)])
        fits = np.array([True, *(window_ns / 1e9 < 0.7 * self._period_s for window_ns in WINDOWS_NS)])
        left = np.where(fits, np.maximum(left, 0.0) + self._rival_doubt, np.inf)
        best = int(np.argmin(left))
        against = left[1:].min() if best == 0 else left[0]
        joint, square = self._rival_steady
        steady = self._rival_square - joint**2 / square + self._rival_doubt
        # To take an integrating counter for a boxcar would give up its bounds.
        apart, least = (1.1, ENOUGH) if best == 0 else (1.5, 2 * ENOUGH)
        likely = self._compared / 2 * np.log(against / left[best]) > SURE
        if not likely or against < apart * left[best] or steady < 3 * left[best] or self._compared < least:
            return
        if best == 0:
            self.kind, self.window_ns, self._telling = "integrating", None, False
            return
        # Widths close to each other are told apart a little longer.
        near = np.sort(left[1:])[:2]
        self._telling = bool(self._compared <= 5 * ENOUGH and near[1] < 1.2 * near[0])
        if self.window_ns != WINDOWS_NS[best - 1]:
            self.kind, self.window_ns = "boxcar", WINDOWS_NS[best - 1]
            each = left[best] / self._compared
            self._normal, self._moment = self._rival_normal[best] / each, self._rival_moment[best] / each
            self._squares[:], self._effective[:] = 0.0, 0.0

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
            earlier = np.searchsorted(knots.hi_ns, t_ns, side="right") - 1
            later = np.searchsorted(knots.lo_ns, t_ns)
            least = knots.energy_uj[np.maximum(earlier, 0)]
            fresh_uj = np.clip(fresh_uj, least, knots.energy_uj[np.minimum(later, len(knots.lo_ns) - 1)])
        if anchored:
            fresh_uj = np.maximum(fresh_uj, known.energy_uj[-1])
        fresh_uj = np.maximum.accumulate(fresh_uj)
        column = np.arange(m - n, m)[:, None] - 1 - np.arange(NEIGHBOURS)
        cov = np.where(column >= 0, joint[np.arange(m - n, m)[:, None], np.maximum(column, 0)], 0.0)
        known.add(np.stack((t_ns, fresh_uj, np.full(n, epoch))), var[m - n :], cov.astype(np.float32))

    # ---- what is known ---------------------------------------------------------------------------------

    def at(self, t_ns: Ints, epoch: Ints) -> "Fixed":
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
        strayed_j = 0.3 * self._mean_w * np.minimum(to_left, to_right) / 1e9
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
        return variance

    @property
    def phase_coverage(self) -> float | None:
        """Return the share of the phases of steps and windows that the sensor has looked at of late.

        A phase counts once it got a tenth of the looks it would have if they were spread evenly. None: the
        counter is not known well enough, or has not looked at ten windows' worth of them yet.
        """
        if self.kind != "boxcar":
            return None if self.kind is None else 1.0
        total_s = float(self._seen_s.sum())
        if self.window_ns is None or total_s < 10 * self.window_ns / 1e9:
            return None
        return float(np.mean(self._seen_s > 0.1 * total_s / PHASES))

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


def _roomy(rows: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    """Return an array with room for so many rows."""
    made = np.empty((room, *rows.shape[1:]), rows.dtype)
    made[: len(rows)] = rows
    return made


def _role(states: tuple[State, ...]) -> _Role:
    if len(states) == 2:
        return _Role.CHANGE
    phases = {phase.rsplit("/")[-1] for phase in states[0][1:]}
    if phases <= {"rest"}:
        return _Role.REST
    return _Role.GAP if phases <= {"rest", "gap"} else _Role.WORK
