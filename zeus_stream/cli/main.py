"""The command line: its commands by group, and its errors as sentences."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from zeus_stream.cli.options import CommandGroup
from zeus_stream.errors import ZeusStreamError, leaves
from zeus_stream.package_version import VERSION
from zeus_stream.settings import closest

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "Train and measure": {
        "run": "training_commands:run",
        "measure": "training_commands:measure",
        "bench": "bench.bench_command:bench",
        "wait": "screens.wait_command:wait",
    },
    "Look at the results": {
        "top": "screens.top:top",
        "web": "screens.web:web",
        "report": "archive_commands:report",
        "sql": "archive_commands:sql",
        "export": "archive_commands:export",
        "statement": "archive_commands:statement",
        "mcp": "screens.mcp_command:mcp",
        "forward": "archive_commands:forward",
        "replay": "archive_commands:replay",
    },
    "Jobs": {
        "jobs": "job_commands:jobs",
        "profiles": "job_commands:profiles",
        "budget": "job_commands:budget",
        "simulate": "job_commands:simulate",
    },
    "Services": {
        "collect": "service_commands:collect",
        "analyze": "service_commands:analyze",
        "metrics": "screens.metrics_command:metrics",
        "status": "service_commands:status",
        "doctor": "service_commands:doctor",
        "record": "service_commands:record",
    },
    "Many hosts": {
        "lake": "cluster.lake:lake",
        "archive": "cluster.archiver:archive",
        "serve-sql": "cluster.lake:serve_sql",
        "slurm": "cluster.slurm:slurm",
    },
    "Administration": {
        "restore": "service_commands:restore",
        "keys": "service_commands:keys",
        "signals": "archive_commands:signals",
        "calibrate": "archive_commands:calibrate",
        "set-aside": "archive_commands:set_aside",
        "prune": "archive_commands:prune",
        "backup": "cluster.backup_command:backup",
        "verify": "archive_commands:verify",
        "completions": "service_commands:completions",
    },
}
"""Every command, by the heading under which ``zeus-stream --help`` lists it, and its place: a module of
`zeus_stream.cli`, and a name there. The only registry of them. A command's module is imported on use."""
FAILED = 1
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it: 128 + SIGINT."""
QUERY_INTERRUPTED = "Query interrupted"
"""What DuckDB raises as a RuntimeError after Ctrl-C."""


def load_commands() -> dict[str, tuple[click.Command, ...]]:
    """Return every command by its heading. It imports all of their modules."""
    return {title: tuple(map(_load, places.values())) for title, places in COMMANDS.items()}


def _load(place: str) -> click.Command:
    module, _, name = place.partition(":")
    command: click.Command = getattr(import_module(f"zeus_stream.cli.{module}"), name)
    return command


class CommandLine(CommandGroup):
    """The command ``zeus-stream``: prints our errors, alone or grouped, as sentences and exits with 1.

    After Ctrl-C it exits with 130, and prints no traceback.
    """

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **more: Any
    ) -> NoReturn:
        """Run a command and exit. Click alone would say "Aborted!" and exit with 1 after a Ctrl-C.

        Ctrl-C also ends what is before and after `invoke`: the options, the end of a context, a prompt.
        """
        sentences: list[str] = []
        code = FAILED
        # Raised in a handler, an exit would end in a traceback of the group before Python 3.11.4.
        try:
            code = super().main(args, prog_name, **more, standalone_mode=False) or 0
        except* click.ClickException as group:
            for wrong in leaves(group):
                assert isinstance(wrong, click.ClickException)
                wrong.show()
                code = wrong.exit_code
        except* ZeusStreamError as group:
            sentences += map(str, leaves(group))
        except* (KeyboardInterrupt, click.Abort):
            code = INTERRUPTED
        fail(*sentences, code=code)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except RuntimeError as wrong:
            if str(wrong) != QUERY_INTERRUPTED:
                raise
            raise KeyboardInterrupt from wrong

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(name for places in COMMANDS.values() for name in places)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None: there is none of this name."""
        places = {name: place for named in COMMANDS.values() for name, place in named.items()}
        return _load(places[cmd_name]) if cmd_name in places else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names, or raise what names the closest one."""
        close = closest(args[0], self.list_commands(ctx), 0.6)
        if self.get_command(ctx, args[0]) is None and close:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands under their headings."""
        for title, commands in load_commands().items():
            with formatter.section(title):
                formatter.write_dl([(each.name or "", each.get_short_help_str(100)) for each in commands])


def fail(*sentences: str, code: int = FAILED) -> NoReturn:
    """Print each sentence once to stderr, and exit."""
    for sentence in dict.fromkeys(sentences):
        click.echo(f"zeus-stream: {sentence}", err=True)
    sys.exit(code)


@click.group(
    cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(VERSION, "-v", "-V", "--version", prog_name="zeus-stream")
def main() -> None:
    """Measure the energy of each training step, and find the power limit that costs least.

    \b
    zeus-stream run -- python train.py         train, and print what it cost
    zeus-stream COMMAND --help                 the options of a command
    zeus-stream completions bash               completion of commands and options in a shell
    """


if __name__ == "__main__":
    main()
