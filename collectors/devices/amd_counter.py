"""The verdict on an AMD GPU's energy counter: can it be trusted? Pure."""

from statistics import fmean

from msgspec import Struct

TRUSTED = (0.5, 2.0)
"""A counter is trusted if it grew by so much of what the power readings say. Both are rough at rest, so this
finds what is off by a factor, not by a gain of some percent."""


class Trial(Struct, frozen=True):
    """A reading of a counter and its GPU's power, side by side."""

    t_ns: tuple[int, ...]
    energy_mj: tuple[int, ...]
    power_mw: tuple[int, ...]


def objection(trial: Trial) -> str | None:
    """Return why a counter is not to be trusted, or None. Pure."""
    if len(trial.energy_mj) < 2 or not trial.power_mw:
        return "there are no power readings to compare it with"
    grown_mj = trial.energy_mj[-1] - trial.energy_mj[0]
    if sorted(trial.energy_mj) != list(trial.energy_mj):
        return "it fell"
    if grown_mj == 0:
        return "it stands still"
    expected_mj = fmean(trial.power_mw) * (trial.t_ns[-1] - trial.t_ns[0]) / 1e9
    least, most = TRUSTED
    if not least <= grown_mj / expected_mj <= most:
        return f"it grew by {grown_mj / 1000:.3g} J where the power readings say {expected_mj / 1000:.3g} J"
    return None
