"""One screen as text, for pipes and bug reports."""

from collections.abc import Sequence
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.screens.terminal.figures import Line, clean
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.lines import STYLES
from zeus_stream.screens.terminal.panels.columns import FRAME, Looks
from zeus_stream.screens.terminal.panels.gpu_panel import process_panel
from zeus_stream.screens.terminal.panels.run_panel import run_panel, search_panel
from zeus_stream.screens.terminal.view import view
from zeus_stream.views.site_view import ServiceView, site_of_live

WIDE = 160
"""Width where there is no terminal."""


def print_once(snapshot: Snapshot, out: TextIO) -> None:
    """Print one screen. Colours are left out where they cannot be shown, or ``NO_COLOR`` is set."""
    console = Console(file=out, highlight=False, width=None if out.isatty() else WIDE)
    history = History()
    history.remember(snapshot)
    shown = view(snapshot, history, console.width)
    for line in shown.head:
        console.print(_text(line), soft_wrap=True)
    site, width = site_of_live(snapshot), console.width - FRAME
    processes, runs = process_panel(site, width, Looks()), run_panel(site, site.runs, width)
    search = search_panel(next(iter(site.runs), None), width)  # below each other, at any width
    for panel in (shown.gpus, processes, runs, search):
        if not panel.lines:
            continue
        console.print()
        console.print(Text(f"{panel.title} ".ljust(console.width - FRAME, "─"), style=STYLES["dim"]))
        for line in (panel.head, *panel.lines):
            if line:
                console.print(_text(line), soft_wrap=True)


def print_services(services: Sequence[ServiceView], out: TextIO) -> None:
    """Print the services of a setup as a table."""
    console = Console(file=out, highlight=False, width=None if out.isatty() else WIDE)
    console.print()
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("service", no_wrap=True)
    table.add_column("behind", justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for each in services:
        table.add_row(each.name, str(each.behind), Text(clean(each.state)))
    console.print(table)


def _text(line: Line) -> Text:
    text = Text()
    for span in line:
        text.append(span.text, STYLES[span.tone])
    text.rstrip()
    return text
