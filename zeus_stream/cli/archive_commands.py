"""Commands on the archive and its rows: ``sql``, ``report``, ``export``, ``replay``, ``verify`` and more."""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import click

from zeus_stream.cli.options import (
    QUERY,
    RETENTION,
    Command,
    CommandGroup,
    ask_sql,
    json_option,
    output_options,
    settings_options,
    without_numpy_threads,
)
from zeus_stream.errors import RefusedError, StorageError, UnreachableError, explaining
from zeus_stream.paths import Places, claim, holder, places, prepare
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from analyzers.archive.seals.verifier import Checked, Seal
    from analyzers.results.signal_rows import SignalRow
    from zeus_stream.cli.screens.report_files import ReportFiles
    from zeus_stream.screens.text.tables import Form

    Ask = Callable[[str], pa.Table]

STDIN = "-"
NAMED = "@"
"""First character of the name of a shipped query."""
PROVES = (
    "A seal proves: since then, nobody without its key changed, added or removed a row of runs, windows of"
    " runs and epochs, decisions, gaps and settings."
)
PROVES_NOT = (
    "It does not prove: that the measurement is right; anything about readings, steps, views, or entries"
    " after the last seal; or who has the key. Compare the key with the one that its site published."
)
MOST = 20
"""Sentences of a check that are printed."""
_TAKES_S = 10.0
"""For so long an import waits for an analyzer, which looks at the files each second."""
_ASKS_AGAIN_S = 0.2
_TAKEN = "SELECT count(*) FROM signals WHERE imported_ns = %d"
_LIST = """
SELECT name, unit, place, year, count(*) AS values, min(begins_at) AS begins_at,
    CASE WHEN count(ends_at) = count(*) THEN max(ends_at) END AS ends_at,
    coalesce(sum(value * (end_ns - begin_ns)) / sum(end_ns - begin_ns), any_value(value)) AS mean,
    any_value(source) AS source, any_value(licence) AS licence
FROM signals WHERE (name, imported_ns) IN (SELECT (name, max(imported_ns)) FROM signals GROUP BY name)
GROUP BY name, unit, place, year ORDER BY name
"""


class SqlCommand(Command):
    """A command whose argument may begin with a SQL comment (``-- ...``): text with spaces is no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        end = args.index("--") if "--" in args else len(args)
        queries = [text for text in args[:end] if _is_query(text, known)]
        if queries:
            options = [text for text in args[:end] if text not in queries]
            args = [*options, "--", *queries, *args[end + 1 :]]
        return super().parse_args(ctx, args)


def _is_query(text: str, options: set[str]) -> bool:
    """Tell whether an argument that begins with a dash is a query: it has spaces, and is no known option."""
    return text.startswith("-") and len(text.split()) > 1 and text.partition("=")[0] not in options


@click.command(cls=SqlCommand)
@click.argument("query", required=False)
@click.option(
    "-f", "--file", type=click.Path(path_type=Path, dir_okay=False), help="File that holds the query."
)
@click.option("--list", "listing", is_flag=True, help="List the queries that are shipped.")
@click.option("--ui", is_flag=True, help="Serve DuckDB's own page over a copy, until Ctrl-C.")
@output_options
@settings_options(*QUERY)
def sql(
    settings: Settings, query: str | None, *, file: Path | None, listing: bool, ui: bool, form: "Form"
) -> None:
    """Answer one SQL QUERY over the archive, while the analyzer runs and after it.

    QUERY is SQL text, @NAME for a shipped query, or - to read it from stdin.

    \b
    zeus-stream sql "FROM epochs"
    zeus-stream sql @epochs
    zeus-stream sql -f query.sql --format csv
    zeus-stream sql                       a shell, with history and completion
    """
    if listing:
        _list_shipped()
        return
    if ui:
        from zeus_stream.cli.screens.sql_shell import serve_page

        serve_page(settings.archive or places(os.environ).archive)
        return
    if query is None and file is None and sys.stdin.isatty():
        from zeus_stream.cli.screens.sql_shell import open_shell

        history = places(os.environ).state / "sql_history"
        open_shell(partial(ask_sql, settings), _shipped_query, list(_shipped()), history)
        return
    gc.disable()  # half of its time is imports, which leave no garbage
    with _without_numpy():
        import pyarrow as pa  # noqa: F401

    table = ask_sql(settings, _query_text(query, file))
    from zeus_stream.screens.text.tables import write

    write(table, form, sys.stdout)


@contextmanager
def _without_numpy() -> Iterator[None]:
    """Let PyArrow be imported without NumPy: a third of its time. It then converts no column to an array."""
    if "numpy" in sys.modules:
        yield
        return
    sys.modules["numpy"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["numpy"]


def _query_text(query: str | None, file: Path | None) -> str:
    """Return the text of a query: of the argument, a shipped file, a file or stdin."""
    if (query is None) == (file is None):
        raise click.UsageError("Give one query: SQL text, @NAME, - for stdin, or -f FILE.")
    if file is not None:
        return _text_of(file, "query", "a text file")
    if query == STDIN:
        return sys.stdin.read()
    if query is not None and query.startswith(NAMED):
        return _shipped_query(query.removeprefix(NAMED))
    return query or ""


def _shipped() -> dict[str, str]:
    """Return the shipped queries by name. The first line of each is a comment that says what it answers."""
    from importlib.resources import files

    found = (each for each in files("analyzers.archive").joinpath("queries").iterdir())
    texts = {each.name: each.read_text(encoding="utf-8") for each in found if each.name.endswith(".sql")}
    return {name.removesuffix(".sql"): texts[name] for name in sorted(texts)}


def _shipped_query(name: str) -> str:
    known = _shipped()
    if name not in known:
        raise RefusedError(f"query @{name}: could not find it. The shipped queries are {', '.join(known)}.")
    return known[name]


def _list_shipped() -> None:
    known = _shipped()
    width = max(map(len, known))
    for name, text in known.items():
        question = text.splitlines()[0].removeprefix("-- ")
        click.echo(f"{NAMED}{name:<{width}}  {question}")
    click.echo("\nRun one: zeus-stream sql @epochs. Read one: docs/reference/queries.md.", err=True)


@click.command(cls=Command)
@click.argument("run", required=False)
@click.option("--explain", is_flag=True, help="Explain the words of the report that are ours.")
@click.option("--price", metavar="AMOUNT", help="Price of a kilowatt hour, such as 0.30EUR.  [signals]")
@json_option
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page that stands alone."
)
@click.option(
    "--svg", type=click.Path(path_type=Path, file_okay=False), help="Write the charts as SVG to PATH."
)
@click.option(
    "--png", type=click.Path(path_type=Path, file_okay=False), help="Write the charts as PNG to PATH."
)
@click.option(
    "--since", metavar="TIME", help="All runs of the last 36h, 7d, 2w, or since 2026-05-01, not one."
)
@click.option("--until", metavar="TIME", help="With --since: up to this time.  [the end of the archive]")
@settings_options(*QUERY)
def report(
    settings: Settings,
    run: str | None,
    *,
    price: str | None,
    explain: bool,
    as_json: bool,
    html: Path | None,
    svg: Path | None,
    png: Path | None,
    since: str | None,
    until: str | None,
) -> None:
    """Show what a RUN cost, the power limit chosen, and what that saves.  [the last run]

    \b
    zeus-stream report --html report.html
    zeus-stream report --since 7d --html week.html --svg charts
    zeus-stream report --since 2026-05-01 --until 2026-06-01 --json
    """
    without_numpy_threads()
    from analyzers.state_files.signal_files import flat_price
    from zeus_stream.cli.screens.archive_source import answering
    from zeus_stream.cli.screens.report_files import ReportFiles, report_of_run

    files = ReportFiles(html, svg, png)
    if since is None and until is not None:
        raise click.UsageError("--until needs --since: it ends the time that the report is about.")
    if since is not None and run is not None:
        raise click.UsageError("--since is a report of all runs: give no RUN with it.")
    if since is not None and not (files.wanted or as_json):
        raise click.UsageError(
            "--since needs --html FILE, --svg PATH, --png PATH or --json. As a table: zeus-stream sql @runs."
        )
    if files.wanted and as_json:
        raise click.UsageError("--json writes to the terminal: give it without --html, --svg and --png.")
    if since is not None and price is not None:
        raise click.UsageError("--price is of one run. For several: zeus-stream signals import FILE.")
    flat = None if price is None else flat_price(price)
    with answering(settings, places(os.environ)) as ask:
        if since is not None:
            _report_site(ask, since, until, files)
        elif files.wanted:
            _echo_files(files.write(report_of_run(ask, run, flat)))
        else:
            _report_run(ask, settings, run, flat, as_json=as_json, explain=explain)


def _echo_files(files: Iterable[Path]) -> None:
    for file in files:
        click.echo(file)


def _report_site(ask: "Ask", since: str, until: str | None, files: "ReportFiles") -> None:
    """Write the report of a period to files, or as JSON to the terminal."""
    from zeus_stream import __version__
    from zeus_stream.questions.asking import answered
    from zeus_stream.screens.site.period import find_period
    from zeus_stream.screens.site.site_report import site_report, site_summary
    from zeus_stream.screens.text.run_cost import write_json

    period = answered(find_period(since, until), ask)
    if files.wanted:
        _echo_files(files.write(site_report(ask, period, __version__)))
    else:
        write_json(site_summary(ask, period, __version__), sys.stdout)


def _report_run(
    ask: "Ask",
    settings: Settings,
    run: str | None,
    price: tuple[float, str] | None,
    *,
    as_json: bool,
    explain: bool,
) -> None:
    """Print the cost of a run, as text or as JSON."""
    from zeus_stream.cli.screens.report_files import no_run
    from zeus_stream.questions.run_questions import last_run
    from zeus_stream.screens.text.run_cost import print_summary, print_words, summarize, write_summary

    name = run or last_run(ask)
    summary = None if name is None else summarize(ask, name, price)
    if summary is None:
        raise no_run(name)
    if as_json:
        write_summary(summary, sys.stdout)
        return
    options = "".join(
        f" --{option} {value}"
        for option, value in (("archive", settings.archive), ("analyzer", settings.analyzer))
        if value is not None
    )
    print_summary(summary, settings.archive, f"zeus-stream sql{options}", sys.stdout)
    if explain:
        text = StringIO()
        print_summary(summary, settings.archive, "", text)
        print_words(text.getvalue(), sys.stdout)


@click.command(cls=Command)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(["parquet", "csv"]), default="parquet", help="Format.  [parquet]"
)
@settings_options("archive")
def export(settings: Settings, directory: Path, form: Literal["parquet", "csv"]) -> None:
    """Write every table of the archive into DIRECTORY, also while the analyzer runs."""
    from analyzers.archive.query import export as write_tables

    for path, rows in write_tables(settings.archive or places(os.environ).archive, directory, form, settings):
        click.echo(f"{path}  {rows} rows")


@click.command(cls=Command)
@click.argument("archive", type=click.Path(path_type=Path), required=False)
@click.option("--select", metavar="TEXT", help="Another selector.  [the one that decided]")
@output_options
@settings_options("memory_mb")
def replay(settings: Settings, archive: Path | None, select: str | None, *, form: "Form") -> None:
    """Replay ARCHIVE, and check that it gives the stored decisions.

    With --select: show what another selector would have chosen from the same measurements. The archive is
    only read, also while the analyzer runs. The exit code is 1 if a decision differs.
    """
    without_numpy_threads()  # as the analyzer does
    from analyzers.service import replay as archive_replay
    from analyzers.state_files import calibrations
    from zeus_stream.screens.text.tables import write

    where = places(os.environ)
    gains = calibrations.load(where.gains)
    with _counting_frames() as watch:
        done = archive_replay.replay(archive or where.archive, settings, gains, select, watch)
    if done.left_out:
        click.echo(f"{done.left_out} run(s) are left out: retention has removed their readings.", err=True)
    if done.chosen_again:
        write(archive_replay.compared(done.chosen_again, select or ""), form, sys.stdout)
        click.echo(
            "Chosen from what was measured. The cost at limits that were not measured is not known.", err=True
        )
    elif not done.differences:
        write(archive_replay.decided(done.decisions), form, sys.stdout)
    if done.differences:
        write(archive_replay.differing(done.differences), form, sys.stdout)
        click.echo(
            f"zeus-stream: replay: {done.frames} frames did not give the stored decisions: another version"
            " decided, a GPU was calibrated since, or the settings changed during a run."
            " Replay with the version and the settings of that time.",
            err=True,
        )
        sys.exit(1)
    click.echo(f"{done.frames} frames gave the same {len(done.decisions)} decision(s) again.", err=True)


@contextmanager
def _counting_frames() -> Iterator[Callable[[Iterable[Any]], Iterable[Any]]]:
    """Show on a terminal how many frames are replayed."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("replaying {task.completed:,.0f} frames"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress.track


@click.command(cls=Command)
@click.option("--reference", type=click.Path(path_type=Path), help="Record of the meter, CSV.")
@click.option("--gpu", help="UUID. Needed only if several GPUs were measured at that time.")
@click.option("--remove", is_flag=True, help="Remove the calibration of --gpu.")
@settings_options("archive", "query_seconds")
def calibrate(settings: Settings, reference: Path | None, gpu: str | None, *, remove: bool) -> None:
    """Fit the gain of a GPU's sensor against a meter. Without --reference: list the calibrations.

    The record has the columns t_us (since 1970) and power_mw, or t_s and power_w. It covers a time in which
    collector and analyzer ran, best under a load that changes. All later energies of that GPU are corrected
    by the gain, and `quality` names it.
    """
    from analyzers.measurement.calibration import read_meter
    from analyzers.state_files import calibrations

    path = places(os.environ).gains
    gains = calibrations.load(path)
    if remove:
        if gpu not in gains:
            raise RefusedError(
                f"calibrate: could not remove the calibration of {gpu}: there is none."
                f" Name with --gpu one of: {', '.join(gains) or 'none is calibrated'}."
            )
        del gains[gpu]
        calibrations.store(path, gains)
        click.echo(f"{gpu}: the calibration is removed.")
    elif reference is not None:
        text = _text_of(reference, "record of the meter", "a CSV file")
        meter = read_meter(text, str(reference))
        found, gain, windows = calibrations.calibrate(partial(ask_sql, settings), meter, reference.name, gpu)
        click.echo(f"{reference}: {len(meter.t_ns)} samples, columns {meter.columns}.")
        calibrations.store(path, gains | {found: gain})
        click.echo(f"{found}: {gain.words} (95 %: +-{gain.gain_error:.4f}), from {windows} windows.")
        click.echo("All windows measured from now on are corrected by it.")
    else:
        for name, gain in gains.items():
            click.echo(f"{name}  {gain.words} +-{gain.gain_error:.4f}  {gain.source}  {gain.at}")
        if not gains:
            click.echo("No GPU is calibrated.")


@click.command("set-aside", cls=Command)
@settings_options("archive", "memory_mb")
def set_aside(settings: Settings) -> None:
    """Move the damaged part of an archive aside and print what is lost. Nothing is deleted."""
    from datetime import UTC, datetime

    from analyzers.archive.repair import set_aside as move

    where = places(os.environ)
    suffix = f"damaged-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    with claim(where.run / "analyzer.lock", "analyzer"):
        done = move(settings.archive or where.archive, settings, suffix)
    for path in done.moved:
        click.echo(f"Moved to {path}.")
    click.echo(done.lost)


def _text_of(file: Path, what: str, instead: str) -> str:
    """Return the text of a file. Raises RefusedError."""
    with explaining(RefusedError, f"{file}: could not read the {what}", f"Name {instead}."):
        return file.read_text(encoding="utf-8")


@click.command(cls=Command)
@settings_options("archive", "memory_mb", *RETENTION)
def prune(settings: Settings) -> None:
    """Remove from the archive what is older than it is kept.

    A running analyzer does the same once an hour. Energy by hour, runs, epochs, trials, decisions and savings
    are kept for ever. Nothing is removed that a restart of the analyzer would interpret again. If half of the
    file is free by then, it is rewritten; that takes room for what is left.
    """
    from analyzers.archive.duckdb_file import DuckdbFile
    from analyzers.archive.repair import compact
    from analyzers.checkpoints import state_classes
    from analyzers.service.commits import words
    from zeus_stream.clock import anchor
    from zeus_stream.errors import StorageError

    path = settings.archive or places(os.environ).archive
    if not path.exists():
        raise StorageError(
            f"{path}: could not be pruned: there is no such file. Name another with --archive."
        )
    archive = DuckdbFile.open(path, settings, again=True)
    try:
        removed = archive.prune(settings, anchor().wall_ns, state_classes.version())
        archive.flush()
    finally:
        archive.close()
    click.echo(f"Removed {words(removed)}.")
    if (sizes := compact(path, settings)) is not None:
        click.echo(f"The file has {sizes[1] / 1e6:.0f} MB now; it had {sizes[0] / 1e6:.0f} MB.")


@click.command(cls=Command)
@click.argument("job")
@click.option("--spdx", is_flag=True, help="SPDX 3.0.1 as JSON-LD, with the AI profile.")
@settings_options(*QUERY)
def statement(settings: Settings, job: str, *, spdx: bool) -> None:
    """State the energy of JOB over all its runs and restarts, with bounds and what is missing.

    It is a section for a model card, in Markdown.

    \b
    zeus-stream statement train > energy.md
    zeus-stream statement train --spdx > energy.spdx.json
    """
    from zeus_stream import __version__
    from zeus_stream.screens.text import statement as text
    from zeus_stream.screens.text.tables import write_text

    stated = text.state(partial(ask_sql, settings), job, __version__)
    write_text(text.spdx(stated) if spdx else text.markdown(stated), sys.stdout)


@click.command(cls=Command)
@click.argument("exporter", required=False, metavar="EXPORTER")
@click.option("--list", "listing", is_flag=True, help="List the exporters that are installed.")
@click.option("--kept", is_flag=True, help="Begin with the oldest result that the analyzer still keeps.")
@settings_options("analyzer")
def forward(settings: Settings, exporter: str | None, *, listing: bool, kept: bool) -> None:
    """Send every result to another system, from now on, until Ctrl-C.

    EXPORTER is a name, and what it needs behind a colon. A result is a row that the analyzer has stored:
    a window, a trial, a decision. An exporter that is too slow misses results; the analyzer never waits.

    \b
    zeus-stream forward --list
    zeus-stream forward jsonl:results.jsonl
    """
    from analyzers.results.rows import PUBLISHED
    from zeus_stream.screens.results import registry
    from zeus_stream.screens.results.follow import forward as forward_results
    from zeus_stream.screens.results.follow import read_results
    from zeus_stream.transport.client import analyzer

    if listing:
        for kind in registry.kinds().values():
            click.echo(f"{kind.spelling:<24}{kind.help}")
        return
    if exporter is None:
        raise click.UsageError("forward: could not begin: no exporter is named. Name one of --list.")
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with closing(registry.open_exporter(exporter)) as opened:
        pages = read_results(analyzer(os.environ, settings.analyzer), PUBLISHED, newest=not kept, wait_s=1.0)
        forward_results(pages, opened, ended.wait, lambda sentence: click.echo(sentence, err=True))


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--key", metavar="FINGERPRINT", help="Key that has to have sealed it.  [any]")
@settings_options("archive", "memory_mb")
def verify(settings: Settings, file: Path, *, key: str | None) -> None:
    """Check the seals of FILE, an archive or a statement, offline. Name the first row that was changed.

    A lake has no seals: its archivers write at the same time, so its rows have no order. Of a statement, its
    seal is checked; with --archive also that this archive has it. The exit code is 1 if anything is wrong or
    nothing is sealed.
    """
    from analyzers.archive.seals.verifier import fingerprint, is_statement, seal_of

    if not is_statement(file):
        checked = _check(file, settings, key)
        _report(checked)
        sys.exit(bool(checked.wrong) or checked.seal is None)
    seal = seal_of(file.read_text(encoding="utf-8", errors="replace"))
    if seal is None:
        raise RefusedError(
            f"{file}: could not be verified: it has no seal. The end of a run makes one: state it again."
        )
    wrong = [] if seal.holds else ["statement: its seal was not signed by its key."]
    if key is not None and fingerprint(seal.public) != key:
        wrong.append("statement: its seal is of another key.")
    if settings.archive is not None:
        wrong += _in_archive(seal, _check(settings.archive, settings, key, seal), settings.archive)
    _say_wrong(wrong)
    click.echo(seal.described)
    click.echo(PROVES)
    click.echo(
        "The figures of a statement are not signed: with its archive, state them again and compare."
        f" {PROVES_NOT}"
    )
    sys.exit(bool(wrong))


def _check(path: Path, settings: Settings, key: str | None, sought: "Seal | None" = None) -> "Checked":
    from analyzers.archive.open_file import opened
    from analyzers.archive.seals.verifier import check

    with opened(path, settings) as archive:
        archive.read_no_other_file()
        with archive.cursor() as cursor:
            return check(cursor, key, sought)


def _in_archive(seal: "Seal", checked: "Checked", path: Path) -> list[str]:
    wrong = list(checked.wrong)
    if not checked.has_sought:
        wrong.append(f"{path}: the archive has no such seal as the statement, entry {seal.number}.")
    return wrong


def _report(checked: "Checked") -> None:
    _say_wrong(checked.wrong)
    click.echo(f"{checked.entries} entries of {checked.rows} rows")
    if checked.seal is None:
        click.echo("Nothing is sealed: the analyzer seals at the end of a run.", err=True)
        return
    click.echo(checked.seal.described)
    if later := checked.entries - checked.seal.number:
        click.echo(f"{later} entries came after the last seal")
    click.echo(PROVES)
    click.echo(PROVES_NOT)


def _say_wrong(wrong: "tuple[str, ...] | list[str]") -> None:
    for sentence in wrong[:MOST]:
        click.echo(f"zeus-stream: verify: {sentence}", err=True)
    if len(wrong) > MOST:
        click.echo(f"zeus-stream: verify: {len(wrong) - MOST} more.", err=True)


@click.group(cls=CommandGroup)
def signals() -> None:
    """Manage prices and carbon intensities, by which the view `costs` weighs energy."""


@signals.command("import", cls=Command)
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--country", metavar="CODE", help="Yearly carbon intensity of a country: DEU, or DE.")
@settings_options("archive", "memory_mb")
def import_signal(settings: Settings, file: Path | None, *, country: str | None) -> None:
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
    imported_ns = time.time_ns()
    if country is not None:
        rows = [signal_files.of_country(country, imported_ns)]
    else:
        assert file is not None
        text = _text_of(file, "signal", "a CSV file")
        rows = signal_files.parse(text, str(file), imported_ns)
    where = places(os.environ)
    prepare(where, settings.group)
    signal_files.store(where.signals, rows)
    if holder(where.run / "analyzer.lock") is None:
        _put(settings, rows)
        taken = True
    else:
        taken = _analyzer_took(where, imported_ns)
    first = rows[0]
    of = " ".join(str(word) for word in (first.place, first.year) if word)
    lengths = [1 if row.end_ns is None else row.end_ns - row.begin_ns for row in rows]
    mean = fmean([row.value or 0.0 for row in rows], lengths)
    click.echo(
        f"{first.name}: {len(rows)} value(s){f' of {of}' if of else ''}, {mean:.6g} {first.unit} on average."
        f" Source: {first.source}{f', {first.licence}' if first.licence else ''}."
    )
    if not taken:
        click.echo("The running analyzer does not have it yet. It takes the file when it answers again.")


def _analyzer_took(where: Places, imported_ns: int) -> bool:
    """Wait until the running analyzer answers with a signal that was imported at this time."""
    from zeus_stream.transport.client import Connection

    by_s = time.monotonic() + _TAKES_S
    while (left_s := by_s - time.monotonic()) > 0:
        try:
            table = Connection(where).sql(_TAKEN % imported_ns, max_rows=1, timeout_s=left_s)
        except UnreachableError:
            return False
        if table.column(0)[0].as_py():
            return True
        time.sleep(_ASKS_AGAIN_S)
    return False


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
