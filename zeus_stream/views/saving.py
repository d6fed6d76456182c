"""The saving of a run by its power limit or clock: one figure with its interval, and its sentences. Pure.

row of ``saving_of(run)`` --+
                            +--> Saving
search of a live snapshot --+
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from zeus_stream.protocol.snapshots import SearchNow
from zeus_stream.views.quantity import Quantity, bounds, joules, percent, thousandth

TOO_FEW = "too few steps were measured at these limits"
SAME_W = 0.5
"""Limits that differ by less are the same."""


class Saving(Struct, frozen=True, kw_only=True):
    """The decision of a run and what it saves."""

    level: str
    """The limit or clock chosen."""
    found: str
    """What it is compared with."""
    kept: bool
    """The limit found was kept: nothing is saved, by definition, unless another one was in force before."""
    applied: bool
    """False: it is not set; the figures say what it would save."""
    energy: Quantity
    """Percent of the energy of a step."""
    time: Quantity
    """Percent that a step takes longer."""
    saved: Quantity
    """Joules, of all steps so far; those that would be saved, if it is not set."""
    steps: int | None = None
    """At the level chosen."""
    next_percent: float | None = None
    """The energy of a step that the best other limit takes more. None: not known, or another takes less."""
    reason: str = ""
    known_from: str = ""
    """The earlier run that the figures come from. Empty: this one."""

    @property
    def headline(self) -> str:
        """Return the result in one sentence, without its full stop."""
        if self.kept:
            return f"kept {self.level}: {self._kept_words}"
        if self.energy.known is None:
            return f"{self.level} chosen: {self.reason}" if self.reason else f"{self.level} chosen"
        verb = "saves" if self.applied else "would save"
        return f"{self.level} {verb} {self.energy_words} for {self.time_words}"

    @property
    def _kept_words(self) -> str:
        if self.next_percent is None:
            return "no better limit is known"
        return f"none measured is better (the next takes {percent(self.next_percent)} more energy)"

    @property
    def energy_words(self) -> str:
        """Return the saving of energy."""
        if self.energy.covers_zero and not self.kept:
            return "no measurable energy"
        return f"{self.energy} of the energy"

    @property
    def time_words(self) -> str:
        """Return the change of time."""
        added = self.time.known
        if added is None:
            return "a change of time that is not known"
        if self.time.covers_zero:
            return "no measurable change of time"
        return f"{percent(abs(added))} {'more' if added >= 0 else 'less'} time"

    @property
    def effect(self) -> str:
        """Return both changes with their intervals."""
        if self.kept:
            return f"nothing: {self._kept_words}"
        energy = _with("no measurable energy" if self.energy.covers_zero else f"{self.energy}", self.energy)
        time = _with(self.time_words, self.time)
        return f"{energy} of a step's energy for {time}, compared with {self.found}"

    @property
    def saved_words(self) -> str:
        """Return the joules with their interval and the steps that they are of; empty: not known."""
        if self.saved.known is None:
            return ""
        if self.kept and not self.saved.known:
            return "nothing: the limit found is kept"
        interval = bounds(self.saved)
        sure = f" (95 %: {interval})" if interval else ""
        steps = (
            f" over {self.steps:,} steps at this {'clock' if self.level.endswith('MHz') else 'limit'}"
            if self.steps
            else ""
        )
        return f"{joules(self.saved.known)}{sure}{steps}"


def saving_of_row(row: Mapping[str, Any] | None, trials: Sequence[Mapping[str, Any]] = ()) -> Saving | None:
    """Return the saving that a row of ``saving_of`` has. None: no limit was chosen.

    ``trials``: ``power_limit_w`` and ``step_j`` of the limits that were measured, if they are known.
    """
    if row is None or row["power_limit_w"] is None:
        return None
    clock_mhz, found_mhz = row.get("clock_mhz"), row.get("default_clock_mhz")
    kept = _is_kept(row["power_limit_w"], row["default_limit_w"], clock_mhz, found_mhz)
    energies = {each["power_limit_w"]: each["step_j"] for each in trials}
    applied = bool(row["applied"])
    saved_j = row["saved_j" if applied else "would_save_j"]
    energy = _quantity(row, "energy_saved", kept=kept and not saved_j)
    if kept and not saved_j:
        saved_j = 0.0
    return Saving(
        level=level_name(row["power_limit_w"], clock_mhz),
        found=found_name(row["default_limit_w"], found_mhz),
        kept=kept,
        applied=applied,
        energy=energy,
        time=_quantity(row, "time_added", kept=kept),
        saved=_joules_of(saved_j, energy),
        steps=row["steps_at_limit"],
        next_percent=_next_percent(energies, row["power_limit_w"]) if kept else None,
        reason=row["reason"] or "",
        known_from=_known_from(row),
    )


def _known_from(row: Mapping[str, Any]) -> str:
    if row["applied"] or row["trials_run"] in (None, row["run"]):
        return ""
    if row["changed_percent"] is None:
        changed = "it is not known whether a step still takes the same energy"
    else:
        changed = (
            f"a step at the highest limit takes {row['changed_percent']:+.1f} % energy compared with that run"
        )
    return f"{row['trials_run']}, an earlier run; {changed}"


def saving_of_search(search: SearchNow | None) -> Saving | None:
    """Return the saving that a live snapshot has. None: no limit is chosen yet."""
    if search is None or search.limit_mw is None or search.phase in ("waiting", "measuring", "observing"):
        return None
    row = {
        "power_limit_w": search.limit_mw / 1000, "default_limit_w": thousandth(search.found_mw),
        "clock_mhz": search.clock_mhz, "applied": True, "reason": search.reason, "steps_at_limit": None,
        "saved_j": search.saved_j, "energy_saved_percent": search.saved_percent,
        "energy_saved_low_percent": search.saved_low_percent,
        "energy_saved_high_percent": search.saved_high_percent,
        "time_added_percent": search.time_added_percent,
        "time_added_low_percent": search.time_added_low_percent,
        "time_added_high_percent": search.time_added_high_percent,
        "absent": "the report of the run has it",
    }  # fmt: skip
    trials = [
        {"power_limit_w": trial.limit_mw / 1000, "step_j": trial.step_j}
        for trial in search.trials
        if trial.step_j is not None
    ]
    return saving_of_row(row, trials)


def _with(words: str, quantity: Quantity) -> str:
    interval = bounds(quantity)
    return f"{words} (95 %: {interval})" if interval else words


def level_name(limit_w: float, clock_mhz: int | None) -> str:
    """Return a power limit or the clock that stands for it."""
    return f"{limit_w:g} W" if clock_mhz is None else f"{clock_mhz} MHz"


def found_name(found_w: float | None, found_mhz: int | None) -> str:
    """Return what a level is compared with."""
    if found_mhz is not None:
        return f"{found_mhz} MHz, the highest clock"
    return "the limit found" if found_w is None else f"{found_w:g} W, the limit found"


def _is_kept(limit_w: float, found_w: float | None, clock_mhz: int | None, found_mhz: int | None) -> bool:
    if clock_mhz is not None:
        return clock_mhz == found_mhz
    return found_w is not None and abs(limit_w - found_w) < SAME_W


def _quantity(row: Mapping[str, Any], what: str, *, kept: bool) -> Quantity:
    if kept:
        return Quantity(0.0, "%")
    value, low, high = (row[f"{what}{part}_percent"] for part in ("", "_low", "_high"))
    return Quantity(value, "%", low, high, absent=row.get("absent", TOO_FEW))


def _joules_of(saved_j: float | None, share: Quantity) -> Quantity:
    """Return joules with the interval of the share that they are."""
    if saved_j is None or not share.known or share.interval is None or max(share.interval) >= 100:
        return Quantity(saved_j, "J", absent="no step at this limit is measured yet")
    used_j = saved_j * (100 / share.known - 1)
    low, high = (used_j * bound / (100 - bound) for bound in share.interval)
    return Quantity(saved_j, "J", low, high)


def _next_percent(energies: Mapping[float, float], kept_w: float) -> float | None:
    """Return how much more energy than the limit kept the best other limit takes."""
    kept_j = energies.get(kept_w)
    others = [energy_j for limit_w, energy_j in energies.items() if abs(limit_w - kept_w) >= SAME_W]
    if not kept_j or not others or min(others) < kept_j:
        return None
    return 100 * (min(others) / kept_j - 1)
