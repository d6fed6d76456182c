"""Why a run has no power limit, why its energy is missing, and whether its analyzer was behind. Pure.

Each sentence names a cause that the archive shows; what it does not show is not claimed.
"""

from collections.abc import Mapping
from typing import Any

from zeus_stream.views.quantity import counted

BEHIND_S = 2.0
"""A limit that comes into force so much later than it was asked for is worth a word."""
NO_SEARCH = ("none", "script")
"""Selectors with which nothing is searched for unless the script asks."""


def why_undecided(totals: Mapping[str, Any]) -> str | None:
    """Return why a run has no decision, by its row of `TOTALS`. None: nothing was searched for, as asked."""
    limits = totals["limits"]
    what, level = ("clock", "clock") if totals["clocks"] else ("power limit", "limit")
    measured = f"{counted(limits, level)} measured"
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
    if not limits and totals["behind_s"] is None and (totals["unanswered_s"] or 0) > BEHIND_S:
        asked_s = f"{totals['unanswered_s']:.0f} s after the first {level} was asked for"
        return (
            f"no {what}: the training ended {asked_s}, which was not in force by then. Look at zeus-stream"
            " status: whether the collector is followed, and how far the analyzer is behind"
        )
    when = f"during the search, after {measured}" if limits else f"before a {level} was measured"
    cures = ["Run it again: the search goes on from there. Or train longer" if limits else "Train longer"]
    if limits and level == "limit":
        cures.append("set a larger --stride-w, which leaves fewer limits")
    late = ""
    if (totals["behind_s"] or 0) > BEHIND_S:
        late = f". {level.capitalize()}s came into force up to {totals['behind_s']:.0f} s late"
        cures[1:] = ["leave the services more of the processor, if the machine was busy"]
    return f"no {what}: the training ended {when}{late}. {', or '.join(cures)}"


def why_no_energy(totals: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """Return why the energy of a run is missing. ``whole``: the row of `WHOLE`."""
    if whole["quality"]:
        return str(whole["quality"])
    if totals["closed"] < totals["sessions"]:
        return "the run is not measured to its end yet"
    return "no GPU was measured"


def behind_facts(totals: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return by how much the analyzer was behind, if it was: names and texts."""
    texts = []
    if (totals["behind_s"] or 0) > BEHIND_S:
        texts.append(f"by up to {totals['behind_s']:.0f} s: limits came into force so late")
    if count := totals["steps_not_fitted"]:
        steps = f"{count} of {totals['steps']} steps"
        texts.append(f"the energy of {steps} is less exact: it comes from the counter alone")
    return [("behind", "; ".join(texts))] if texts else []
