"""The command ``prune``: remove old rows from the archive."""

import os

import click

from zeus_stream.cli.options import RETENTION, Command, settings_options
from zeus_stream.paths import places
from zeus_stream.settings import Settings


@click.command(cls=Command)
@settings_options("archive", "memory_mb", *RETENTION)
def prune(settings: Settings) -> None:
    """Remove from the archive what is older than it is kept.

    A running analyzer does the same once an hour. Energy by hour, runs, epochs, trials, decisions and savings
    are kept for ever. Nothing is removed that a restart of the analyzer would interpret again. If half of the
    file is free by then, it is rewritten; that takes room for what is left.
    """
    from analyzers.archive.compaction import compact
    from analyzers.archive.duckdb_file import DuckdbFile
    from analyzers.archive.store import Ages
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
        removed = archive.prune(Ages.of(settings), anchor().wall_ns, state_classes.version())
        archive.flush()
    finally:
        archive.close()
    click.echo(f"Removed {words(removed)}." if removed else "Nothing is older than it is kept.")
    if (sizes := compact(path, settings)) is not None:
        click.echo(f"The file has {sizes[1] / 1e6:.0f} MB now; it had {sizes[0] / 1e6:.0f} MB.")
