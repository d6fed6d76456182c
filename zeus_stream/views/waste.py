"""Where the energy of a run went: the parts that the view ``waste`` has of it. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from zeus_stream.views.quantity import Quantity, joules

USEFUL = "steps"
"""The cause that is no waste: steps that were not done again, at no more than the cost of the choice."""
NOT_KNOWN = "not attributed"
LEAST_SHARE = 0.001
"""A part below it is not shown."""
REGAINED_SHARE = 0.01
"""A part below it is shown without a cure."""
SHOWN = 6
_CURES = {
    USEFUL: "",
    "data wait": "more workers of the loader, or a longer prefetch",
    "stragglers": "equal shares for all ranks",
    "profiling": "paid once: later runs of the job start from it",
    "redone steps": "checkpoints at shorter intervals",
    "outside epochs": "a name for each part: zeus_stream.window",
    "idle GPU": "another run on it, or none of its power",
    NOT_KNOWN: "a name for each part: zeus_stream.window",
}
_PER_EPOCH = ("valid", "eval", "test")
"""Beginnings of the names of windows that come once an epoch."""
FASTER = "Trials at other limits were faster than the choice, so profiling has taken no time."


class WastePart(Struct, frozen=True, kw_only=True):
    """One part of the energy of a run."""

    cause: str
    energy: Quantity
    duration: Quantity
    share: Quantity

    @property
    def cure(self) -> str:
        """Return what regains it, and how much where that is known."""
        if (known := _CURES.get(self.cause)) is not None:
            return known
        often = "every second epoch" if self.cause.startswith(_PER_EPOCH) else "half as often"
        return often if not self.energy.known else f"{often} saves {joules(self.energy.known / 2)}"


def waste_parts(rows: Iterable[Mapping[str, Any]], so_far_j: float | None = None) -> tuple[WastePart, ...]:
    """Return the parts in their order; what only rounding left over is none.

    ``so_far_j``: energy of an open run. Its last steps may be later than the last second that is in it: then
    the parts are shares of what they add up to.
    """
    listed = [row for row in rows if not _is_rounding(row)]
    known_j = sum(row["energy_j"] or 0.0 for row in listed)
    whole_j = None if so_far_j is None else max(so_far_j, known_j)
    return tuple(_part(row, whole_j) for row in listed)


def waste_of_runs(rows: Iterable[Mapping[str, Any]]) -> tuple[WastePart, ...]:
    """Return the parts of several runs together, each with its share of all that is in ``rows``."""
    listed = list(rows)
    whole_j = sum(row["energy_j"] or 0.0 for row in listed)
    shares = [row["energy_j"] / whole_j if row["energy_j"] and whole_j else None for row in listed]
    return waste_parts(
        {**row, "duration_s": None, "share": share} for row, share in zip(listed, shares, strict=True)
    )


def _part(row: Mapping[str, Any], whole_j: float | None) -> WastePart:
    duration_s, share = row["duration_s"], row["share"]
    if share is None and whole_j and row["energy_j"] is not None:
        share = row["energy_j"] / whole_j
    below = duration_s is not None and duration_s < 0
    return WastePart(
        cause=row["cause"],
        energy=Quantity(row["energy_j"], "J", absent="not measured"),
        duration=Quantity(None if below else duration_s, "s", absent=FASTER if below else "not measured"),
        share=Quantity(None if share is None else 100 * share, "%", absent="the run is not closed yet"),
    )


def _is_rounding(row: Mapping[str, Any]) -> bool:
    """Tell whether a part is what floating-point sums leave: next to no energy, and next to no time."""
    if row["energy_j"] is None:
        return row["cause"] == NOT_KNOWN and not row["duration_s"]
    return bool(abs(row["energy_j"]) < 1e-3 and abs(row["duration_s"] or 0.0) < 1e-3)


def waste_facts(parts: Iterable[WastePart]) -> list[tuple[str, str]]:
    """Return the share of the steps and the largest parts outside of them: names and texts."""
    known = [each for each in parts if each.energy.known is not None and each.share.known is not None]
    if not known:
        return []
    useful = sum(each.share.known or 0.0 for each in known if each.cause == USEFUL)
    rest = [each for each in known if each.cause != USEFUL and (each.share.known or 0.0) >= 100 * LEAST_SHARE]
    facts = [("steps", f"{Quantity(useful, '%')} of the energy")]
    if rest:
        shown = [f"{each.cause} {each.energy} ({each.share})" for each in rest[:SHOWN]]
        if len(rest) > SHOWN:
            shown.append(f"{len(rest) - SHOWN} more in the view waste")
        facts.append(("the rest", ", ".join(shown)))
        if (rest[0].share.known or 0.0) >= 100 * REGAINED_SHARE:
            facts.append(("to regain", f"{rest[0].cause} {rest[0].share}: {rest[0].cure}"))
    return facts
