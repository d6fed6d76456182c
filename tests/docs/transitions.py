"""The phases of a search in docs/architecture.md, from the table of the machine."""

from collections import defaultdict

from analyzers.power_limit.visits import TRANSITIONS


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
