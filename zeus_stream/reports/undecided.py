"""Why a run has no power limit, why its energy is missing, and whether its analyzer was behind. Pure.

Each sentence names a cause that the archive shows; what it does not show is not claimed.
"""

from collections.abc import Mapping
from typing import Any

BEHIND_S = 2.0
"""A limit that comes into force so much later than it was asked for is worth a word."""
NO_SEARCH = ("none", "script")
"""Selectors with which nothing is searched for unless the script asks."""


def why_undecided(totals: Mapping[str, Any]) -> str | None:
    """Return why a run has no decision. None: nothing was searched for, as was asked for.

    ``totals``: the row of `TOTALS`.
    """
    limits = totals["limits"]
    what, level = ("clock", "clock") if totals["clocks"] else ("power limit", "limit")
    measured = f"{limits} {level}{'' if limits == 1 else 's'} measured"
    searched = totals["selector"] not in (None, *NO_SEARCH)
    if not limits and not (searched or (totals["selector"] == "script" and totals["search_wanted"])):
        return None
    if totals["open_sessions"]:
        return f"not yet: the end of the run is not in the archive; {measured}"
    if not totals["gpus"]:
        return f"no {what}: the run uses no GPU"
    if not limits and not totals["steps"]:
        return f"no {what}: the run has no steps. Wrap its loop in zeus_stream.steps"
    if not limits and (absent := totals["ranks"] - totals["ranks_came"]) > 0:
        return (
            f"no {what}: the training ended before a {level} was measured, and {absent} of its"
            f" {totals['ranks']} ranks never came, for which the search waits at first. Start all ranks, or"
            " train longer"
        )
    when = "during the search" if limits else f"before a {level} was measured"
    if (totals["behind_s"] or 0) > BEHIND_S:
        return (
            f"no {what}: the training ended {when}, and {level}s came into force up to"
            f" {totals['behind_s']:.0f} s late. Leave the services more of the processor, or train longer"
        )
    cure = "Train longer, or set a larger --stride-w" if limits and level == "limit" else "Train longer"
    return f"no {what}: the training ended {when}. {cure}"


def why_no_energy(totals: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """Return why the energy of a run is missing. ``whole``: the row of `WHOLE`."""
    if whole["quality"]:
        return str(whole["quality"])
    if totals["closed"] < totals["sessions"]:
        return "the run is not measured to its end yet"
    return "no GPU was measured"


def behind_facts(totals: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return by how much the analyzer was behind, if it was: names and texts."""
    facts = []
    if (totals["behind_s"] or 0) > BEHIND_S:
        facts.append(("behind", f"by up to {totals['behind_s']:.0f} s: limits came into force so late"))
    if count := totals["steps_not_fitted"]:
        steps = f"{count} of {totals['steps']} steps"
        facts.append(("behind", f"{steps} have their energy by the counter alone"))
    return facts
