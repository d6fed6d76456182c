"""The command ``zeus-stream top``: GPUs, runs and the search for power limits, live in a terminal."""

import json
import os
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from zeus_stream.cli.options import Command, json_option, settings_options
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    from zeus_stream.live.source import Candidate


@click.command(cls=Command, short_help="Show GPUs, runs and the search live in the terminal.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.5, 60),
    default=1.0,
    metavar="SECONDS",
    help="Time between two looks, 0.5 to 60.  [1]",
)
@click.option("--host", help="Show the GPUs and runs of this host only.")
@click.option("--once", is_flag=True, help="Print one screen as text, and end.")
@json_option
@settings_options("analyzer")
def top(settings: Settings, *, every_s: float, host: str | None, once: bool, as_json: bool) -> None:
    """Show GPUs, runs and the search for power limits, live in the terminal.

    It asks the analyzer that runs here, or at --analyzer; if none does, the collector, for the GPUs of its
    host alone. Keys: q quits, ? explains the others.

    \b
    zeus-stream top                    follow what goes on
    zeus-stream top --once             one screen as text
    zeus-stream top --json             the same as JSON, for programs
    """
    import anyio

    from zeus_stream.live.source import candidates

    which = candidates(os.environ, settings.analyzer)
    if once or as_json or not sys.stdout.isatty():
        anyio.run(_once, which, host, as_json)
    else:
        anyio.run(_follow, which, host, every_s)


async def _once(which: "tuple[Candidate, ...]", host: str | None, as_json: bool) -> None:  # noqa: FBT001
    from zeus_stream.live.source import LiveSource

    async with LiveSource(which, host) as source:
        snapshot = await source.look()
    if as_json:
        click.echo(json.dumps(to_builtins(snapshot), indent=2))
        return
    from zeus_stream.screens.terminal.once import print_once

    print_once(snapshot, sys.stdout)


async def _follow(which: "tuple[Candidate, ...]", host: str | None, every_s: float) -> None:
    """Show the first answer, and then the next ones. Textual is imported while the services answer."""
    import anyio
    from anyio.to_thread import run_sync

    from zeus_stream.live.source import LiveSource

    async with LiveSource(which, host) as source:
        async with anyio.create_task_group() as tasks:
            load = partial(import_module, "zeus_stream.screens.terminal.top_app")
            tasks.start_soon(partial(run_sync, load))
            first = await source.look()
        from zeus_stream.screens.terminal.archive_questions import LiveArchive
        from zeus_stream.screens.terminal.top_app import TopApp

        await TopApp(source.look, LiveArchive(source), first, every_s).run_async()
