"""Where the energy of a run went: the parts that the view ``waste`` has of it. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from zeus_stream.views.quantity import Quantity

USEFUL = "steps"
"""The cause that is no waste: steps that were not done again, at no more than the cost of the choice."""
NOT_KNOWN = "not attributed"
LEAST_SHARE = 0.001
"""A part below it is not shown."""
SHOWN = 6
FASTER = "Trials at other limits were faster than the choice, so profiling has taken no time."


class WastePart(Struct, frozen=True, kw_only=True):
    """One part of the energy of a run."""

    cause: str
    energy: Quantity
    duration: Quantity
    share: Quantity


def waste_parts(rows: Iterable[Mapping[str, Any]]) -> tuple[WastePart, ...]:
    """Return the parts in their order. What only rounding left over is no part.

    Args:
        rows: ``cause``, ``energy_j``, ``duration_s`` and ``share`` of one run.
    """
    return tuple(_part(row) for row in rows if not _is_rounding(row))


def _part(row: Mapping[str, Any]) -> WastePart:
    duration_s, share = row["duration_s"], row["share"]
    below = duration_s is not None and duration_s < 0
    return WastePart(
        cause=row["cause"],
        energy=Quantity(row["energy_j"], "J", absent="not measured"),
        duration=Quantity(None if below else duration_s, "s", absent=FASTER if below else "not measured"),
        share=Quantity(None if share is None else 100 * share, "%", absent="the run is not closed yet"),
    )


def _is_rounding(row: Mapping[str, Any]) -> bool:
    """Tell whether a part is what floating-point sums leave: no share of the energy, and next to no time."""
    if row["cause"] != NOT_KNOWN or row["energy_j"] is None:
        return False
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
    return facts
