"""Steps of a load on a counter with truth, as they are measured, and how good that is."""

from collections.abc import Sequence

import numpy as np

from analyzers.measurement.energy import Meter
from analyzers.measurement.energy_fit import EnergyFit
from analyzers.measurement.knots import Floats
from tests.analyzers.readings import MS
from tests.simulation.loads import SEED, Name, load
from tests.simulation.played import Measured, counter, play


def measured_steps(
    name: Name,
    step_ms: int,
    count: int,
    seed: int | None = None,
    *,
    period_ms: int = 100,
    window_ms: int | None = None,
    suspect_ms: int | None = None,
    known_ms: int | None = None,
    until_ns: int | None = None,
    waits_ns: int = 0,
) -> tuple[list[Measured], Meter]:
    """Return what is measured of steps on a counter that sees ``window_ns`` of each period; None: all.

    ``suspect_ms``: it may see so much; ``known_ms``: it is known to. The others: see `play`.
    """
    shape = EnergyFit()
    if suspect_ms is not None:
        shape.suspect(suspect_ms * MS)
    if known_ms is not None:
        shape.remember("boxcar", known_ms * MS)
    made = load(name, step_ms, count, SEED if seed is None else seed)
    shown = counter(made, period_ms * MS, window_ms and window_ms * MS, seed=seed or 0)
    return play(made, shown, shape, until_ns, waits_ns=waits_ns)


def errors(steps: Sequence[Measured]) -> Floats:
    """Return the relative error of each step."""
    return np.array([step.answer.energy_uj / 1e6 / step.truth_j - 1 for step in steps])


def held(steps: Sequence[Measured]) -> float:
    """Return the share of truths within the 95 % interval, give or take 2 mJ of rounding."""
    inside = [
        step.answer.p2_5_uj - 2_000 <= step.truth_j * 1e6 <= step.answer.p97_5_uj + 2_000 for step in steps
    ]
    return sum(inside) / len(inside)


def half_widths(steps: Sequence[Measured]) -> Floats:
    """Return half of the 95 % interval of each step, as a part of its energy."""
    return np.array([(one.answer.p97_5_uj - one.answer.p2_5_uj) / 2e6 / one.truth_j for one in steps])
