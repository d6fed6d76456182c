"""Load objects that other distributions bring as entry points, by group and name."""

from typing import TYPE_CHECKING, TypeVar

from zeus_stream.errors import SettingsError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

T = TypeVar("T")


def registered(group: str) -> "EntryPoints":
    """Return what distributions bring to a group."""
    from importlib.metadata import entry_points  # 25 ms, and a process that names only ours needs none

    return entry_points(group=group)


def names(group: str) -> list[str]:
    """Return the names that distributions bring to a group, in order."""
    return sorted({point.name for point in registered(group)})


def load(group: str, name: str, kind: type[T], what: str, guide: str) -> T | None:
    """Return the object of a name; None: no distribution brings it.

    Args:
        group: of the entry points.
        name: of the entry point.
        kind: class that the object must have.
        what: names it in errors, such as ``device``.
        guide: page that says how to write one.

    Raises:
        SettingsError: it could not be imported, or is of another class.
    """
    for point in registered(group).select(name=name):
        try:
            found = point.load()
        except Exception as wrong:
            raise SettingsError(
                f"{what} {name!r}: could not be loaded: {point.value}: {wrong!r}. Mend or remove its package."
            ) from wrong
        if not isinstance(found, kind):
            raise SettingsError(
                f"{what} {name!r}: could not be used: {point.value} is no {kind.__name__}. See {guide}."
            )
        return found
    return None
