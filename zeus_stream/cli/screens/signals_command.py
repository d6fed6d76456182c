"""The commands ``signals import`` and ``signals list``: prices and carbon intensities."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zeus_stream.cli.options import QUERY, Command, CommandGroup, ask_sql, output_options, settings_options
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.paths import claim, holder, places, prepare
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    from analyzers.results.signal_rows import SignalRow
    from zeus_stream.screens.text.tables import Form

_LIST = """
SELECT name, unit, place, year, count(*) AS values, min(begins_at) AS begins_at,
    CASE WHEN count(ends_at) = count(*) THEN max(ends_at) END AS ends_at, avg(value) AS mean,
    any_value(source) AS source, any_value(licence) AS licence
FROM signals WHERE (name, imported_ns) IN (SELECT (name, max(imported_ns)) FROM signals GROUP BY name)
GROUP BY name, unit, place, year ORDER BY name
"""


@click.group(cls=CommandGroup)
def signals() -> None:
    """Manage prices and carbon intensities, by which the view `costs` weighs energy."""


@signals.command("import", cls=Command)
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--country", metavar="CODE", help="Yearly carbon intensity of a country: DEU, or DE.")
@click.option("--year", type=int, help="Year that the table has to have for the country.  [the newest]")
@settings_options("archive", "memory_mb")
def import_signal(settings: Settings, file: Path | None, *, country: str | None, year: int | None) -> None:
    """Import FILE, a CSV of prices or carbon intensities, or the yearly figure of a country.

    It replaces the signal of the same name. Costs of earlier runs change with it: joules are stored, and
    factors are applied when they are asked for.

    \b
    zeus-stream signals import price.csv
    zeus-stream signals import --country DEU
    """
    from analyzers.state_files import signal_files

    if (file is None) == (country is None):
        raise click.UsageError("Give one of FILE and --country CODE.")
    if year is not None and country is None:
        raise click.UsageError("--year belongs to --country CODE.")
    imported_ns = time.time_ns()
    if country is not None:
        rows = [signal_files.of_country(country, year, imported_ns)]
    else:
        rows = signal_files.parse(_text(file), str(file), imported_ns)
    where = places(os.environ)
    prepare(where, settings.group)
    signal_files.store(where.signals, rows)
    if holder(where.run / "analyzer.lock") is None:
        _put(settings, rows)
    first = rows[0]
    of = " ".join(str(word) for word in (first.place, first.year) if word)
    mean = sum(row.value or 0 for row in rows) / len(rows)
    click.echo(
        f"{first.name}: {len(rows)} value(s){f' of {of}' if of else ''}, {mean:.6g} {first.unit} on average."
        f" Source: {first.source}{f', {first.licence}' if first.licence else ''}."
    )


def _text(file: Path | None) -> str:
    try:
        return Path(file or "").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise RefusedError(f"{file}: could not read the signal: {wrong}. Name a CSV file.") from wrong


def _put(settings: Settings, rows: "list[SignalRow]") -> None:
    """Store a signal into an archive that no analyzer has open. Without an archive there is nothing to do."""
    from analyzers.archive.duckdb_file import DuckdbFile

    where = places(os.environ)
    path = settings.archive or where.archive
    if not path.exists():
        return
    with claim(where.run / "analyzer.lock", "analyzer"):
        archive = DuckdbFile.open(path, settings, again=True)
        try:
            archive.put([], rows, {}, replaying=False)
        finally:
            archive.close()


@signals.command("list", cls=Command)
@output_options
@settings_options(*QUERY)
def list_signals(settings: Settings, *, form: "Form") -> None:
    """List the signals, with their source and licence."""
    from zeus_stream.screens.text.tables import write

    table = ask_sql(settings, _LIST)
    if table.num_rows == 0 and form == "table":
        raise StorageError("signals: there are none. Import one with `zeus-stream signals import`.")
    write(table, form, sys.stdout)
