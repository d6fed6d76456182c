"""Energies of windows, with their bounds, or why there is none. Pure."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Estimator = Literal["counter", "power", "shaped"]
Joules = tuple[float | None, float | None, float | None, float | None, float | None]
"""An energy, its hard bounds and its 95 % interval."""
NO_JOULES: Joules = (None, None, None, None, None)


class NoEnergy(Struct, frozen=True):
    """There is no energy, for this reason."""

    reason: str


class KnownEnergy(Struct, frozen=True, kw_only=True):
    """The energy that a GPU used between two instants."""

    energy_uj: int
    low_uj: int | None
    """Hard bound; None where there is none: power readings, and counters that do not see all."""
    high_uj: int | None
    p2_5_uj: int
    """The truth is less than this in one case of 40, and in as many more than ``p97_5_uj``."""
    p97_5_uj: int
    phase_coverage: float | None
    """See `analyzers.measurement.counter_kind.CounterKnowledge.phase_coverage`."""
    estimator: Estimator
    quality: str
    """``ok``, or what is wrong, separated by ``; ``."""

    @property
    def joules(self) -> Joules:
        low_uj, high_uj = self.low_uj, self.high_uj
        return (
            self.energy_uj / 1e6,
            None if low_uj is None else low_uj / 1e6,
            None if high_uj is None else high_uj / 1e6,
            self.p2_5_uj / 1e6,
            self.p97_5_uj / 1e6,
        )

    @property
    def seen(self) -> bool:
        """There were readings all the while, and more than one refresh."""
        return not any(word in self.quality for word in ("unseen", "readings", "within one refresh"))


class Energies(Struct, frozen=True, kw_only=True):
    """Energies of windows, as columns of shape (n,)."""

    known: npt.NDArray[np.bool_]
    """Where it is not, the energy is `NoEnergy`, ``quality`` is why, and the other columns mean nothing."""
    energy_uj: Ints
    low_uj: Ints | None
    """Hard bounds, as those of `KnownEnergy`."""
    high_uj: Ints | None
    p2_5_uj: Ints
    p97_5_uj: Ints
    phase_coverage: float | None
    estimator: Sequence[Estimator]
    quality: Sequence[str]

    @classmethod
    def missing(cls, reasons: Sequence[str]) -> "Energies":
        """Return energies of which none is known, for these reasons."""
        nothing = np.zeros(len(reasons), np.int64)
        return cls(
            known=nothing != 0,
            energy_uj=nothing,
            low_uj=None,
            high_uj=None,
            p2_5_uj=nothing,
            p97_5_uj=nothing,
            phase_coverage=None,
            estimator=["power"] * len(reasons),
            quality=reasons,
        )

    def each(self) -> list[KnownEnergy | NoEnergy]:
        unbounded = [None] * len(self.quality)
        bounds = (unbounded if bound is None else bound.tolist() for bound in (self.low_uj, self.high_uj))
        columns = self.known.tolist(), self.energy_uj.tolist(), *bounds
        likely = self.p2_5_uj.tolist(), self.p97_5_uj.tolist()
        return [
            KnownEnergy(
                energy_uj=used_uj,
                low_uj=low_uj,
                high_uj=high_uj,
                p2_5_uj=p2_5_uj,
                p97_5_uj=p97_5_uj,
                phase_coverage=self.phase_coverage,
                estimator=estimator,
                quality=quality,
            )
            if known
            else NoEnergy(quality)
            for known, used_uj, low_uj, high_uj, p2_5_uj, p97_5_uj, estimator, quality in zip(
                *columns, *likely, self.estimator, self.quality, strict=True
            )
        ]

    def joules(self) -> list[Floats]:
        """Return the columns of `KnownEnergy.joules`; NaN where the energy is not known."""
        every = (self.energy_uj, self.low_uj, self.high_uj, self.p2_5_uj, self.p97_5_uj)
        return [
            np.full(len(self.known), np.nan) if uj is None else np.where(self.known, uj / 1e6, np.nan)
            for uj in every
        ]
