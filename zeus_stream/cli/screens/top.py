"""The command ``zeus-stream top``: GPUs, runs and the search for power limits, live in a terminal."""

import json
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from zeus_stream.cli.options import Command, json_option, settings_options
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    import anyio

    from zeus_stream.live.source import Candidate
    from zeus_stream.protocol.snapshots import Snapshot

LEAVE = "\x1b[?25h\x1b[?1049l"
"""Show the cursor, and go back to the screen that was there before."""
PATIENCE_S = 0.1
"""An answer that takes longer is waited for while Textual is imported."""
TRUE_COLOURS = frozenset({"truecolor", "24bit"})


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
    from zeus_stream.live.source import Source

    async with Source(which, host) as source:
        snapshot = await source.look()
    if as_json:
        click.echo(json.dumps(to_builtins(snapshot), indent=2))
        return
    from zeus_stream.screens.terminal.once import print_once

    print_once(snapshot, sys.stdout)


async def _follow(which: "tuple[Candidate, ...]", host: str | None, every_s: float) -> None:
    """Show the first answer at once, and let Textual go on from there: its import takes longer."""
    import anyio

    from zeus_stream.live.source import Source

    async with Source(which, host) as source:
        shown = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_load, shown)
            first = await source.look()
            _paint(first)
            shown.set()
        try:
            from zeus_stream.screens.terminal.archive_questions import LiveArchive
            from zeus_stream.screens.terminal.top_app import TopApp

            await TopApp(source.look, LiveArchive(source), first, every_s).run_async()
        finally:
            sys.stdout.write(LEAVE)
            sys.stdout.flush()


def _paint(first: "Snapshot") -> None:
    """Draw the first screen without Textual."""
    from zeus_stream.screens.terminal.first_paint import painted
    from zeus_stream.screens.terminal.history import History
    from zeus_stream.screens.terminal.view import view

    width, height = os.get_terminal_size(sys.stdout.fileno())
    history = History()
    history.remember(first)
    shown = view(first, history, width, height=height)
    colours = "NO_COLOR" not in os.environ and os.environ.get("COLORTERM") in TRUE_COLOURS
    sys.stdout.write(painted(shown, width, height, colours=colours))
    sys.stdout.flush()


async def _load(shown: "anyio.Event") -> None:
    """Import Textual once the first screen is shown, or while the answer does not come."""
    import anyio
    from anyio.to_thread import run_sync

    with anyio.move_on_after(PATIENCE_S):
        await shown.wait()
    await run_sync(import_module, "zeus_stream.screens.terminal.top_app")
