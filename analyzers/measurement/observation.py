"""Observation of one GPU's counter: what each refresh says of the parts that events cut time into. Pure.

The equations (1) to (5) are those of docs/explanation/measurement.md, "The model behind a step's energy".
"""

import numpy as np
from msgspec import Struct

from analyzers.measurement.counter_kind import (
    OWN,
    PART_W,
    STEP_PARTS,
    WIDEST_NS,
    Compared,
    CounterKnowledge,
)
from analyzers.measurement.cuts import Parts
from analyzers.measurement.knots import AMBIGUOUS, REFRESH_NS, Floats, Ints, Knots
from analyzers.measurement.power_model import PowerModel, Role

QUANTUM_J = 1e-3
MISSED = 1.5
"""Periods between two knots from which on refreshes between them were not seen."""
STRANGE = 0.05
"""A period that is off the median of some by more than this part is none of theirs. That median, of a
dozen, put all steps of a 20/10 ms counter off by 0.04 % (seed 61000)."""


class Stretch(Struct, frozen=True, kw_only=True):
    """Refreshes that are solved together: n + 1 knots, so n refreshes; seconds from the first knot."""

    base_ns: int
    base_uj: int
    t: Floats
    """Of the knots, shape (n + 1,)."""
    y: Floats
    """Counted since the first knot, J; shape (n + 1,)."""
    open_ns: Ints
    """Distance of the bounds of each knot; shape (n + 1,)."""
    doubt_s: Floats
    """Standard deviation of the instant of each; shape (n + 1,)."""

    @classmethod
    def of(cls, knots: Knots, first: int, last: int) -> "Stretch":
        """Return the stretch from one knot to another."""
        base_ns, base_uj = int(knots.mid_ns[first]), int(knots.energy_uj[first])
        stretch = slice(first, last + 1)
        return cls(
            base_ns=base_ns,
            base_uj=base_uj,
            t=(knots.mid_ns[stretch] - base_ns) / 1e9,
            y=(knots.energy_uj[stretch] - base_uj) / 1e6,
            open_ns=knots.hi_ns[stretch] - knots.lo_ns[stretch],
            doubt_s=knots.doubt_ns[stretch] / 1e9,
        )

    @property
    def took(self) -> Floats:
        """Duration of each refresh, shape (n,)."""
        return self.t[1:] - self.t[:-1]

    @property
    def grown(self) -> Floats:
        """The energy counted in each refresh, J; shape (n,)."""
        return self.y[1:] - self.y[:-1]

    @property
    def skips(self) -> bool:
        """Return whether refreshes were skipped: each of these is the sum of several of the counter's."""
        return float(np.median(self.took)) > AMBIGUOUS * REFRESH_NS / 1e9

    def looked(self, counter: CounterKnowledge) -> Floats:
        """Return when each look of a boxcar was over, shape (n,)."""
        return self.t[1:] if counter.lag_ns is None else self.t[:-1] + counter.lag_ns / 1e9

    def var_j2(self, power_w: Floats) -> Floats:
        """Return the variance of each knot's energy by its instant and rounding; power, shape (n + 1,)."""
        var: Floats = (self.doubt_s * power_w) ** 2 + QUANTUM_J**2 / 12
        return var


class Observation(Struct, kw_only=True):
    """n refreshes, then p points whose energy is asked for; c parts."""

    rows: Floats
    """Energy of each refresh or point per unit of each part; shape (n + p, c)."""
    common: Floats
    """Covariance by the noise within segments; shape (n + p, n + p)."""
    seen_j: Floats
    """What the counter showed; shape (n,)."""
    doubt_j2: Floats
    """Variance of that beside the model; shape (n,)."""
    var_j2: Floats
    """Of each knot; shape (n + 1,)."""

    @property
    def count(self) -> int:
        """Refreshes."""
        return len(self.seen_j)


def counted_by_rivals(
    knots: Knots,
    begin: int,
    close: int,
    parts: Parts,
    kinds: PowerModel,
    counter: CounterKnowledge,
) -> Compared:
    """Return what each kind of counter would have counted in some refreshes, and what this one did.

    Refreshes are those from ``begin`` to ``close``; those of another length were missed and are left out.
    ``parts``: since the widest window of a boxcar before ``begin``.
    """
    windows_s, widest_s = np.array(counter.windows_ns) / 1e9, WIDEST_NS / 1e9
    stretch = slice(begin, close + 1)
    t = (knots.mid_ns[stretch] - knots.mid_ns[begin]) / 1e9
    took = t[1:] - t[:-1]
    period_s = counter.period_s(took)
    t += widest_s
    doubts_s2 = (knots.doubt_ns[stretch] / 1e9) ** 2
    # A boxcar multiplies by its period, or by the time that a refresh took: that is not known.
    doubt_s2 = doubts_s2[1:] + doubts_s2[:-1] + (took - period_s) ** 2
    regular = doubt_s2 < (0.05 * period_s) ** 2
    # No event says what a GPU does at rest: what a refresh should have counted there is not known.
    rest = kinds.role[parts.kind] == Role.REST
    at_rest_s = (parts.until(t[1:]) - parts.until(t[1:] - took - widest_s))[:, rest]
    regular &= ~(at_rest_s > 0.0).any(axis=1)
    took, grown_j = took[regular], (np.diff(knots.energy_uj[stretch]) / 1e6)[regular]
    roles = np.append(np.full(STEP_PARTS, Role.WORK), kinds.role[: len(kinds)])
    parts = parts.with_parts_of(kinds.role[parts.kind] == Role.WORK, STEP_PARTS)
    until, since = parts.until(t[1:][regular]), parts.until(t[:-1][regular])
    earlier = parts.until((t[1:][regular] - windows_s[:, None]).ravel())
    rows = np.empty((1 + len(windows_s), *until.shape))
    rows[0] = until - since
    rows[1:] = until - earlier.reshape(len(windows_s), *until.shape)
    scale = np.ones((len(rows), len(took), 1))
    scale[1:, :, 0] = took / windows_s[:, None]
    rows *= scale
    count, doubt_j2 = len(took), doubt_s2[regular] * (grown_j / took) ** 2 + QUANTUM_J**2
    change, power_w2 = roles[parts.kind] == Role.CHANGE, kinds.mean_w**2
    covariance = np.empty((len(OWN), len(rows), count, count))
    for of, (segments, late_s, first, last, noise, _) in zip(covariance, OWN.tolist(), strict=True):
        own = np.where(change, late_s, segments)
        own[parts.kind < STEP_PARTS] = 0.0
        own[parts.kind == 0], own[parts.kind == STEP_PARTS - 1] = first, last
        own = own**2 * power_w2 + parts.spread * (late_s > 0)
        some = rows[..., own > 0]
        of[:] = (some * own[own > 0]) @ some.transpose(0, 2, 1)
        noise_j2 = noise**2 * power_w2 * took * scale[..., 0]
        of.reshape(len(rows), -1)[:, :: count + 1] += noise_j2 + doubt_j2
    shares = rows @ np.eye(len(roles))[parts.kind]
    factor = np.linalg.cholesky(covariance)
    both = np.concatenate((shares, np.broadcast_to(grown_j[:, None], (len(rows), count, 1))), axis=2)
    whitened = np.linalg.solve(factor, np.broadcast_to(both, (len(OWN), *both.shape)))
    log_det = 2 * np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(axis=-1)
    steady = np.array([grown_j @ took, took @ took, grown_j @ grown_j, doubt_j2.sum()])
    of_steps = np.tile([[0.0], [(PART_W * kinds.mean_w) ** -2]], STEP_PARTS)
    expected = np.concatenate((of_steps, kinds.expected_of_rivals()), axis=1)
    return Compared(whitened[..., :-1], whitened[..., -1], log_det, steady, expected)


def integrating(
    stretch: Stretch, parts: Parts, point_t: Floats, noise: Floats, var_j2: Floats
) -> Observation:
    """Return what a counter that integrates shows, equation (4).

    ``point_t``: instants asked for, shape (p,); ``noise``: see `Parts.since_first`; ``var_j2``: see
    `Stretch.var_j2`.
    """
    rows, wandered = parts.since_first(np.concatenate((stretch.t, point_t)), noise)
    common = np.minimum.outer(wandered, wandered) + float(var_j2[0])
    return Observation(rows=rows, common=common, seen_j=stretch.y[1:], doubt_j2=var_j2[1:], var_j2=var_j2)


def boxcar(
    stretch: Stretch,
    parts: Parts,
    point_t: Floats,
    noise: Floats,
    var_j2: Floats,
    counter: CounterKnowledge,
    cut_ns: Ints,
    period_s: float,
) -> Observation:
    """Return what a counter shows that sees ``counter.window_ns`` of each refresh, equation (5).

    ``cut_ns``: changes of kind. ``period_s``: what it multiplies by, 0 if not known. The others: see
    `integrating`. A sum strays by half of its power a look, as in `strayed_j2`.
    """
    assert counter.window_ns is not None
    took, count = stretch.took, len(stretch.t) - 1
    looked_t = stretch.looked(counter)
    median_s = float(np.median(took))
    if abs(period_s - median_s) > STRANGE * median_s:
        period_s = median_s
    # Between two knots that are more than a period apart there were several looks: that is a sum.
    missed = (took > MISSED * period_s) & (counter.lag_ns is None)
    window_s = np.where(missed, took, counter.window_ns / 1e9)
    unseen_s = max(period_s - counter.window_ns / 1e9, 0.0)
    sees = np.where(missed, 1.0, (took if counter.lag_ns is not None else period_s) / window_s)
    instants = np.concatenate((stretch.t[:1], looked_t, looked_t - window_s, point_t))
    counted, wandered = parts.since_first(instants, noise)
    rows = np.concatenate(
        (sees[:, None] * (counted[:count] - counted[count : 2 * count]), counted[2 * count :])
    )
    upto, since, wandered = np.split(wandered, (count, 2 * count))
    common = np.zeros((len(rows), len(rows)))
    both = np.clip(wandered - since[:, None], 0.0, (upto - since)[:, None])
    common[:count, count:] = sees[:, None] * both
    common[count:, :count] = common[:count, count:].T
    common[count:, count:] = np.minimum.outer(wandered, wandered)
    # When it looked matters only where it may have looked across a change: the figure is a mean.
    looked_ns = stretch.base_ns + np.rint(looked_t * 1e9).astype(np.int64)
    open_ns = stretch.open_ns[1:]
    until_cut = cut_ns.searchsorted(looked_ns + open_ns)
    across = until_cut > cut_ns.searchsorted(looked_ns - np.rint(window_s * 1e9).astype(np.int64) - open_ns)
    var_j2 = np.append(var_j2[:1], np.where(across, var_j2[1:], QUANTUM_J**2))
    doubt_j2 = sees**2 * (upto - since + var_j2[1:])
    doubt_j2 += missed * unseen_s * stretch.grown**2 / (4 * took)
    return Observation(rows=rows, common=common, seen_j=stretch.grown, doubt_j2=doubt_j2, var_j2=var_j2)


def strayed_j2(parts: Parts, mean_w: Floats, point_t: Floats, unseen_s: float) -> Floats:
    """Return by how much a boxcar's sum over many refreshes strays between instants, J^2; shape (p, p).

    Each look differs from the mean of its period by half the range of power at most, and looks are taken to
    be independent. So the difference is a random walk. ``mean_w``: of each kind; ``unseen_s``: of a period.
    """
    range_w = float(np.ptp(mean_w[parts.kind[: len(parts.kind) // 2]]))
    walked: Floats = np.minimum.outer(point_t, point_t) * max(unseen_s, 0.0) * range_w**2 / 4
    return walked


BELIEVED = 1.5
"""Standard deviations from which on a change's energy begins to say on which side of its mark it lies."""


class Believed(Struct, frozen=True, kw_only=True):
    """The prior of k kinds and the c parts of a stretch, before its refreshes are used."""

    mean: Floats
    """Of each kind, W or J; shape (k,)."""
    unsure: Floats
    """Covariance of the means; shape (k, k)."""
    spread: Floats
    """Variance of each kind from part to part; shape (k,)."""
    noise_w2s: Floats
    """Of each kind, within; shape (k,)."""
    own: Floats
    """Variance of each part; shape (c,)."""


class Posterior(Struct, frozen=True, kw_only=True):
    """n refreshes, p points, c parts."""

    energy_j: Floats
    """Expected at each point, since the stretch's first knot; shape (p,)."""
    joint_j2: Floats
    """Covariance of their errors; shape (p, p)."""
    inverse: Floats
    """Of the covariance of what refreshes show; shape (n, n)."""
    left: Floats
    """`inverse` times the residuals, what refreshes showed beyond what was expected; shape (n,)."""
    of_part: Floats
    """Which kind each part is of; shape (c, k)."""


def solve(seen: Observation, parts: Parts, believed: Believed, point_t: Floats, alone_s: float) -> Posterior:
    """Return the energy at instants inside a stretch, given what its refreshes showed; equation (6).

    Energies of parts and of refreshes are jointly Gaussian before the refreshes are used (``believed``). The
    posterior is that Gaussian, conditioned on the energy that each refresh showed.

    Args:
        seen: n refreshes and p instants as sums over parts. Where the counter shows that a change came before
            its mark, its rows are changed in place (`_move_early`).
        parts: the c segments and changes of the stretch.
        believed: the prior of the kinds and of the parts.
        point_t: the instants, s after the first knot; shape (p,).
        alone_s: changes that are at least so far apart can be distinguished.
    """
    count, mean, unsure, own = seen.count, believed.mean, believed.unsure, believed.own
    of_part = np.eye(len(mean))[parts.kind]

    def covariance() -> tuple[Floats, Floats]:
        rows_kind = seen.rows @ of_part
        joint = seen.common + (seen.rows * own) @ seen.rows.T + rows_kind @ unsure @ rows_kind.T
        return joint, rows_kind

    joint, rows_kind = covariance()
    observed = joint[:count, :count].copy()
    observed.reshape(-1)[:: count + 1] += seen.doubt_j2
    inverse = np.linalg.inv(observed).astype(np.float64, copy=False)
    left = inverse @ (seen.seen_j - rows_kind[:count] @ mean)
    strays_j2 = _move_early(seen, parts, believed, point_t, alone_s, inverse, left, rows_kind)
    if strays_j2 is not None:
        joint, rows_kind = covariance()
    cross = joint[count:, :count]
    after = joint[count:, count:] - cross @ inverse @ cross.T
    if strays_j2 is not None:
        after.reshape(-1)[:: len(after) + 1] += strays_j2
    return Posterior(
        energy_j=rows_kind[count:] @ mean + cross @ left,
        joint_j2=after,
        inverse=inverse,
        left=left,
        of_part=of_part,
    )


def _move_early(
    seen: Observation,
    parts: Parts,
    believed: Believed,
    point_t: Floats,
    alone_s: float,
    inverse: Floats,
    left: Floats,
    rows_kind: Floats,
) -> Floats | None:
    """Book energies of changes before their marks where the counter shows that the marks came late.

    Return the variance that adds to each point, J^2; None where nothing was moved.
    """
    count, half, own = seen.count, len(parts.kind) // 2, believed.own
    mean, unsure = believed.mean, believed.unsure
    # Where several changes fall into one refresh, the counter does not tell them apart.
    alone = np.flatnonzero(parts.length[1:half] + parts.length[: half - 1] > alone_s) + 1
    alone = alone[parts.begin[alone] >= 0]
    if not len(alone):
        return None
    changes, since_t, column = parts.kind[half + alone], parts.begin[alone], half + alone
    shared = rows_kind[:count] @ unsure[:, changes] + seen.rows[:count, column] * own[column]
    change_j = mean[changes] + left @ shared
    change_j2 = own[column] + unsure[changes, changes] - (shared * (inverse @ shared)).sum(axis=0)
    early = _early(parts.kind[alone - 1], parts.kind[alone], change_j, change_j2, mean, unsure)
    if not early.any():
        return None
    past = point_t[:, None] >= since_t
    seen.rows[count:, column] += past * early * (1 - seen.rows[count:, column])
    strays_j2: Floats = (point_t[:, None] == since_t) @ (early * (1 - early) * (change_j**2 + change_j2))
    return strays_j2


def _early(
    before: Ints, after: Ints, change_j: Floats, change_j2: Floats, mean: Floats, unsure: Floats
) -> Floats:
    """Return which part of the energy of changes of kind came before their marks, equation (7); shape (c,).

    Where power rises and more was used than the marks let expect, it rose before: the mark came late. Where
    it falls and less was used, too. ``before``, ``after``: kinds of the segments; ``change_j``: expected, its
    variances in J^2; ``mean``: power of each kind; ``unsure``: its covariance.
    """
    rise_w = mean[after] - mean[before]
    rise_w2 = unsure[after, after] + unsure[before, before] - 2 * unsure[after, before]
    early = (change_j * rise_w > 0) & (rise_w**2 > rise_w2)
    believed = 1 - BELIEVED**2 * change_j2 / np.maximum(change_j**2, QUANTUM_J**2)
    return np.where(early, np.maximum(believed, 0.0), 0.0)
