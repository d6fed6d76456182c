"""The kinds of exporters, by the names that commands have for them.

A kind is one entry here, or one entry point of the group ``zeus_stream.exporters`` in any installed
distribution: its name is the kind's, its object an `ExporterKind`. Only the kind that is named is imported.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Protocol

from msgspec import Struct

from zeus_stream import plugins
from zeus_stream.errors import SettingsError

GROUP = "zeus_stream.exporters"
"""Entry points of it are kinds of exporters."""


class Exporter(Protocol):
    """A connection to another system. Called by one thread, one call at a time."""

    def export(self, rows: Sequence[Struct]) -> None:
        """Send results, rows of `analyzers.results`, in the order in which they were stored.

        A later row of the same key replaces an earlier one; rows may come again. Raises OSError or
        UnreachableError if the system does not answer: the same rows are given again later.
        """

    def report_missed(self, count: int | None) -> None:
        """Take note that results were lost here. None: their number is not known."""

    def close(self) -> None:
        """Send what waits, and end."""


class ExporterKind(Struct, frozen=True):
    """One kind of exporters, as a registry entry."""

    spelling: str
    """Its form in a command, such as ``jsonl:FILE``."""
    help: str
    open: Callable[[str], Exporter]
    """Takes the text after the colon, empty without one. May raise SettingsError."""
    extra: str = ""
    """Extra of the package that brings its library."""


def _open_jsonl(setting: str) -> Exporter:
    exporter: Exporter = import_module("zeus_stream.screens.results.jsonl").open_jsonl(setting)
    return exporter


BUILT_IN: Mapping[str, ExporterKind] = {
    "jsonl": ExporterKind("jsonl:FILE", "One JSON object a line, appended to FILE or to stdout", _open_jsonl),
}
"""The kinds that this package brings."""


def kinds() -> dict[str, ExporterKind]:
    """Return every kind there is by its name. Raises SettingsError: one could not be loaded."""
    others = [name for name in plugins.names(GROUP) if name not in BUILT_IN]
    return {**BUILT_IN, **{name: find(name) for name in others}}


def find(name: str) -> ExporterKind:
    """Return the kind of a name. Raises SettingsError: there is none, or it could not be loaded."""
    if (built_in := BUILT_IN.get(name)) is not None:
        return built_in
    kind = plugins.load(GROUP, name, ExporterKind, "exporter", "docs/how-to/add-an-exporter.md")
    if kind is not None:
        return kind
    known = ", ".join((*(each.spelling for each in BUILT_IN.values()), *plugins.names(GROUP)))
    raise SettingsError(
        f"exporter {name!r}: could not be opened: there is no such kind. Choose one of {known},"
        " or install the package that brings it."
    )


def open_exporter(text: str) -> Exporter:
    """Return the exporter that ``KIND`` or ``KIND:SETTING`` names. Raises SettingsError."""
    name, _, setting = text.partition(":")
    return find(name).open(setting)
