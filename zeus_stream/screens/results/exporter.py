"""The protocol of exporters, which send results to another system. See `docs/how-to/add-an-exporter.md`."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct


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
    """How a command names it, such as ``jsonl:FILE``."""
    help: str
    open: Callable[[str], Exporter]
    """Takes the text after the colon, empty without one. May raise SettingsError."""
    extra: str = ""
    """Extra of the package that brings its library."""
