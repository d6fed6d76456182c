"""The names of the parts of a run: sessions beside the one that has the run's own name. Pure."""

_KEPT = 170
"""Characters of a run's name in those of its parts."""


def part_name(run: str, session: str) -> str:
    """Return the name of a part of a run."""
    return f"{run[:_KEPT]} (part {session[:8]})"


def are_of_one_run(run: str, other: str) -> bool:
    """Tell whether two names are those of one run: the same, or of a run and its part, or of two parts."""
    if run == other:
        return True
    (one, first), (another, second) = _split(run), _split(other)
    return bool(first or second) and one[:_KEPT] == another[:_KEPT]


def _split(run: str) -> tuple[str, str]:
    whole, mark, session = run.rpartition(" (part ")
    return (whole, session) if mark else (run, "")
