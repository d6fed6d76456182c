"""The command ``archive``: an archiver process of a lake."""

import os
import socket

import click

from zeus_stream.cli.cluster.lake import lake_option
from zeus_stream.cli.options import Command, settings_options
from zeus_stream.cli.service_commands import _serve as serve
from zeus_stream.errors import SettingsError
from zeus_stream.settings import Settings


@click.command(cls=Command)
@lake_option
@click.option("--parts", metavar="0-15", help="Parts of the site that this process archives.  [all]")
@settings_options("broker", "site", "memory_mb")
def archive(settings: Settings, dsn: str, parts: str | None) -> None:
    """Archive what the hosts of a site send to the broker into a lake. Start as many as are needed.

    Each part is archived by one process at a time. Another process with the same parts waits, and takes them
    over when the first has been silent for 10 s.
    """
    from analyzers.lake.archiver import Work
    from analyzers.lake.archiver import archive as service

    if settings.broker is None:
        raise SettingsError("archive: could not start: no broker is named. Name its servers with --broker.")
    work = Work(
        dsn=dsn,
        servers=settings.broker,
        site=settings.site,
        parts=_parts(parts),
        holder=f"{socket.gethostname()}/{os.getpid()}",
        settings=settings,
    )
    serve(lambda started: service(work, started), "archiver")


def _parts(text: str | None) -> tuple[int, ...]:
    """Return the parts in a text such as ``0-3,7``. Raises SettingsError."""
    from zeus_stream.broker.batches import PARTS

    if text is None:
        return tuple(range(PARTS))
    found: set[int] = set()
    for each in text.split(","):
        first, _, last = each.strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise SettingsError(f"--parts {text}: expected numbers such as 0-3,7.")
        found |= set(range(int(first), int(last or first) + 1))
    if not found or max(found) >= PARTS:
        raise SettingsError(f"--parts {text}: expected numbers from 0 to {PARTS - 1}.")
    return tuple(sorted(found))
