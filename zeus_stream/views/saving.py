"""The saving of a run by its power limit or clock: one figure with its interval, and its sentences. Pure.

row of ``saving_of(run)`` --+
                            +--> Saving
search of a live snapshot --+

The joules saved are those of stretches of steps, each against the baseline that its own decision measured.
"""

from collections.abc import Mapping, Sequence
from math import hypot
from typing import Any

from msgspec import Struct

from zeus_stream.protocol.snapshots import SearchNow, StretchNow
from zeus_stream.views.quantity import Quantity, bounds, counted, percent, thousandth, with_bounds

TOO_FEW = "too few steps were measured at these limits"
UNKNOWN: Mapping[str, Any] = {
    "energy_saved_percent": None, "energy_saved_low_percent": None, "energy_saved_high_percent": None,
    "time_added_percent": None, "time_added_low_percent": None, "time_added_high_percent": None,
    "saved_j": None, "would_save_j": None, "stretches": None, "absent": "the limit found was not measured",
}  # fmt: skip
"""The saving of a limit while no higher limit was measured."""
SAME_W = 0.5
"""Limits that differ by less are the same."""


class SavedPart(Struct, frozen=True, kw_only=True):
    """Joules that were saved between two changes of the workload."""

    first_step: int
    """At which its first limit was chosen."""
    level: str
    """The last limit or clock chosen in it."""
    steps: int
    saved: Quantity

    @property
    def words(self) -> str:
        return f"{with_bounds(self.saved)} in {counted(self.steps, 'step')} at {self.level}"


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
    """At the level chosen, of which ``saved`` is. None: not known, or it is not set."""
    next_percent: float | None = None
    """The energy of a step that the best other limit takes more. None: not known, or another takes less."""
    others: bool = False
    """Other limits were measured."""
    reason: str = ""
    known_from: str = ""
    """The earlier run that the figures come from. Empty: this one."""
    parts: tuple[SavedPart, ...] = ()
    """Of ``saved``, where the workload has changed: before the first change, and from each change on."""

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
            return "none measured is better" if self.others else "no better limit is known"
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
        energy = _with("no measurable energy", self.energy)
        if not self.energy.covers_zero:
            energy = f"{_with(str(self.energy), self.energy)} of a step's energy"
        return f"{energy} for {_with(self.time_words, self.time)}, compared with {self.found}"

    @property
    def saved_words(self) -> str:
        """Return the joules with their interval and the steps that they are of; empty: not known."""
        if self.saved.known is None:
            return ""
        if self.kept and not self.saved.known:
            return "nothing: the limit found is kept"
        if not self.applied:
            return f"{with_bounds(self.saved)} of the energy of the steps at {self.found}"
        if self.parts:
            return f"{with_bounds(self.saved)}: {self.parts_words}"
        what = "clock" if self.level.endswith("MHz") else "limit"
        steps = f" over {self.steps:,} steps at this {what}" if self.steps else ""
        return f"{with_bounds(self.saved)}{steps}"

    @property
    def parts_words(self) -> str:
        """Return what was saved before the workload changed, and what since. Empty: it has not."""
        if not self.parts:
            return ""
        first, *later = self.parts
        since = [f"{part.words} from step {part.first_step:,} on, for a changed workload" for part in later]
        return "; ".join([f"{first.words} before step {later[0].first_step:,}", *since])


def saving_of_row(row: Mapping[str, Any] | None, trials: Sequence[Mapping[str, Any]] = ()) -> Saving | None:
    """Return the saving that a row of ``saving_of`` has. None: no limit was chosen.

    ``trials``: ``power_limit_w`` and ``step_j`` of the limits that were measured, if they are known.
    """
    if row is None or row["power_limit_w"] is None:
        return None
    clock_mhz, found_mhz = row.get("clock_mhz"), row.get("default_clock_mhz")
    found = found_name(row["default_limit_w"], found_mhz)
    kept = _is_kept(row["power_limit_w"], row["default_limit_w"], clock_mhz, found_mhz)
    if not kept and row["energy_saved_percent"] == 0:  # it was compared with itself
        row = {**row, **UNKNOWN}
    energies = {each["power_limit_w"]: each["step_j"] for each in trials}
    highest_w, own = max(energies, default=0.0), "run" in row and row.get("trials_run") == row["run"]
    if own and highest_w and row["default_limit_w"] and highest_w <= row["default_limit_w"] - SAME_W:
        found = f"{level_name(highest_w, clock_mhz)}, the highest limit measured"
    applied = bool(row["applied"])
    saved_j = row["saved_j" if applied else "would_save_j"]
    if kept and not saved_j:
        saved_j = 0.0
    stretches = row.get("stretches") or [{**row, "saved_j": saved_j, "measured_by": "", "changed": False}]
    return Saving(
        level=level_name(row["power_limit_w"], clock_mhz),
        found=found,
        kept=kept,
        applied=applied,
        energy=_quantity(row, "energy_saved", kept=kept and not saved_j),
        time=_quantity(row, "time_added", kept=kept),
        saved=_joules_of(saved_j, stretches),
        steps=row["steps_at_limit"] if applied else None,  # the joules it would save are of other steps
        next_percent=_next_percent(energies, row["power_limit_w"]) if kept else None,
        others=len(energies) > 1,
        reason=row["reason"] or "",
        known_from=_known_from(row),
        parts=_parts(stretches),
    )


def _known_from(row: Mapping[str, Any]) -> str:
    if row["applied"] or row["trials_run"] in (None, row["run"]):
        return ""
    if row["changed_percent"] is None:
        changed = "it is not known whether a step still takes the same energy"
    else:
        by, more = abs(row["changed_percent"]), "more" if row["changed_percent"] >= 0 else "less"
        changed = f"a step at the highest limit takes {percent(by)} {more} energy than then"
    return f"{row['trials_run']}, an earlier run; {changed}"


def saving_of_search(search: SearchNow | None) -> Saving | None:
    """Return the saving that a live snapshot has. None: no limit is chosen yet.

    While a run searches again, that is what the limit chosen before has saved.
    """
    if search is None or search.phase == "observing":
        return None
    level: SearchNow | StretchNow = search
    if search.phase in ("waiting", "measuring"):
        if not search.stretches or search.stretches[-1].saved_percent in (None, 0.0):
            return None
        level = search.stretches[-1]
    if level.limit_mw is None or level.saved_percent != search.saved_percent:
        return None
    row = {
        "power_limit_w": level.limit_mw / 1000, "default_limit_w": thousandth(search.found_mw),
        "clock_mhz": level.clock_mhz, "applied": True, "reason": search.reason, "steps_at_limit": None,
        "saved_j": search.saved_j, "energy_saved_percent": search.saved_percent,
        "energy_saved_low_percent": search.saved_low_percent,
        "energy_saved_high_percent": search.saved_high_percent,
        "time_added_percent": search.time_added_percent,
        "time_added_low_percent": search.time_added_low_percent,
        "time_added_high_percent": search.time_added_high_percent,
        "absent": "the report of the run has it",
        "stretches": [
            {
                "first_step": each.first_step, "changed": each.changed, "power_limit_w": each.limit_mw / 1000,
                "clock_mhz": each.clock_mhz, "steps": each.steps, "saved_j": each.saved_j,
                "energy_saved_percent": each.saved_percent,
                "energy_saved_low_percent": each.saved_low_percent,
                "energy_saved_high_percent": each.saved_high_percent, "measured_by": each.measured_by,
            }
            for each in search.stretches
        ],
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


def _joules_of(saved_j: float | None, stretches: Sequence[Mapping[str, Any]]) -> Quantity:
    """Return joules with their interval: those of stretches of steps, each as wide as its share is known.

    Doubts of one measurement add up. Those of two have nothing to do with each other: their squares do.
    """
    below: dict[str, float] = {}
    above: dict[str, float] = {}
    for stretch in stretches:
        within = _within(stretch)
        if saved_j is None or within is None:
            return Quantity(saved_j, "J", absent="no step at this limit is measured yet")
        who = stretch["measured_by"]
        below[who], above[who] = below.get(who, 0.0) + within[0], above.get(who, 0.0) + within[1]
    assert saved_j is not None
    return Quantity(saved_j, "J", saved_j - hypot(*below.values()), saved_j + hypot(*above.values()))


def _within(stretch: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return by how many joules less and more a stretch may have saved. None: it is not known."""
    saved_j = stretch["saved_j"]
    if saved_j == 0:
        return 0.0, 0.0
    share = _quantity(stretch, "energy_saved", kept=False)
    if saved_j is None or not share.known or share.interval is None or max(share.interval) >= 100:
        return None
    used_j = saved_j * (100 / share.known - 1)
    low, high = sorted(used_j * bound / (100 - bound) for bound in share.interval)
    return saved_j - low, high - saved_j


def _parts(stretches: Sequence[Mapping[str, Any]]) -> tuple[SavedPart, ...]:
    """Return the stretches between two changes of the workload together; none if it has not changed."""
    begins = [at for at, stretch in enumerate(stretches) if at == 0 or stretch["changed"]]
    spans = [stretches[begin:end] for begin, end in zip(begins, [*begins[1:], None], strict=True)]
    return tuple(
        SavedPart(
            first_step=of[0]["first_step"],
            level=level_name(of[-1]["power_limit_w"], of[-1]["clock_mhz"]),
            steps=sum(stretch["steps"] for stretch in of),
            saved=_joules_of(sum(stretch["saved_j"] for stretch in of), of),
        )
        for of in spans
        if len(spans) > 1
    )


def _next_percent(energies: Mapping[float, float], kept_w: float) -> float | None:
    """Return how much more energy than the limit kept the best other limit takes."""
    kept_j = energies.get(kept_w)
    others = [energy_j for limit_w, energy_j in energies.items() if abs(limit_w - kept_w) >= SAME_W]
    if not kept_j or not others or min(others) < kept_j:
        return None
    return 100 * (min(others) / kept_j - 1)
