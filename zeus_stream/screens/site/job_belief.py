"""The belief of a policy about the batch sizes of a job, as a panel of its page. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.html.panels import Columns, PagePanel, facts, plain, table
from zeus_stream.screens.svg.bars import bar
from zeus_stream.views.quantity import joules


class Estimate(Struct, frozen=True):
    """The believed cost of a training with one batch size, J, with its 95 % interval."""

    batch_size: int
    cost_j: float
    low_j: float
    high_j: float
    tries: int
    """That have ended with a result."""


class SetupBelief(Struct, frozen=True, kw_only=True):
    """The state of a policy on one kind of GPUs."""

    setup: str
    next_size: int
    reason: str
    estimates: tuple[Estimate, ...]
    """Empty: the policy estimates nothing, or nothing yet."""

    @property
    def phase(self) -> str:
        """Where the search for a batch size stands, in words."""
        if not any(each.tries for each in self.estimates):
            return "no try has ended with a result yet"
        best = min(self.estimates, key=lambda each: each.cost_j)
        chosen = next((each for each in self.estimates if each.batch_size == self.next_size), None)
        if chosen is None or not chosen.tries:
            return "tries a size that is new"
        return "uses the best size" if chosen is best else "tries another size again"


class JobBelief(Struct, frozen=True, kw_only=True):
    """A job that recurs: its target, and what its policy believes."""

    policy: str
    target: str
    setups: tuple[SetupBelief, ...]


def belief_panel(belief: JobBelief) -> PagePanel:
    """Return the panel: the next try and its reason, and the believed cost of each size with bars."""
    parts: list[Markup] = []
    rows: list[Mapping[str, Any]] = []
    for each in belief.setups:
        if len(belief.setups) > 1:
            parts.append(element("h3", each.setup))
        parts.append(
            facts([
                ("next batch size", plain(each.next_size), each.reason),
                ("phase", each.phase, f"policy {belief.policy}"),
            ])
        )  # fmt: skip
        listed = _rows(each)
        if listed:
            parts.append(table(listed, _COLUMNS, f"Believed cost of each batch size on {each.setup}"))
        rows += [{name: row[name] for name in _DATA} for row in listed]
    text = (
        f"Target: {belief.target}. The cost is that of a training to the target, failed tries included; bars"
        " are the estimates, with 95 % intervals."
    )
    return PagePanel(name="belief", title="Belief", body=element("div", *parts), text=text, rows=rows)


_COLUMNS: Columns = {
    "batch_size": ("batch size", plain),
    "bar": ("", lambda value: value),
    "cost_j": ("cost", joules),
    "interval": ("95 % interval", plain),
    "tries": ("tries", plain),
    "note": ("", plain),
}
_DATA = ("setup", "batch_size", "cost_j", "low_j", "high_j", "tries")


def _rows(each: SetupBelief) -> Sequence[Mapping[str, Any]]:
    most = max((one.cost_j for one in each.estimates), default=0.0)
    return [
        {
            "setup": each.setup, "batch_size": one.batch_size, "bar": bar(one.cost_j / most if most else 0.0),
            "cost_j": one.cost_j, "interval": f"{joules(one.low_j)} to {joules(one.high_j)}",
            "low_j": one.low_j, "high_j": one.high_j, "tries": one.tries,
            "note": "next" if one.batch_size == each.next_size else "",
        }
        for one in each.estimates
    ]  # fmt: skip
