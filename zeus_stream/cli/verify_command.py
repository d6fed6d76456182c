"""The command ``verify``: was an archive changed behind the analyzer that wrote it?"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zeus_stream.cli.options import Command, settings_options
from zeus_stream.errors import RefusedError
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    from analyzers.archive.seals.verifier import Checked, Seal

PROVES = (
    "A seal proves: since then, nobody without its key changed, added or removed a row of runs, windows of"
    " runs and epochs, decisions, gaps and settings."
)
PROVES_NOT = (
    "It does not prove: that the measurement is right; anything about readings, steps, views, or entries"
    " after the last seal; or who has the key. Compare the key with the one that its site published."
)
MOST = 20
"""Sentences that are printed."""


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
    from analyzers.archive.seals.verifier import check
    from analyzers.archive.snapshot import opened

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
