"""The loads that energy figures are measured on: when each step began and ended, and the power all the while.

Frozen: the generator, its figures and its seeds are part of every accuracy figure that was published, so a
change here is a new load with a new name. A load is arithmetic; a virtual GPU in virtual time reads power and
energy off it, and the truth of any window is its exact integral.

    constant   back-to-back steps; power never moves
    clean      steps at one power, gaps of 10 to 20 % of a step at another, sharp edges
    noisy      the same, but each step and gap draws its own power (+-15 %, uniform), steps are +-10 % long,
               power rises 0 to 1 ms after a step's begin, and every change of power is a ramp of 1 to 3 ms

Four more have the scatter of noisy and differ in their edges only (each edge draws its own figures):

    prompt     power rises and falls at the marks, without a ramp
    late       power rises 0 to 3 ms after a step's begin, and falls at its end; no ramps
    ramped     power starts to move at the marks; every change is a ramp of 1 to 3 ms
    mixed      rises are 0 to 3 ms late with ramps of 1 to 3 ms, falls 0 to 0.5 ms with ramps up to 1 ms

One has steps that never change, and pauses:

    epochs     back-to-back steps at one power; after every 5 s the job rests for 1 s, at the power of a gap

Before the first step and after the last, `REST_NS` at the power of a gap.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Ints = npt.NDArray[np.int64]
Name = Literal["constant", "clean", "noisy", "prompt", "late", "ramped", "mixed", "epochs"]

NAMES: tuple[Name, ...] = ("constant", "clean", "noisy")
EDGES: tuple[Name, ...] = ("prompt", "late", "ramped", "mixed")
_ORDER: tuple[Name, ...] = (*NAMES, *EDGES, "epochs")
"""Seeds depend on it: append only."""
STEPS_MS: dict[Name, tuple[int, ...]] = {
    name: (20, 50, 100, 500, 5000) if name in ("constant", "clean") else (20, 50, 100, 500) for name in _ORDER
}
SEED = 20_260
REST_NS = 1_000_000_000
_DRAWS = 8
"""Numbers drawn for each step, used or not: the first steps of a longer load are those of a shorter one."""


class Truth(Struct, frozen=True):
    """The parameters of a load, which an oracle may know. Ranges are uniform."""

    step_mw: int
    """Mean power of a step."""
    gap_mw: int
    """Mean power of a gap, and of the rest before and after."""
    swing: float
    """Each step's and each gap's power lies within the mean times 1 -+ this."""
    late_ns: tuple[int, int]
    """Power begins to move this long after a step's begin."""
    ramp_ns: tuple[int, int]
    """How long power takes to arrive. A fall begins at the step's end and is over by the next begin."""
    fall_late_ns: tuple[int, int] = (0, 0)
    """A fall begins this long after a step's end."""
    fall_ramp_ns: tuple[int, int] | None = None
    """How long a fall takes; None: as long as a rise."""


class Load(Struct, frozen=True):
    """Steps, and the power all the while: straight lines between points. Times are ns from its start."""

    name: Name
    step_ms: int
    steps_ns: Ints
    """Begin and end of each step, shape (n, 2)."""
    t_ns: Ints
    """Shape (m,), never falls; two points at one instant are a jump. The first is 0."""
    power_mw: Ints
    """Shape (m,). Before the first point and after the last, power stays what it is there."""
    truth: Truth
    _sums: Ints
    """Twice the energy from 0 to each point, pJ; shape (m,)."""

    @property
    def end_ns(self) -> int:
        """When the rest after the last step is over."""
        return int(self.t_ns[-1])

    def power_at_mw(self, t_ns: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the power at instants, mW; at a jump, that after it. Shape of ``t_ns``."""
        at = np.asarray(t_ns, np.int64)
        left = np.clip(np.searchsorted(self.t_ns, at, side="right") - 1, 0, len(self.t_ns) - 1)
        right = np.minimum(left + 1, len(self.t_ns) - 1)
        width_ns = np.maximum(self.t_ns[right] - self.t_ns[left], 1)
        part = np.clip((at - self.t_ns[left]) / width_ns, 0.0, 1.0)
        mw: npt.NDArray[np.float64] = self.power_mw[left] + part * (
            self.power_mw[right] - self.power_mw[left]
        )
        return mw

    def energy_pj(self, begin_ns: npt.ArrayLike, end_ns: npt.ArrayLike) -> Ints:
        """Return the exact energy of intervals, pJ (mW x ns); adjacent ones add up. Shapes broadcast."""
        energy: Ints = self._until_pj(np.asarray(end_ns, np.int64)) - self._until_pj(
            np.asarray(begin_ns, np.int64)
        )
        return energy

    def _until_pj(self, t_ns: Ints) -> Ints:
        left = np.clip(np.searchsorted(self.t_ns, t_ns, side="right") - 1, 0, len(self.t_ns) - 1)
        mean_mw = (self.power_at_mw(t_ns) + self.power_mw[left]) / 2
        inside = np.rint((t_ns - self.t_ns[left]) * mean_mw).astype(np.int64)
        until: Ints = self._sums[left] // 2 + inside
        return until


TRUTHS: dict[Name, Truth] = {
    "constant": Truth(250_000, 250_000, 0.0, (0, 0), (0, 0)),
    "clean": Truth(280_000, 70_000, 0.0, (0, 0), (0, 0)),
    "noisy": Truth(280_000, 70_000, 0.15, (0, 1_000_000), (1_000_000, 3_000_000)),
    "prompt": Truth(280_000, 70_000, 0.15, (0, 0), (0, 0)),
    "late": Truth(280_000, 70_000, 0.15, (0, 3_000_000), (0, 0)),
    "ramped": Truth(280_000, 70_000, 0.15, (0, 0), (1_000_000, 3_000_000)),
    "epochs": Truth(250_000, 70_000, 0.0, (0, 0), (0, 0)),
    "mixed": Truth(
        *(280_000, 70_000, 0.15, (0, 3_000_000), (1_000_000, 3_000_000)), *((0, 500_000), (0, 1_000_000))
    ),
}
STEP_SWING: dict[Name, float] = dict.fromkeys(_ORDER, 0.10) | dict.fromkeys(
    ("constant", "clean", "epochs"), 0.02
)
"""Each step's length lies within its nominal length times 1 -+ this."""
GAPS: dict[Name, tuple[float, float]] = {
    **dict.fromkeys(_ORDER, (0.1, 0.2)),
    **dict.fromkeys(("constant", "epochs"), (0.0, 0.0)),
}
"""A gap's length, as a share of the step's nominal length."""
EPOCH_NS, PAUSE_NS = 5_000_000_000, 1_000_000_000
"""Steps and pause of ``epochs``."""


def load(name: Name, step_ms: int, steps: int | None = None, seed: int = SEED) -> Load:
    """Return a load; the same arguments give the same load, and fewer steps its beginning.

    Args:
        name: which.
        step_ms: nominal length of a step.
        steps: how many; None: those of 20 s, at least 40.
        seed: of everything that is drawn.
    """
    long_ns, gap_ns = lengths(name, step_ms, steps, seed)
    begin_ns = REST_NS + np.concatenate(([0], np.cumsum(long_ns + gap_ns)[:-1]))
    steps_ns = np.stack((begin_ns, begin_ns + long_ns), axis=1)
    next_ns = np.concatenate((begin_ns[1:], steps_ns[-1:, 1] + REST_NS))
    return _shaped(name, step_ms, steps_ns, next_ns, int(next_ns[-1]), seed)


def lengths(name: Name, step_ms: int, steps: int | None = None, seed: int = SEED) -> tuple[Ints, Ints]:
    """Return the lengths of the steps of a load and of the gaps after them, ns; shape (n,) each."""
    drawn, (least, most) = _draws(name, step_ms, steps, seed), GAPS[name]
    long_ns = np.rint(step_ms * 1e6 * (1 + STEP_SWING[name] * (2 * drawn[:, 0] - 1))).astype(np.int64)
    gap_ns = np.rint(step_ms * 1e6 * (least + (most - least) * drawn[:, 1])).astype(np.int64)
    if name == "epochs":
        gap_ns[np.flatnonzero(np.diff(np.cumsum(long_ns) // EPOCH_NS))] = PAUSE_NS
    return long_ns, gap_ns


def followed(name: Name, step_ms: int, steps_ns: Ints, end_ns: int, seed: int = SEED) -> Load:
    """Return a load as `load` does, whose steps began and ended when a training says.

    A fall is over within the length that `lengths` has for the gap, so no power depends on a later step.

    Args:
        name, step_ms, seed: as of `load`.
        steps_ns: begin and end of the steps so far, ns from the start of the load, shape (n, 2). The gap
            after a step is at least as long as in `lengths`.
        end_ns: when the rest after the last step is over.
    """
    _, gap_ns = lengths(name, step_ms, len(steps_ns), seed)
    return _shaped(name, step_ms, steps_ns, steps_ns[:, 1] + gap_ns, end_ns, seed)


def _draws(name: Name, step_ms: int, steps: int | None, seed: int) -> npt.NDArray[np.float64]:
    count = max(40, 20_000 // step_ms) if steps is None else steps
    return np.random.default_rng([seed, _ORDER.index(name), step_ms]).random((count, _DRAWS))


def _shaped(name: Name, step_ms: int, steps_ns: Ints, fallen_ns: Ints, end_ns: int, seed: int) -> Load:
    """Return the load of steps whose falls are over by ``fallen_ns``, shape (n,)."""
    truth, drawn = TRUTHS[name], _draws(name, step_ms, len(steps_ns), seed)

    def between(limits: tuple[int, int], column: int) -> Ints:
        least, most = limits
        return np.rint(least + (most - least) * drawn[:, column]).astype(np.int64)

    step_mw = np.rint(truth.step_mw * (1 + truth.swing * (2 * drawn[:, 2] - 1))).astype(np.int64)
    gap_mw = np.rint(truth.gap_mw * (1 + truth.swing * (2 * drawn[:, 3] - 1))).astype(np.int64)
    before_mw = np.concatenate(([truth.gap_mw], gap_mw))
    rise_ns = steps_ns[:, 0] + between(truth.late_ns, 4)
    risen_ns = rise_ns + between(truth.ramp_ns, 5)
    fall_ns = np.minimum(steps_ns[:, 1] + between(truth.fall_late_ns, 7), fallen_ns)
    fallen_ns = np.minimum(fall_ns + between(truth.fall_ramp_ns or truth.ramp_ns, 6), fallen_ns)
    t_ns = np.stack((rise_ns, risen_ns, fall_ns, fallen_ns), axis=1).ravel()
    power_mw = np.stack((before_mw[:-1], step_mw, step_mw, gap_mw), axis=1).ravel()
    t_ns = np.concatenate(([0], t_ns, [end_ns]))
    power_mw = np.concatenate(([truth.gap_mw], power_mw, before_mw[-1:]))
    twice_pj = np.diff(t_ns) * (power_mw[1:] + power_mw[:-1])
    sums = np.concatenate(([0], np.cumsum(twice_pj)))
    return Load(name, step_ms, steps_ns, t_ns, power_mw, truth, sums)
