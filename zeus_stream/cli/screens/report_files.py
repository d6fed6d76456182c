"""Writes reports as files: one HTML page, and drawings as SVG or PNG."""

import os
import re
import secrets
from pathlib import Path

from zeus_stream.cli.screens.archive_source import answering
from zeus_stream.errors import RefusedError, SettingsError, StorageError
from zeus_stream.package_version import package_version
from zeus_stream.paths import places
from zeus_stream.reports.html.document import Report, run_report, site_report
from zeus_stream.reports.html.questions import last_run
from zeus_stream.settings import Settings, spelled

FONT = "DejaVu Sans"
"""Of drawings as PNG, if it is installed; else another one without serifs."""
WIDTH = 1520


def write_report(
    settings: Settings,
    run: str | None,
    since: str | None,
    html: Path | None,
    svg: Path | None,
    png: Path | None,
) -> list[Path]:
    """Write the report of a run, of the last one, or of the site since some days; return the files.

    Raises:
        RefusedError: the archive has no such run.
        UnreachableError, StorageError, SettingsError: as `write_files`, and if nothing answers SQL.
    """
    with answering(settings, places(os.environ)) as answer:
        if since is not None:
            return write_files(site_report(answer, days(since), package_version()), html, svg, png)
        name = run or last_run(answer)
        made = None if name is None else run_report(answer, name, package_version(), spelled(Settings()))
    if made is None:
        raise RefusedError(
            f"report: could not find {'a run' if name is None else f'run {name}'} in the archive."
            ' Try: zeus-stream sql "FROM runs".'
        )
    return write_files(made, html, svg, png)


def days(text: str) -> float:
    """Return a span such as ``7d``, ``36h`` or ``2w`` in days. Raises SettingsError."""
    found = re.fullmatch(r"(\d{1,5}(?:\.\d+)?)([hdw])", text.strip())
    if found is None:
        raise SettingsError(f"--since: could not understand {text}. Give a span such as 36h, 7d or 2w.")
    return float(found[1]) * {"h": 1 / 24, "d": 1.0, "w": 7.0}[found[2]]


def write_files(made: Report, html: Path | None, svg: Path | None, png: Path | None) -> list[Path]:
    """Write a report; return the files. Each is replaced as a whole.

    Raises:
        SettingsError: PNG needs a package that is not installed.
        StorageError: a file cannot be written.
    """
    contents: dict[Path, bytes] = {}
    if html is not None:
        contents[html] = made.page.encode()
    for name, chart in made.charts.items():
        if svg is not None:
            contents[svg / f"{name}.svg"] = chart.encode()
        if png is not None:
            contents[png / f"{name}.png"] = picture(chart)
    for path, content in contents.items():
        _write(path, content)
    return list(contents)


def picture(chart: str) -> bytes:
    """Return a drawing as PNG. Raises SettingsError: resvg is not installed."""
    try:
        import resvg_py
    except ImportError as wrong:
        raise SettingsError(
            "report: could not write PNG: the package resvg-py is missing. Install it:"
            " pip install 'zeus-stream[png]', or use --svg."
        ) from wrong
    return bytes(
        resvg_py.svg_to_bytes(svg_string=chart, width=WIDTH, font_family=FONT, sans_serif_family=FONT)
    )


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(content)
            os.replace(partial, path)  # noqa: PTH105  (its name says what it does)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as wrong:
        raise StorageError(
            f"{path}: could not be written: {wrong.strerror}. Make room, or name another file."
        ) from wrong
