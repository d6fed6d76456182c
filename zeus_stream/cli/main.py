"""The command line: its commands by group, and its errors as sentences."""

import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from zeus_stream.cli import (
    archive_commands,
    exporter_commands,
    job_commands,
    service_commands,
    training_commands,
)
from zeus_stream.cli.cluster.archiver import archive
from zeus_stream.cli.cluster.lake import lake
from zeus_stream.cli.cluster.prune import prune
from zeus_stream.cli.options import Group
from zeus_stream.cli.screens import metrics_command, signals_command, statement_command
from zeus_stream.cli.screens.top import top
from zeus_stream.cli.screens.web import web
from zeus_stream.errors import ZeusStreamError

COMMANDS: Mapping[str, tuple[click.Command, ...]] = {
    "Train and measure": (training_commands.run, training_commands.measure),
    "Look at the results": (
        top,
        web,
        archive_commands.report,
        archive_commands.sql,
        archive_commands.export,
        statement_command.statement,
        exporter_commands.forward,
        archive_commands.replay,
    ),
    "Jobs": (job_commands.jobs, job_commands.profiles, job_commands.budget, job_commands.simulate),
    "Services": (
        service_commands.collect,
        service_commands.analyze,
        metrics_command.metrics,
        service_commands.status,
        service_commands.doctor,
    ),
    "Many hosts": (lake, archive),
    "Administration": (
        service_commands.restore,
        service_commands.keys,
        signals_command.signals,
        archive_commands.calibrate,
        archive_commands.set_aside,
        prune,
        service_commands.completions,
    ),
}
"""Every command, by the heading under which ``zeus-stream --help`` lists it. The only registry of them."""
FAILED = 1


class CommandLine(Group):
    """The command ``zeus-stream``: prints our errors, alone or grouped, as sentences and exits with 1."""

    def invoke(self, ctx: click.Context) -> object:
        sentences: list[str] = []
        try:
            return super().invoke(ctx)
        except* ZeusStreamError as group:
            # Raised here, an exit would end in a traceback of the group before Python 3.11.4.
            sentences += map(str, _leaves(group))
        return fail(*sentences)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands under their headings."""
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(each.name or "", each.get_short_help_str(100)) for each in commands])


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


def fail(*sentences: str) -> NoReturn:
    """Print each sentence once to stderr, and exit."""
    for sentence in dict.fromkeys(sentences):
        click.echo(f"zeus-stream: {sentence}", err=True)
    sys.exit(FAILED)


@click.group(
    cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="zeus-stream", prog_name="zeus-stream")
def main() -> None:
    """Measure the energy of each training step, and find the power limit that costs least.

    \b
    zeus-stream run -- python train.py         train, and print what it cost
    zeus-stream COMMAND --help                 the options of a command
    zeus-stream completions bash               completion of commands and options in a shell
    """


for _commands in COMMANDS.values():
    for _command in _commands:
        main.add_command(_command)


if __name__ == "__main__":
    main()
