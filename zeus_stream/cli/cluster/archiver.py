"""The command ``archive``: an archiver process of a lake, and the process that starts it again.

    archive -> archive --worker PID (DuckDB, PostgreSQL, broker)

DuckDB's extension may abort its process when PostgreSQL is killed. The first process does nothing but start
it again; the leases stay its own, so that the next worker goes on at once.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from zeus_stream.cli.options import AT_BROKER, Command, settings_options
from zeus_stream.cli.service_commands import _end_with, _serve
from zeus_stream.errors import SettingsError
from zeus_stream.service_packages import python_child
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    from zeus_stream.broker.site_settings import SiteSettings

AGAIN_S = 1.0
"""From the end of a worker to the start of the next."""


@click.command(cls=Command)
@click.option("--parts", metavar="0-15", help="Parts of the site that this process archives.  [all]")
@click.option("--worker", type=int, hidden=True)
@settings_options("database", *AT_BROKER, "memory_mb")
def archive(settings: Settings, site: "SiteSettings", parts: str | None, *, worker: int | None) -> None:
    """Archive what the hosts of a site send to the broker into a lake. Start as many as are needed.

    Each part is archived by one process at a time. Another process with the same parts waits, and takes them
    over when the first has been silent for 10 s.
    """
    dsn, numbers = site.dsn("archive"), _parts(parts, site.broker_parts)
    site.connection("archive")
    if worker is None:
        sys.exit(_keep_worker(sys.argv[1:]))
    _end_with(worker, signal.SIGKILL)  # its leases are the parent's
    from analyzers.lake.archiver import ArchiverWork
    from analyzers.lake.archiver import archive as service

    work = ArchiverWork(
        dsn=dsn, site=site, parts=numbers, holder=f"{socket.gethostname()}/{worker}", settings=settings
    )
    _serve(lambda started: service(work, started), "archiver")


def _keep_worker(arguments: Sequence[str]) -> int:
    """Start a worker again whenever a signal ends it. Return its exit code when it ends by itself."""
    ends = {signal.SIGTERM, signal.SIGINT}
    waited = {*ends, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, lambda *_: None)  # else it is not delivered
    signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    while True:
        worker = subprocess.Popen(  # noqa: S603  (this interpreter, this package)
            python_child("zeus_stream", *arguments, "--worker", str(os.getpid())),
            preexec_fn=partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, waited),  # noqa: PLW1509  (one thread)
        )
        while (code := worker.poll()) is None:
            if signal.sigwait(waited) in ends:
                worker.terminate()
                return max(worker.wait(), 0)
        if code >= 0:
            return code
        name = signal.Signals(-code).name
        click.echo(f"archiver: its worker was ended by {name}. It is started again.", err=True)
        if signal.sigtimedwait(ends, AGAIN_S) is not None:
            return 0


def _parts(text: str | None, parts: int) -> tuple[int, ...]:
    """Return the parts in a text such as ``0-3,7``, of so many. Raises SettingsError."""
    if text is None:
        return tuple(range(parts))
    found: set[int] = set()
    for each in text.split(","):
        first, _, last = each.strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise SettingsError(f"--parts {text}: expected numbers such as 0-3,7.")
        found |= set(range(int(first), int(last or first) + 1))
    if not found or max(found) >= parts:
        raise SettingsError(
            f"--parts {text}: expected numbers from 0 to {parts - 1}. broker_parts has their number."
        )
    return tuple(sorted(found))
