"""Commands that send results to other systems: ``forward``."""

import os
import signal
import threading
from contextlib import closing

import click

from zeus_stream.cli.options import Command, settings_options
from zeus_stream.settings import Settings


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
