"""The command ``statement``: the energy of a job, for a model card or a bill of materials."""

import sys
from functools import partial

import click

from zeus_stream.cli.options import QUERY, Command, ask_sql, settings_options
from zeus_stream.settings import Settings


@click.command(cls=Command)
@click.argument("job")
@click.option("--spdx", "form", flag_value="spdx", help="SPDX 3.0.1 as JSON-LD, with the AI profile.")
@click.option(
    "--markdown", "form", flag_value="markdown", default=True, help="A section for a model card.  [this]"
)
@settings_options(*QUERY)
def statement(settings: Settings, job: str, *, form: str) -> None:
    """State the energy of JOB over all its runs and restarts, with bounds and what is missing.

    \b
    zeus-stream statement train > energy.md
    zeus-stream statement train --spdx > energy.spdx.json
    """
    from zeus_stream import __version__
    from zeus_stream.screens.text import statement as text
    from zeus_stream.screens.text.tables import write_text

    stated = text.state(partial(ask_sql, settings), job, __version__)
    write_text(text.spdx(stated) if form == "spdx" else text.markdown(stated), sys.stdout)
