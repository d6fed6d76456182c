"""The phases of a search in docs/architecture.md, drawn from the table of the machine.

``python -m tests.docs.transitions`` draws them again.
"""

from collections import defaultdict

from analyzers.power_limit.visits import TRANSITIONS
from tests import house

PAGE = house.ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- phases -->\n", "<!-- end of phases -->"


def diagram() -> str:
    """Return the moves between phases: one row for each phase and the events that lead to the same ones."""
    lines = ["| phase | event | next phase |", "|---|---|---|"]
    for phase, events in TRANSITIONS.items():
        by_next: dict[str, list[str]] = defaultdict(list)
        for event, following in events.items():
            by_next[", ".join(sorted(each.__name__ for each in following))].append(event.__name__)
        lines += [
            f"| {phase.__name__} | {', '.join(names)} | {following} |" for following, names in by_next.items()
        ]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page with the moves of today."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{diagram()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
