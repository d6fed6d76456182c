"""Posterior of the energies at instants, given what refreshes of a counter showed. Pure.

The equations (6) and (7) are those of docs/explanation/measurement.md, "The model behind a step's energy".
"""

import numpy as np
from msgspec import Struct

from analyzers.measurement.cuts import Parts
from analyzers.measurement.knots import Floats, Ints
from analyzers.measurement.observation import QUANTUM_J, Observation

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
    """That, times what they showed beside what was expected; shape (n,)."""
    of_part: Floats
    """Which kind each part is of; shape (c, k)."""


def solve(seen: Observation, parts: Parts, believed: Believed, point_t: Floats, alone_s: float) -> Posterior:
    """Return the energies at points, their covariance, and what refreshes left unexplained; equation (6).

    ``point_t``: seconds; shape (p,). Rows of ``seen`` are moved to where changes came early. ``alone_s``:
    changes this far from the next ones can be distinguished.
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
