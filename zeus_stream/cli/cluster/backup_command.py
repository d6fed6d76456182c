"""The command ``backup``: the archive and the small files of an analyzer, as of one instant.

The collector's log and its restore records are left out. An older log would give its offsets to other frames,
and an older record would restore a limit that is not ours any more.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
from msgspec import DecodeError, Struct
from msgspec.json import decode, encode

from zeus_stream.cli.options import Command, settings_options
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.package_version import VERSION
from zeus_stream.paths import Places, claim, places, prepare
from zeus_stream.settings import Settings

ARCHIVE = "energy.duckdb"
MANIFEST = "backup.json"
FILES = ("gains.json", "forgotten.json", "budgets.json", "seal.key", "checkpoint.key")
FOLDERS = ("signals", "keys")
ASIDE = "before-restore"
STARTS_SINCE = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
STARTS_EVERY_S = 600.0
"""An analyzer of a restored archive counts its starts from at least the number of these since then.

A collector obeys no analyzer of the same archive whose starts are fewer than those it knows.
"""


class Manifest(Struct, frozen=True, kw_only=True):
    """The contents of a backup."""

    version: str
    made_at: str
    """UTC."""
    hosts: dict[str, str]
    """Until when each host is in it, UTC."""
    files: dict[str, str]
    """SHA-256 of each file, by its path."""


@click.command(cls=Command)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--restore", is_flag=True, help="Restore the archive from DIRECTORY, while no analyzer runs.")
@settings_options("archive", "memory_mb")
def backup(settings: Settings, directory: Path, *, restore: bool) -> None:
    """Back up the archive into a new DIRECTORY, also while the analyzer runs.

    It has the archive, calibrations, budgets, signals and keys, and is read whole before it gets its name.
    Keep it private. With --restore the archive that was there is moved aside. The next analyzer fetches what
    came later, as far as the logs of the collectors still hold it.

    \b
    zeus-stream backup /backup/2026-11-24
    zeus-stream backup --restore /backup/2026-11-24
    """
    where = places(os.environ)
    archive = settings.archive or where.archive
    try:
        if restore:
            manifest = _restore(directory, archive, where, settings)
            click.echo(f"Restored {archive} as of {manifest.made_at}. Start the analyzer.")
        else:
            manifest = _make(directory, archive, settings)
            click.echo(f"{directory}: {len(manifest.files)} files, read whole.")
    except OSError as wrong:
        raise StorageError(
            f"backup: could not copy {wrong.filename or directory}: {wrong.strerror or wrong}."
            " Make room, or ask for the rights in its directory."
        ) from wrong
    for host, until in sorted(manifest.hosts.items()):
        click.echo(f"{host}: until {until}")


def _make(directory: Path, archive: Path, settings: Settings) -> Manifest:
    from analyzers.archive.open_file import copy_whole
    from analyzers.archive.repair import read_whole

    if directory.exists():
        raise RefusedError(f"{directory}: could not be written: it is there already. Name a new directory.")
    if not archive.exists():
        raise StorageError(
            f"{archive}: could not be backed up: there is no such file. Name another with --archive."
        )
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    draft = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(draft, ignore_errors=True)  # of a backup that was killed
    draft.mkdir(mode=0o700, parents=True)
    try:
        copy_whole(archive, draft / ARCHIVE)
        hosts = read_whole(draft / ARCHIVE, settings)
        for name, source in _small_files(archive.parent):
            (draft / name).parent.mkdir(mode=0o700, exist_ok=True)
            shutil.copyfile(source, draft / name)
        manifest = Manifest(
            version=VERSION,
            made_at=made_at,
            hosts={host: f"{until:%F %T}" for host, until in hosts},
            files={name: _digest(path) for name, path in _all_files(draft)},
        )
        (draft / MANIFEST).write_bytes(encode(manifest))
        for path in draft.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        os.sync()
        draft.rename(directory)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return manifest


def _restore(directory: Path, archive: Path, where: Places, settings: Settings) -> Manifest:
    from analyzers.archive.duckdb_file import DuckdbFile

    manifest = _checked(directory)
    prepare(where, settings.group)
    with claim(where.run / "analyzer.lock", "analyzer"):
        for path in (archive, Path(f"{archive}.wal"), Path(f"{archive}.commands")):
            aside = path.with_name(f"{path.name}.{ASIDE}")
            if aside.exists():
                raise RefusedError(
                    f"{aside}: could not be written: it is there already. Move it away, or remove it."
                )
            if path.exists():
                path.rename(aside)
        archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in manifest.files:
            target = archive.with_name(name.replace(ARCHIVE, archive.name))
            target.parent.mkdir(mode=0o700, exist_ok=True)
            shutil.copyfile(directory / name, target)
            target.chmod(0o600)
        stored = DuckdbFile.open(archive, settings, again=True)
        try:
            stored.count_starts_from(round((time.time() - STARTS_SINCE) / STARTS_EVERY_S))
            stored.flush()
        finally:
            stored.close()
    return manifest


def _checked(directory: Path) -> Manifest:
    """Return the manifest of a backup whose files are whole. Raises RefusedError."""
    try:
        manifest = decode((directory / MANIFEST).read_bytes(), type=Manifest)
    except (FileNotFoundError, DecodeError) as wrong:
        raise RefusedError(
            f"{directory}: could not be restored: it is no whole backup. Name a directory that"
            " `zeus-stream backup` made."
        ) from wrong
    found = dict(_all_files(directory))
    for name, digest in manifest.files.items():
        if name not in found or _digest(found[name]) != digest:
            raise RefusedError(
                f"{directory / name}: could not be restored: it is damaged or absent. Restore another backup."
            )
    return manifest


def _small_files(state: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of an analyzer beside its archive."""
    yield from ((name, state / name) for name in FILES if (state / name).is_file())
    for folder in FOLDERS:
        yield from ((f"{folder}/{path.name}", path) for path in (state / folder).glob("*") if path.is_file())


def _all_files(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a backup, by their path in it."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            yield str(path.relative_to(directory)), path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
