"""Writes reports as files: one HTML page, and drawings as SVG or PNG."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from zeus_stream.errors import RefusedError, SettingsError, StorageError, explaining
from zeus_stream.package_version import VERSION
from zeus_stream.questions.run_questions import last_run
from zeus_stream.screens.html.document import Report, run_report
from zeus_stream.service_packages import install_command
from zeus_stream.settings import Settings, spelled

if TYPE_CHECKING:
    import pyarrow as pa

FONT = "DejaVu Sans"
"""Of drawings as PNG, if it is installed; else another one without serifs."""
WIDTH = 1520


Answer = Callable[[str], "pa.Table"]


class ReportFiles(Struct, frozen=True):
    """Where to write a report: a page, and directories of drawings. None: not there."""

    html: Path | None
    svg: Path | None
    png: Path | None

    @property
    def wanted(self) -> bool:
        return any((self.html, self.svg, self.png))

    def write(self, made: Report) -> list[Path]:
        """Write a report; return the files, each replaced as a whole.

        Raises SettingsError: PNG needs a package that is not installed. StorageError: one cannot be written.
        """
        contents: dict[Path, bytes] = {}
        if self.html is not None:
            contents[self.html] = made.page.encode()
        for name, chart in made.charts.items():
            if self.svg is not None:
                contents[self.svg / f"{name}.svg"] = chart.encode()
            if self.png is not None:
                contents[self.png / f"{name}.png"] = picture(chart)
        for path, content in contents.items():
            _write(path, content)
        return list(contents)


def report_of_run(answer: Answer, run: str | None, price: tuple[float, str] | None) -> Report:
    """Return the report of a run, or of the last one. ``price``: see `run_report`.

    Raises RefusedError: the archive has no such run.
    """
    name = run or last_run(answer)
    made = None if name is None else run_report(answer, name, VERSION, spelled(Settings()), price)
    if made is None:
        raise no_run(name)
    return made


def no_run(name: str | None) -> RefusedError:
    """Return the error for a run that the archive does not have. ``name`` None: it has none at all."""
    return RefusedError(
        f"report: could not find {'a run' if name is None else f'run {name}'} in the archive."
        ' Try: zeus-stream sql "FROM runs". If its shard was taken over, it is in the lake: ask that with'
        " --analyzer HOST:PORT of `zeus-stream serve-sql`."
    )


def picture(chart: str) -> bytes:
    """Return a drawing as PNG. Raises SettingsError: resvg is not installed."""
    try:
        import resvg_py
    except ImportError as wrong:
        raise SettingsError(
            "report: could not write PNG: the package resvg-py is missing. Install it:"
            f" {install_command('png')}, or use --svg."
        ) from wrong
    return bytes(
        resvg_py.svg_to_bytes(svg_string=chart, width=WIDTH, font_family=FONT, sans_serif_family=FONT)
    )


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with explaining(StorageError, f"{path}: could not be written", "Make room, or name another file."):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(content)
            os.replace(partial, path)  # noqa: PTH105  (its name says what it does)
        finally:
            partial.unlink(missing_ok=True)
