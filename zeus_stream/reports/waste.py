"""Where the energy of a run went, as text: the parts that the view ``waste`` has of it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from zeus_stream.reports.html.questions import quoted

USEFUL = "steps"
"""The cause that is no waste: steps that were not done again, at no more than the cost of the choice."""
NOT_KNOWN = "not attributed"
LEAST_SHARE = 0.001
"""A part below it is not shown."""
SHOWN = 6


def wasted(answer: Callable[[str], pa.Table], run: str) -> list[dict[str, Any]]:
    """Return the parts of a run, the largest first; ``answer`` answers SQL."""
    rows: list[dict[str, Any]] = answer(
        f"SELECT cause, energy_j, duration_s, share FROM waste_of({quoted(run)})"  # noqa: S608  (quoted)
        " ORDER BY energy_j DESC NULLS LAST, cause"
    ).to_pylist()
    return rows


def waste_facts(parts: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the share of the steps and the largest parts outside of them: names and texts."""
    known = [each for each in parts if each["energy_j"] is not None and each["share"] is not None]
    if not known:
        return []
    useful = sum(each["share"] for each in known if each["cause"] == USEFUL)
    rest = [each for each in known if each["cause"] != USEFUL and each["share"] >= LEAST_SHARE]
    facts = [("steps", f"{100 * useful:.1f} % of the energy")]
    if rest:
        shown = [
            f"{each['cause']} {each['energy_j']:,.1f} J ({100 * each['share']:.1f} %)"
            for each in rest[:SHOWN]
        ]
        if len(rest) > SHOWN:
            shown.append(f"{len(rest) - SHOWN} more in the view waste")
        facts.append(("the rest", ", ".join(shown)))
    return facts
